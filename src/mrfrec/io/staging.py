"""Replace the rows of tables of a database in one transaction.

The rows are loaded into temporary tables, which vanish with the connection. Then one transaction deletes the
old rows and inserts the new ones. Readers see all old rows or all new rows at any isolation level; readers of
PostgreSQL, and of SQLite in WAL mode, never wait. The table stays the same table, with its indexes, grants,
comments, triggers and views.

Swapping the names of two tables would be faster. But transactions with an older snapshot would find the new
table empty, views would keep showing the old table, and every reader would wait for the slowest one.
"""

import re
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

import polars as pl

from mrfrec.checks import is_unicode
from mrfrec.errors import DataError, ParameterError
from mrfrec.io.databases import connect, redacted

_STAGING = "mrfrec_staging"
# Seconds to wait for a lock while other transactions wait behind this one, and seconds of all such waits.
_WAIT = 10.0
_PATIENCE = 60.0
_NAME = r'"((?:[^"\0]|"")+)"|([^".\0]+)'
_TABLE = re.compile(rf"(?:(?:{_NAME})\.)?(?:{_NAME})")
_NUMBERS = r"[a-z]*int(eger|\d)?\b|real|float|double|numeric|decimal"
_TEXTS = r"[a-z ]*(char|text|clob|string)"
_SQL_TYPES = {
    pl.String: "text", pl.Int32: "integer", pl.Int64: "bigint", pl.UInt64: "bigint", pl.Float32: "real",
    pl.Float64: "double precision", None: "text",
}  # fmt: skip


class _Dialect(NamedTuple):
    """The statements in which databases differ.

    `temporary` is the schema of temporary tables. `schema` asks for the schema of a table, which may not
    exist yet; `columns` asks for the columns of a schema and table: name, type, and whether the table is a
    plain one. `claim` keeps other writers of mrfrec from a table, even before it exists. `lock` keeps all
    other writers from a table, but no readers.
    """

    temporary: str
    schema: str
    columns: str
    begin: tuple[str, ...]
    claim: str = ""
    lock: str = ""


_POSTGRES = _Dialect(
    temporary="pg_temp",
    schema="""select coalesce((select n.nspname from pg_class c join pg_namespace n on n.oid = c.relnamespace
        where c.oid = to_regclass($1)), current_schema())::text""",
    columns="""select a.attname::text, format_type(a.atttypid, null)::text, c.relkind in ('r', 'p')
        from pg_class c join pg_namespace n on n.oid = c.relnamespace
        join pg_attribute a on a.attrelid = c.oid
        where n.nspname = $1 and c.relname = $2 and a.attnum > 0 and not a.attisdropped""",
    begin=(
        "begin isolation level read committed",
        "set local lock_timeout = {wait}",
        # This makes the transaction fail if policies hide rows, which would stay.
        "set local row_security = off",
    ),
    claim="select pg_advisory_xact_lock(hashtextextended({text}, 7))",
    lock="lock table {table} in exclusive mode",
)
_SQLITE = _Dialect(
    temporary="temp",
    schema="select 'main' where ? is not null",
    columns="""select c.name, c.type, t.type = 'table' from sqlite_master t join pragma_table_xinfo(t.name) c
        where 'main' = lower(?) and lower(t.name) = lower(?)""",
    begin=("pragma busy_timeout = {wait}", "begin immediate"),
)


@contextmanager
def open_staging(url: str) -> Iterator["Staging"]:
    """Open a database whose tables are replaced together when the block ends; none if it raises."""
    with connect(url, write=True, autocommit=True) as cursor:
        together = Staging(cursor, url)
        yield together
        together.replace()


def check_table(url: str, table: str, schema: Mapping[str, Any], rank: str = "rank") -> tuple[str, str]:
    """Raise if the rows of a table could not be replaced; return its schema and name. Nothing changes.

    Types that are not known yet are None in `schema`.
    """
    with connect(url, write=True, autocommit=True) as cursor:
        target = _Target(cursor, url, table, schema, rank)
        Staging(cursor, url).rehearse(target)
        return target.names


