"""Replace the rows of a database table in one transaction.

The rows are loaded into a temporary table, which vanishes with the connection, however that ends. Then one
transaction deletes the old rows and inserts the new ones. Its readers see all old rows or all new ones,
whatever their isolation level, and those of PostgreSQL, DuckDB and SQLite in WAL mode never wait. The table
stays the same table, with its indexes, grants, comments, triggers and views.

Swapping the names of two tables would be faster, but then transactions with an older snapshot find the new
table empty, views keep showing the old one, and every reader waits behind the longest.
"""

import re
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

import polars as pl

from mrfrec.checks import is_unicode
from mrfrec.errors import DataError, ParameterError
from mrfrec.io.databases import connect, shown

_STAGING = "mrfrec_staging"
_WAIT = 10.0  # seconds to wait for a lock, while others wait behind us
_PATIENCE = 60.0  # seconds of such waits
_NAME = r'"((?:[^"\0]|"")+)"|([^".\0]+)'
_TABLE = re.compile(rf"(?:(?:{_NAME})\.)?(?:{_NAME})")
_NUMBERS = r"[a-z]*int(eger|\d)?\b|real|float|double|numeric|decimal"
_TEXTS = r"[a-z ]*(char|text|clob|string)"
_SQL_TYPES = {
    pl.String: "text", pl.Int32: "integer", pl.Int64: "bigint", pl.UInt64: "bigint", pl.Float32: "real",
    pl.Float64: "double precision",
}  # fmt: skip


class _Dialect(NamedTuple):
    """How a database says what differs."""

    temporary: str  # schema of temporary tables
    schema: str  # query for the schema of a table, which may not exist yet
    columns: str  # query for the columns of schema and table: name, type, whether the table is a plain one
    begin: tuple[str, ...]
    lock: str = ""  # keeps other writers from a table, but no readers
    has_key: bool = True


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
        "set local row_security = off",  # fail where policies hide rows, which would stay
        "select pg_advisory_xact_lock(hashtextextended({text}, 7))",  # also if there is no table to lock yet
    ),
    lock="lock table {table} in exclusive mode",
)
_SQLITE = _Dialect(
    temporary="temp",
    schema="select 'main' where ? is not null",
    columns="""select c.name, c.type, t.type = 'table' from sqlite_master t join pragma_table_xinfo(t.name) c
        where 'main' = lower(?) and lower(t.name) = lower(?)""",
    begin=("pragma busy_timeout = {wait}", "begin immediate"),
)
_DUCKDB = _Dialect(
    temporary="temp",
    schema="select current_schema() where ? is not null",
    columns="""select c.column_name, c.data_type, t.table_type = 'BASE TABLE' from information_schema.tables t
        join information_schema.columns c using (table_catalog, table_schema, table_name)
        where table_catalog = current_catalog() and lower(table_schema) = lower(?)
        and lower(table_name) = lower(?)""",
    begin=("begin",),
    has_key=False,  # its tables are scanned fast, and inserting into an index takes long
)


@contextmanager
def staged(
    url: str, table: str | None, schema: Mapping[str, Any], frames: Iterable[pl.DataFrame]
) -> Iterator[int]:
    """Load frames beside a table of a database, and yield the number of rows.

    They replace the rows of the table when the block ends; if it raises, nothing changes. `schema` has the
    types of the columns. A table that is missing is created, with the first column and `rank` as its primary
    key. One with other columns is refused, since it must be something else.
    """
    names = parse_table(table)
    with connect(url, write=True, autocommit=True) as cursor:
        target = _Target(cursor, url, table, names, schema)
        target.replace(rehearse=True)  # what is not allowed is refused before the work
        rows = 0
        for frame in frames:
            target.load(frame)
            rows += len(frame)
        yield rows
        target.replace()


def parse_table(table: object) -> tuple[str | None, str]:
    """Split `schema.table`, of which parts may be quoted as in SQL, into schema and table."""
    found = _TABLE.fullmatch(table) if isinstance(table, str) else None
    if found is None or not is_unicode(found[0]):
        rule, advice = "a name such as recs or shop.recs", 'Write a name with a dot or a quote as "a.b".'
        raise ParameterError("table", rule, table, advice)
    quoted_schema, schema, quoted, plain = found.groups()
    unquoted = quoted_schema.replace('""', '"') if quoted_schema else schema
    name = quoted.replace('""', '"') if quoted else plain
    for part in (unquoted or "", name):
        if len(part.encode()) > 63:  # PostgreSQL would cut it off, and find another table
            raise ParameterError("table", "a name of at most 63 bytes", table)
    if name.lower() == _STAGING:
        raise ParameterError("table", "a name other than that of the temporary table", table)
    return unquoted, name


