-- The table that the job of compose.yaml reads: made by the owner of the database when it starts for the first time.
create table events (
    user_id bigint not null,
    sku text not null,
    created_at timestamptz not null default now()
);