def parse_table(table: object) -> tuple[str | None, str]:
    """Split `schema.table` into schema and table; both may be quoted as in SQL."""
    found = _TABLE.fullmatch(table) if isinstance(table, str) else None
    if found is None or not is_unicode(found[0]):
        rule, advice = "a name such as recs or shop.recs", 'Write a name with a dot or a quote as "a.b".'
        raise ParameterError("table", rule, table, advice)
    quoted_schema, schema, quoted, plain = found.groups()
    unquoted = quoted_schema.replace('""', '"') if quoted_schema else schema
    name = quoted.replace('""', '"') if quoted else plain
    for part in (unquoted or "", name):
        # PostgreSQL would cut off a longer name, and find another table.
        if len(part.encode()) > 63:
            raise ParameterError("table", "a name of at most 63 bytes", table)
    if name.lower().startswith(_STAGING):
        raise ParameterError("table", "a name other than those of the temporary tables", table)
    return unquoted, name


class Staging:
    """An open database with the rows that will replace the rows of its tables."""

    def __init__(self, cursor: Any, url: str) -> None:
        self._cursor, self._url = cursor, url
        self._targets: list[_Target] = []

    def stage(
        self, table: str | None, schema: Mapping[str, Any], frames: Iterable[pl.DataFrame], rank: str = "rank"
    ) -> int:
        """Load frames beside a table, and return the number of rows.

        `schema` has the types of the columns. A missing table is created, with the first column and the
        column `rank` as its primary key. A table with other columns is refused, since it must be something
        else.
        """
        staging = f"{_STAGING}_{len(self._targets)}"
        target = _Target(self._cursor, self._url, table, schema, rank, staging)
        # What is not allowed is refused before the work.
        self.rehearse(target)
        target.prepare()
        rows = 0
        for frame in frames:
            target.load(frame)
            rows += len(frame)
        target.rows = rows
        self._targets.append(target)
        return rows

    def rehearse(self, target: "_Target") -> None:
        """Raise if the rows of a table may not be replaced; nothing changes."""
        self._transact([target], rehearse=True)

    def replace(self) -> None:
        """Replace the rows of all tables by the staged rows."""
        if self._targets:
            # The order is fixed, so that two writers do not wait for each other.
            self._transact(sorted(self._targets, key=lambda target: target.names), rehearse=False)

    def _transact(self, targets: "list[_Target]", rehearse: bool) -> None:
        deadline = time.monotonic() + _PATIENCE
        while True:
            try:
                for statement in targets[0].dialect.begin:
                    self._cursor.execute(statement.replace("{wait}", f"{1000 * _WAIT:.0f}"))
                for target in targets:
                    target.replace(rehearse)
                self._cursor.execute("rollback" if rehearse else "commit")
                return
            except Exception as error:
                self._roll_back()
                if not _is_busy(error):
                    raise
                if time.monotonic() > deadline:
                    tables = " or ".join(target.shown for target in targets)
                    raise DataError(
                        f"{redacted(self._url)}: {tables} is being changed by another transaction, which did "
                        f"not end within {_PATIENCE:.0f} s. Nothing was changed; run this again when it has "
                        "ended."
                    ) from None
            # Transactions that wait behind this one go first.
            time.sleep(0.5)

    def _roll_back(self) -> None:
        # There may be no transaction, or no connection any more.
        with suppress(Exception):
            self._cursor.execute("rollback")


