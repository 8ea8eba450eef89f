-- The job of compose.yaml reads this table. The owner of the database makes it when the database starts for the first time.
create table events (
    user_id bigint not null,
    sku text not null,
    created_at timestamptz not null default now()
);
