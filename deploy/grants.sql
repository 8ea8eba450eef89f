-- The user of the job and all that it may do: read the events and exchange the recommendations. Run once, after events.sql, by the
-- owner of the database. A password is set afterwards, so that none is in a file.
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

-- As PostgreSQL 15 and later have it by default.
revoke create on schema public from public;

grant select on events to shop;

grant insert, delete on recs to shop;