class _Target:
    """A table whose rows are replaced."""

    def __init__(
        self,
        cursor: Any,
        url: str,
        table: str | None,
        names: tuple[str | None, str],
        schema: Mapping[str, Any],
    ) -> None:
        self._cursor, self._schema = cursor, schema
        scheme = url.partition(":")[0]
        self._dialect = {"sqlite": _SQLITE, "duckdb": _DUCKDB}.get(scheme, _POSTGRES)
        self._shown = f"{shown(url)}: table {table}"
        of, name = names
        if of is None:
            of = self._fetch(self._dialect.schema, _quoted(name))[0][0]
        elif self._dialect is _SQLITE and of != "main":
            raise ParameterError("table", "a name without a schema, with SQLite", table)
        if of is None:
            raise ParameterError("table", "schema.table, since search_path names no schema", table)
        if of.lower() == self._dialect.temporary or of.startswith("pg_temp_"):
            raise ParameterError("table", "one that lasts, not a temporary one", table)
        self._names = (of, name)
        self._table = f"{_quoted(of)}.{_quoted(name)}"
        self._columns = ", ".join(_quoted(column) for column in schema)
        self._types = ", ".join(f"{_quoted(name)} {_SQL_TYPES[kind]}" for name, kind in schema.items())
        self._cursor.execute(f"create temporary table {_STAGING} ({self._types})")

    def load(self, frame: pl.DataFrame) -> None:
        """Append a frame to the staging table."""
        wide = [name for name, kind in self._schema.items() if kind == pl.UInt64]
        try:
            frame = frame.cast(dict.fromkeys(wide, pl.Int64))
        except pl.exceptions.InvalidOperationError:
            raise DataError(f"{self._shown}: ids above 2⁶³ − 1 do not fit a bigint.") from None
        if self._dialect is _POSTGRES:
            self._cursor.adbc_ingest(_STAGING, frame, mode="append", temporary=True)
        elif self._dialect is _DUCKDB:
            self._cursor.register("mrfrec_batch", _ArrowStream(frame))
            self._cursor.execute(f"insert into temp.{_STAGING} select * from mrfrec_batch")
            self._cursor.unregister("mrfrec_batch")
        else:
            self._cursor.execute("begin")
            places = ", ".join("?" * len(frame.columns))
            self._cursor.executemany(f"insert into temp.{_STAGING} values ({places})", frame.iter_rows())
            self._cursor.execute("commit")

    def replace(self, rehearse: bool = False) -> None:
        """Replace the rows of the table by the staged ones; with `rehearse`, see whether that is allowed."""
        deadline = time.monotonic() + _PATIENCE
        while True:
            try:
                self._begin()
                self._replace(rehearse)
                self._cursor.execute("rollback" if rehearse else "commit")
                return
            except Exception as error:
                self._roll_back()
                if not _is_busy(error):
                    raise
                if time.monotonic() > deadline:
                    raise DataError(
                        f"{self._shown} is being changed by another transaction, which did not end within "
                        f"{_PATIENCE:.0f} s. Nothing was changed; run this again when it has ended."
                    ) from None
            time.sleep(0.5)  # those who wait behind us go first

    def _begin(self) -> None:
        text = "'" + self._table.replace("'", "''") + "'"
        for statement in self._dialect.begin:
            self._cursor.execute(statement.replace("{wait}", f"{1000 * _WAIT:.0f}").replace("{text}", text))

    def _replace(self, rehearse: bool) -> None:
        if not self._exists():
            key = (
                f", primary key ({_quoted(next(iter(self._schema)))}, rank)" if self._dialect.has_key else ""
            )
            self._cursor.execute(f"create table {self._table} ({self._types}{key})")
        elif self._dialect.lock and not rehearse:
            self._cursor.execute(self._dialect.lock.replace("{table}", self._table))
        self._cursor.execute(f"delete from {self._table}{' where false' if rehearse else ''}")
        rows = f"select {self._columns} from {self._dialect.temporary}.{_STAGING}"
        self._cursor.execute(f"insert into {self._table} ({self._columns}) {rows}")

    def _exists(self) -> bool:
        """Return whether the table exists, if nothing speaks against replacing its rows."""
        found = self._fetch(self._dialect.columns, *self._names)
        if not found:
            return False
        if not all(is_table for *_, is_table in found):
            raise DataError(f"{self._shown} is a view or the like, not a table. Give another name.")
        columns = [column for column, *_ in found]
        if set(columns) != set(self._schema):
            raise DataError(
                f"{self._shown} has the columns {', '.join(columns)} and not {', '.join(self._schema)}. It "
                "holds something else and is not replaced: give another name, or drop it."
            )
        for column, kind, _ in found:
            gets_text = self._schema[column] == pl.String
            if re.match(_NUMBERS if gets_text else _TEXTS, kind, re.IGNORECASE):
                raise DataError(
                    f'{self._shown}: column "{column}" is of type {kind.lower()}, but would get '
                    f"{'text' if gets_text else 'numbers'}. Give another name, or drop the table: it is "
                    "created with types that fit."
                )
        return True

    def _fetch(self, query: str, *values: str) -> list[Any]:
        return list(self._cursor.execute(query, values).fetchall())

    def _roll_back(self) -> None:
        with suppress(Exception):  # there is no transaction, or no connection any more
            self._cursor.execute("rollback")


class _ArrowStream:
    """A frame as a stream of Arrow, which DuckDB reads without pyarrow."""

    def __init__(self, frame: pl.DataFrame) -> None:
        self._frame = frame

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self._frame.__arrow_c_stream__(requested_schema)


def _is_busy(error: Exception) -> bool:
    """Return whether another writer is in the way: a lock was not given in time, or rows have changed."""
    code = getattr(error, "sqlstate", None) or getattr(error, "sqlite_errorname", None)
    if type(error).__name__ == "TransactionException":  # of DuckDB, which has no codes
        return "conflict" in str(error).lower()
    return code in ("55P03", "40P01", "SQLITE_BUSY")


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
