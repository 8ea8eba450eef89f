-- The user of the job may read the events and exchange the recommendations, nothing else. The owner of the database runs this once,
-- after events.sql, and sets a password afterwards, so that no file has it.
create role shop login;

create table recs (
    user_id bigint,
    sku text,
    title text,
    score real,
    rank integer,
    source text,
    primary key (user_id, rank)
);

-- The default of PostgreSQL 15 and later.
revoke create on schema public from public;

grant select on events to shop;

grant insert, delete on recs to shop;