class _Target:
    """A table whose rows are replaced."""

    def __init__(
        self,
        cursor: Any,
        url: str,
        table: str | None,
        schema: Mapping[str, Any],
        rank: str,
        staging: str = _STAGING,
    ) -> None:
        of, name = parse_table(table)
        self._cursor, self._schema, self._rank, self._staging = cursor, schema, rank, staging
        # Number of staged rows.
        self.rows = 0
        self.dialect = _SQLITE if url.startswith("sqlite") else _POSTGRES
        self.shown = f"table {table}"
        self._shown = f"{redacted(url)}: {self.shown}"
        if of is None:
            of = self._fetch(self.dialect.schema, _quoted(name))[0][0]
        elif self.dialect is _SQLITE and of != "main":
            raise ParameterError("table", "a name without a schema, with SQLite", table)
        if of is None:
            raise ParameterError("table", "schema.table, since search_path names no schema", table)
        if of.lower() == self.dialect.temporary or of.startswith("pg_temp_"):
            raise ParameterError("table", "one that lasts, not a temporary one", table)
        self.names: tuple[str, str] = (of, name)
        self._table = f"{_quoted(of)}.{_quoted(name)}"
        self._columns = ", ".join(_quoted(column) for column in schema)
        self._types = ", ".join(f"{_quoted(name)} {_SQL_TYPES[kind]}" for name, kind in schema.items())

    def prepare(self) -> None:
        """Create the staging table."""
        self._cursor.execute(f"create temporary table {self._staging} ({self._types})")

    def load(self, frame: pl.DataFrame) -> None:
        """Append a frame to the staging table."""
        wide = [name for name, kind in self._schema.items() if kind == pl.UInt64]
        try:
            frame = frame.cast(dict.fromkeys(wide, pl.Int64))
        except pl.exceptions.InvalidOperationError:
            raise DataError(f"{self._shown}: ids above 2⁶³ − 1 do not fit a bigint.") from None
        if self.dialect is _POSTGRES:
            self._cursor.adbc_ingest(self._staging, frame, mode="append", temporary=True)
        else:
            self._cursor.execute("begin")
            places = ", ".join("?" * len(frame.columns))
            self._cursor.executemany(f"insert into temp.{self._staging} values ({places})", frame.iter_rows())
            self._cursor.execute("commit")

    def replace(self, rehearse: bool) -> None:
        """Replace the rows of the table by the staged rows; with `rehearse`, delete and insert none."""
        if self.dialect.claim:
            text = "'" + self._table.replace("'", "''") + "'"
            self._cursor.execute(self.dialect.claim.replace("{text}", text))
        if rehearse:
            self.prepare()
        if not self._exists():
            key = f"primary key ({_quoted(next(iter(self._schema)))}, {_quoted(self._rank)})"
            try:
                self._cursor.execute(f"create table {self._table} ({self._types}, {key})")
            except Exception as error:
                if "permission denied" not in str(error):
                    raise
                raise DataError(
                    f"{self._shown} cannot be created: permission denied for schema {self.names[0]}; the "
                    f"role needs the grant create: grant usage, create on schema {self.names[0]} to …"
                ) from None
        elif self.dialect.lock and not rehearse:
            self._cursor.execute(self.dialect.lock.replace("{table}", self._table))
        self._change(f"delete from {self._table}{' where false' if rehearse else ''}")
        rows = f"{self._columns} from {self.dialect.temporary}.{self._staging}"
        # A null without a type fits any column.
        if rehearse:
            kinds = self._schema.values()
            nulls = ("null" if kind is None else f"cast(null as {_SQL_TYPES[kind]})" for kind in kinds)
            rows = f"{', '.join(nulls)} where false"
        inserted = self._change(f"insert into {self._table} ({self._columns}) select {rows}")
        if not rehearse and inserted != self.rows:
            raise DataError(
                f"{self._shown} took {inserted:,} of {self.rows:,} rows. Nothing was changed: look for a "
                "trigger or a rule of the table that leaves rows out."
            )

    def _change(self, statement: str) -> int:
        """Execute a statement, and return the number of rows that it has changed."""
        try:
            self._cursor.execute(statement)
            return int(self._cursor.rowcount)
        except Exception as error:
            if "permission denied for table" not in str(error):
                raise
            # PostgreSQL does not say which grant is missing.
            grant = statement.split()[0]
            raise DataError(f"{self._shown}: permission denied; the role needs the grant {grant}.") from None

    def _exists(self) -> bool:
        """Return whether the table exists; raise if its rows should not be replaced."""
        described = self._fetch(self.dialect.columns, *self.names)
        if not described:
            return False
        if not all(is_table for *_, is_table in described):
            raise DataError(f"{self._shown} is a view or the like, not a table. Give another name.")
        columns = [column for column, *_ in described]
        if set(columns) != set(self._schema):
            raise DataError(
                f"{self._shown} has the columns {', '.join(columns)} and not {', '.join(self._schema)}. It "
                "holds something else and is not replaced: give another name, drop it, or rename the columns "
                "of the output to those of the table (columns, --columns user=user_id)."
            )
        for column, kind, _ in described:
            gets_text = self._schema[column] == pl.String
            if self._schema[column] is not None and re.match(
                _NUMBERS if gets_text else _TEXTS, kind, re.IGNORECASE
            ):
                raise DataError(
                    f'{self._shown}: column "{column}" is of type {kind.lower()}, but would get '
                    f"{'text' if gets_text else 'numbers'}. Give another name, or drop the table: it is "
                    "created with types that fit."
                )
        return True

    def _fetch(self, query: str, *values: str) -> list[Any]:
        self._cursor.execute(query, values)
        return list(self._cursor.fetchall())


def _is_busy(error: Exception) -> bool:
    """Return whether another writer is in the way: a lock came too late, or rows have changed."""
    code = getattr(error, "sqlstate", None) or getattr(error, "sqlite_errorname", None)
    return code in ("55P03", "40P01", "SQLITE_BUSY")


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
