"""Open the result of a query as batches of rows in polars, in the order in which the database sends them."""

import re
import weakref
from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import polars as pl

from mrfrec.checks import missing_extra
from mrfrec.errors import DataError
from mrfrec.io import batches as tables
from mrfrec.io.batches import FEATURE, ID_ROLES, POLARS_ERRORS, UNUSED, Roles, Source, Types, batch_of
from mrfrec.io.databases import call_with_limit, connect, database_file, failure, is_database, redacted

Places = dict[str, int]  # of the columns of each role

_SQLITE_ROWS = 50_000  # rows in a batch while they are Python objects
_COPY = re.compile(r"(\s|--[^\n]*\n|/\*.*?\*/)*copy\b", re.DOTALL | re.IGNORECASE)


def open_query(url: str, query: str, text_ids: Collection[str] = ()) -> Source:
    """Send a query to a database; its rows arrive while they are read, which is possible once.

    `text_ids` are roles whose ids are texts.
    """
    query = query.rstrip("; \t\r\n")
    with ExitStack() as connection:
        cursor = connection.enter_context(connect(url))
        if url.startswith("sqlite"):
            cursor.execute(query)
            columns = [name for name, *_ in cursor.description or ()]
            rows = partial(_sqlite_rows, cursor, url, text_ids)
        else:
            reader = connection.enter_context(_arrow_reader(cursor, url, query))
            columns = list(reader.schema.names)
            rows = partial(_arrow_rows, cursor, url, reader)
        doubled = next((name for name in columns if columns.count(name) > 1), None)
        if doubled is not None or not columns:
            what = f"several columns {doubled!r}. Name them apart: … as name" if columns else "no table"
            raise DataError(f"{redacted(url)}: the query returns {what}.")
        kept_open = connection.pop_all()
    weakref.finalize(rows, kept_open.close)  # closes the connection if the rows are never read

    def batches(roles: Roles, types: Types) -> Iterator[pl.DataFrame]:
        with kept_open:
            yield from rows({role: columns.index(name) for role, name in roles.items()})

    return Source(redacted(url), tuple(columns), batches)


def planned(url: str, query: str) -> Source:
    """Return the columns of a query, without rows; raise if the database refuses it, as for a missing grant.

    The query is planned but not run.
    """
    return open_query(url, _without_rows(query))


def reads_table(url: str, query: str, other: str, names: tuple[str, str]) -> bool:
    """Return whether a query reads a table (schema and name) of a database, which may have another URL.

    The query is planned but not run.
    """
    tables_read = _tables_read(url, query)
    if url.startswith("postgres") and other.startswith("postgres"):
        return names in tables_read and _server_of(url) == _server_of(other)
    same = is_database(url) and database_file(url) == database_file(other)
    return same and tuple(name.lower() for name in names) in tables_read


def _tables_read(url: str, query: str) -> set[tuple[str, str]]:
    """Return the schemas and names of the tables that a query reads, also through views."""
    with connect(url) as cursor:
        if url.startswith("sqlite"):
            tables_read: set[tuple[str, str]] = set()

            def note(action: int, name: str | None, *_: object) -> int:
                if action == 20:  # SQLITE_READ
                    tables_read.add(("main", str(name).lower()))
                return 0

            cursor.connection.set_authorizer(note)
            cursor.execute(_without_rows(query))
            return tables_read
        cursor.execute(_without_rows(query))
        # Planning has locked the tables that will be read.
        cursor.execute("""select n.nspname::text, c.relname::text from pg_locks l
            join pg_class c on c.oid = l.relation join pg_namespace n on n.oid = c.relnamespace
            where l.pid = pg_backend_pid() and l.locktype = 'relation'""")
        return set(cursor.fetchall())


def _without_rows(query: str) -> str:
    query = query.rstrip("; \t\r\n")
    return f"select * from ({query}\n) as query limit 0"


def _server_of(url: str) -> object:
    """Return values that identify a database and its server."""
    with connect(url) as cursor:
        cursor.execute("select pg_postmaster_start_time()::text, current_database()::text")
        return cursor.fetchall()


def _sqlite_rows(cursor: Any, url: str, text_ids: Collection[str], places: Places) -> Iterator[pl.DataFrame]:
    while rows := cursor.fetchmany(_SQLITE_ROWS):
        values = {role: _as_series([row[place] for row in rows]) for role, place in places.items()}
        yield batch_of(values, [None] * len(rows), redacted(url), text_ids)


def _arrow_rows(cursor: Any, url: str, reader: Any, places: Places) -> Iterator[pl.DataFrame]:
    from pyarrow import ArrowException

    done = 0
    kinds = list(reader.schema)
    for role, place in places.items():
        _check_type(kinds[place], role, redacted(url))
    try:
        while (rows := call_with_limit(cursor, next, reader, None)) is not None:
            batch = pl.DataFrame(
                {role: _series(rows.column(place), kinds[place], role) for role, place in places.items()}
            )
            done += len(batch)
            yield from batch.iter_slices(tables.BATCH_ROWS)
    except (ArrowException, OSError, *POLARS_ERRORS) as error:
        raise failure(url, error, f" after row {done:,}") from None


@contextmanager
def _arrow_reader(cursor: Any, url: str, query: str) -> Iterator[Any]:
    """Yield a reader of the result of a query, which is closed before the connection."""
    try:
        from pyarrow import RecordBatchReader
    except ImportError:
        raise missing_extra("databases need pyarrow", "sql") from None
    if _COPY.match(query):  # which may write files of the server
        raise DataError(f"{redacted(url)}: the query must be a single select.")
    cursor.execute(f"{query}\n")  # a line end closes a comment, before the driver adds a bracket
    reader = call_with_limit(cursor, RecordBatchReader.from_stream, cursor.fetch_arrow())
    cursor.closing.callback(reader.close)
    try:
        yield reader
    finally:
        call_with_limit(cursor, reader.close)


def _type_name(kind: Any) -> str:
    """Return the name of a column's type in PostgreSQL, else in Arrow."""
    known = (kind.metadata or {}).get(b"POSTGRESQL:type")
    return str(kind.type) if known is None else str(known, "ascii")


def _check_type(kind: Any, role: str, where: str) -> None:
    """Refuse types that polars cannot read, or reads as something else."""
    name = _type_name(kind)
    is_binary = any(each in str(kind.type) for each in ("binary", "interval"))
    if (is_binary and name != "uuid") or (name == "numeric" and role in ID_ROLES) or name == "money":
        to = "numeric)" if name == "money" else "text), or as bigint"  # money would come in cents
        raise DataError(
            f"{where}: column {kind.name!r} ({role}) is {name}. Convert it in the query: cast(… as {to}."
        )


def _series(array: Any, kind: Any, role: str) -> pl.Series:
    name = _type_name(kind)
    series = pl.Series(getattr(array, "storage", array))  # numeric and JSON are texts
    if name == "uuid" and series.dtype == pl.Binary:
        digits = series.bin.encode("hex")
        return digits.str.replace("^(.{8})(.{4})(.{4})(.{4})", "${1}-${2}-${3}-${4}-")
    holds_numbers = role in ("value", "time", UNUSED) or role.startswith(FEATURE)
    return series.cast(pl.Float64) if holds_numbers and name == "numeric" else series


def _as_series(values: list[Any]) -> pl.Series | list[Any]:
    """Convert values of one type to a series; return them as they are if types differ, as SQLite allows."""
    try:
        return pl.Series(values, strict=True)
    except (TypeError, OverflowError):
        return values
