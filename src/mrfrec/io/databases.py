"""Connect to PostgreSQL and SQLite by URL, without ever showing a password.

    postgresql://user:password@host:5432/database
    sqlite:///relative/file.db        sqlite:////absolute/file.db

libpq takes what the URL of PostgreSQL does not say from PGHOST, PGUSER, PGPASSWORD, ~/.pgpass, PGPASSFILE and
service files.

A server has `connect_timeout` seconds to accept a connection and `answer_timeout` seconds to answer. Both are
parameters of the URL: ?connect_timeout=30. Rows come in batches, in the order of the database.
"""

import re
import weakref
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import Future, wait
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from threading import Lock, Thread
from typing import Any
from urllib.parse import quote, unquote

import polars as pl

from mrfrec.checks import missing_extra
from mrfrec.errors import DataError, ParameterError
from mrfrec.io import batches as tables
from mrfrec.io.batches import FEATURE, ID_ROLES, POLARS_ERRORS, UNREAD, Roles, Source, Types, batch_of

_SCHEMES = ("postgresql", "postgres", "sqlite")
_TARGETS = "a file, or the URL of a database: postgresql://… or sqlite:///…"
# Limits in seconds.
_LIMITS = {"connect_timeout": 10.0, "answer_timeout": 1800.0}
# A machine that is gone is noticed after two minutes, whatever the limits.
_KEEPALIVES = {"keepalives_idle": "60", "keepalives_interval": "15", "tcp_user_timeout": "120000"}
# A server has so long to stop a statement.
_SECONDS_TO_CANCEL = 5.0
_HOST = r"(?:\[[\da-fA-F:.]*\]|[^][@:/?,]*)(?::\d*)?"
_POSTGRES = re.compile(
    rf"""postgres(?:ql)?://
    (?:[^:@/?]* (?::(?P<password>[^@/?]*))? @)?
    (?P<place>{_HOST} (?:,{_HOST})* (?:/[^@?]*)?)
    (?:\?(?P<parameters>[^@=&]+=[^@=&]* (?:&[^@=&]+=[^@=&]*)*))?""",
    re.VERBOSE,
)


def is_database(source: object) -> bool:
    """Return whether a source is the URL of a database."""
    return isinstance(source, str) and source.partition("://")[0] in _SCHEMES and "://" in source


def database_file(url: str) -> Path | None:
    """Return the file of an SQLite database, with links resolved; None for a server."""
    scheme, _, rest = url.partition("://")
    return Path(rest[1:]).resolve() if scheme == "sqlite" else None


def redacted(url: str) -> str:
    """Return a URL without password and parameters, to show it; only the scheme of a malformed URL."""
    scheme, mark, rest = url.partition("://")
    if not mark or scheme == "sqlite":
        return url
    if scheme in _SCHEMES:
        parts = _POSTGRES.fullmatch(url)
        return f"{scheme}://{parts['place']}" if parts else f"{scheme}://…"
    place, _, parameters = rest.partition("?")
    return f"{scheme}://{'…' if '@' in parameters else place.rpartition('@')[2]}"


def refuse_url(path: object, rule: str = _TARGETS) -> None:
    """Refuse a URL in place of a file, also one that `Path` has made `s3:/bucket`; show no password."""
    if re.match(r"[A-Za-z][\w+.-]+:/", str(path)):
        raise ParameterError("path", rule, redacted(re.sub(":/+", "://", str(path), count=1)))


@contextmanager
def connect(url: str, *, write: bool = False, autocommit: bool = False) -> Iterator[Any]:
    """Open a database by its URL and yield a cursor of its driver.

    The block is one transaction, which is committed at its end and rolled back if it raises. With
    `autocommit`, every statement is a transaction until the caller begins one. Errors of the driver become a
    `DataError` without passwords. Files change, or are created, only with `write`. SQLite creates an empty
    file when it connects; the file is removed if nothing was written into it.
    """
    file = database_file(url)
    is_new = file is not None and not file.exists()
    driver, connection, cursor = _open_postgres(url, autocommit) if file is None else _open_sqlite(url, write)
    try:
        with ExitStack() as open_:
            if file is not None:
                if is_new:
                    open_.callback(_remove_empty, file)
                open_.callback(connection.close)
            open_.callback(cursor.close)
            if file is not None and not autocommit:
                cursor.execute("begin immediate" if write else "begin")
            elif not (write or autocommit):
                cursor.execute("set transaction read only")
                # A query fails if policies hide rows from the role.
                cursor.execute("set local row_security = off")
            yield cursor
            if not autocommit:
                call_with_limit(cursor, connection.commit)
    except driver.Error as error:
        raise failure(url, error) from None


def _remove_empty(file: Path) -> None:
    # The file may be gone, or this user may not remove it.
    with suppress(OSError):
        if file.stat().st_size == 0:
            file.unlink()


def call_with_limit(cursor: Any, call: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function that waits for the database of a cursor; give up if the database stays silent."""
    return cursor.call_with_limit(call, *arguments) if isinstance(cursor, _ServerCursor) else call(*arguments)


class _ServerCursor:
    """A cursor whose calls end even if the server never answers.

    Every call runs in a thread. If it takes too long, the server is told to cancel it. If the thread still
    does not return, the cursor is lost: later calls do nothing, and the thread closes everything if it ever
    returns.
    """

    def __init__(self, url: str, limit: float) -> None:
        self._url = url
        self._limit = limit
        self._lock = Lock()
        self._is_lost = False
        self.cursor: Any = None
        # Closes what the driver has opened, in reverse order.
        self.closing = ExitStack()

    def call_with_limit(self, call: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        if self._is_lost:
            return None
        pending: Future[Any] = Future()
        Thread(target=self._run, args=(pending, partial(call, *arguments, **options)), daemon=True).start()
        # After Ctrl-C, the call counts as late.
        is_late = True
        try:
            is_late = bool(wait([pending], self._limit or None).not_done)
        finally:
            if is_late:
                self._give_up(pending)
        if is_late:
            raise DataError(
                f"{redacted(self._url)}: the database has not answered for {self._limit:g} s. To wait "
                "longer, add answer_timeout=… to the URL, in seconds (0: without a limit)."
            )
        return pending.result()

    def _run(self, pending: "Future[Any]", call: Callable[[], Any]) -> None:
        result = raised = None
        try:
            result = call()
        except BaseException as error:
            raised = error
        with self._lock:
            pending.set_result(result) if raised is None else pending.set_exception(raised)
        if self._is_lost:
            self.closing.close()

    def _give_up(self, pending: "Future[Any]") -> None:
        try:
            if self.cursor is not None:
                Thread(target=self.cursor.adbc_cancel, daemon=True).start()
                wait([pending], _SECONDS_TO_CANCEL)
        finally:
            with self._lock:
                self._is_lost = not pending.done()

    def close(self) -> None:
        self.call_with_limit(self.closing.close)

    def __getattr__(self, name: str) -> Any:
        value = getattr(self.cursor, name)
        return partial(self.call_with_limit, value) if callable(value) else value


def _open_sqlite(url: str, write: bool) -> tuple[Any, Any, Any]:
    """Return the driver, an open connection and its cursor."""
    import sqlite3

    place = url.partition("://")[2]
    path = Path(place[1:])
    if not place.startswith("/") or place == "/":
        rule = "sqlite:///file.db, or with a fourth slash an absolute path"
        raise ParameterError("the URL of the database", rule, url)
    if not (path.is_file() or (write and path.parent.is_dir())):
        missing = f"folder {path.parent}" if write else f"file {path}"
        raise DataError(f"{url}: there is no {missing}.")
    try:
        file = f"file:{quote(str(path))}?mode={'rwc' if write else 'rw'}"
        connection = sqlite3.connect(file, uri=True, isolation_level=None, check_same_thread=False)
        # With mode=ro, SQLite could not undo what a killed writer has begun.
        if not write:
            connection.execute("pragma query_only = on")
            # This fails if the file is not a database.
            connection.execute("pragma schema_version")
            # SQLITE_ATTACH creates files, so it is refused.
            attach = sqlite3.SQLITE_ATTACH
            connection.set_authorizer(lambda action, *_: int(action == attach))
    except sqlite3.Error as error:
        raise failure(url, error) from None
    return sqlite3, connection, connection.cursor()


def _open_postgres(url: str, autocommit: bool) -> tuple[Any, Any, Any]:
    """Return the driver, an open connection and its cursor."""
    if not _POSTGRES.fullmatch(url) or re.search("%(?![0-9a-fA-F]{2})", url):
        raise ParameterError(
            "the URL of the database", "postgresql://user:password@host:port/database", redacted(url),
            "In a password, write @ as %40, / as %2F, ? as %3F, % as %25 and & as %26.",
        )  # fmt: skip
    try:
        from adbc_driver_postgresql import dbapi
    except ImportError:
        raise missing_extra("postgresql:// needs a driver", "sql") from None
    full, limit = _limited(url)
    cursor = _ServerCursor(url, limit)
    try:
        connection = cursor.call_with_limit(partial(dbapi.connect, full, autocommit=autocommit))
        cursor.cursor = connection.cursor()
    except dbapi.Error as error:
        raise failure(url, error) from None
    cursor.closing.callback(connection.close)
    cursor.closing.callback(cursor.cursor.close)
    return dbapi, connection, cursor


def _limited(url: str) -> tuple[str, float]:
    """Return a URL for libpq with limits, and the seconds to wait for the database."""
    place, _, parameters = url.partition("?")
    options = dict(pair.split("=", 1) for pair in parameters.split("&") if pair)
    limit = options.pop("answer_timeout", str(_LIMITS["answer_timeout"]))
    if not re.fullmatch(r"\d{1,9}(\.\d+)?", limit):
        raise ParameterError("answer_timeout", "a number of seconds, or 0 for no limit", limit)
    options = {"connect_timeout": f"{_LIMITS['connect_timeout']:.0f}", **_KEEPALIVES, **options}
    return f"{place}?{'&'.join(f'{name}={value}' for name, value in options.items())}", float(limit)


def failure(url: str, error: Exception, where: str = "") -> DataError:
    """Return the error of a driver as a `DataError` of one line, without passwords and without the query."""
    echo = r"\n(LINE \d+:[^\n]*\n *\^+|Query was:.*)|\s*\. SQLSTATE: \w+"
    text = re.sub(echo, "", str(error), flags=re.DOTALL)
    text = re.sub(r"^.*?ERROR: ", "", " ".join(text.split()))
    for secret in sorted(_secrets(url), key=len, reverse=True):
        text = text.replace(secret, "***")
    return DataError(f"{redacted(url)}{where}: {text[:500].rstrip('.')}.")


def _secrets(url: str) -> set[str]:
    parts = _POSTGRES.fullmatch(url)
    if parts is None:
        return set()
    pairs = [pair.partition("=") for pair in (parts["parameters"] or "").split("&")]
    secrets = [parts["password"] or "", *(value for key, _, value in pairs if "password" in unquote(key))]
    return {form for secret in secrets for form in (secret, unquote(secret)) if form}


# Role → index of its column.
ColumnIndex = dict[str, int]

# The rows of a batch are Python objects at first.
_SQLITE_ROWS = 50_000
_COPY = re.compile(r"(\s|--[^\n]*\n|/\*.*?\*/)*copy\b", re.DOTALL | re.IGNORECASE)


def open_query(url: str, query: str, text_ids: Collection[str] = ()) -> Source:
    """Send a query to a database. Its rows arrive while they are read; they can be read once.

    The ids of the roles `text_ids` are texts.
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
    # Close the connection also if the rows are never read.
    weakref.finalize(rows, kept_open.close)

    def batches(roles: Roles, types: Types) -> Iterator[pl.DataFrame]:
        with kept_open:
            yield from rows({role: columns.index(name) for role, name in roles.items()})

    return Source(redacted(url), tuple(columns), batches)


def planned(url: str, query: str) -> Source:
    """Plan a query without running it, and return a source with its columns and no rows.

    Raises if the database refuses the query, for instance because a grant is missing.
    """
    return open_query(url, _without_rows(query))


def reads_table(url: str, query: str, other: str, names: tuple[str, str]) -> bool:
    """Plan a query without running it, and return whether it reads a table (schema, name) of a database.

    The URL `other` of that database may differ from the URL of the query.
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
        # Planning has locked the tables that the query reads.
        cursor.execute("""select n.nspname::text, c.relname::text from pg_locks l
            join pg_class c on c.oid = l.relation join pg_namespace n on n.oid = c.relnamespace
            where l.pid = pg_backend_pid() and l.locktype = 'relation'""")
        return set(cursor.fetchall())


def _without_rows(query: str) -> str:
    query = query.rstrip("; \t\r\n")
    return f"select * from ({query}\n) as query limit 0"


def _server_of(url: str) -> object:
    """Return values that identify a server and its database."""
    with connect(url) as cursor:
        cursor.execute("select pg_postmaster_start_time()::text, current_database()::text")
        return cursor.fetchall()


def _sqlite_rows(
    cursor: Any, url: str, text_ids: Collection[str], columns: ColumnIndex
) -> Iterator[pl.DataFrame]:
    while rows := cursor.fetchmany(_SQLITE_ROWS):
        values = {role: _as_series([row[index] for row in rows]) for role, index in columns.items()}
        yield batch_of(values, [None] * len(rows), redacted(url), text_ids)


def _arrow_rows(cursor: Any, url: str, reader: Any, columns: ColumnIndex) -> Iterator[pl.DataFrame]:
    from pyarrow import ArrowException

    done = 0
    fields = list(reader.schema)
    for role, index in columns.items():
        _check_type(fields[index], role, redacted(url))
    try:
        while (rows := call_with_limit(cursor, next, reader, None)) is not None:
            batch = pl.DataFrame(
                {role: _series(rows.column(index), fields[index], role) for role, index in columns.items()}
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
    # A copy may write files of the server.
    if _COPY.match(query):
        raise DataError(f"{redacted(url)}: the query must be a single select.")
    # The line end closes a comment before the driver adds a bracket.
    cursor.execute(f"{query}\n")
    reader = call_with_limit(cursor, RecordBatchReader.from_stream, cursor.fetch_arrow())
    cursor.closing.callback(reader.close)
    try:
        yield reader
    finally:
        call_with_limit(cursor, reader.close)


def _type_name(kind: Any) -> str:
    """Return the name of a column's type in PostgreSQL, or else in Arrow."""
    known = (kind.metadata or {}).get(b"POSTGRESQL:type")
    return str(kind.type) if known is None else str(known, "ascii")


def _check_type(kind: Any, role: str, where: str) -> None:
    """Refuse types that polars cannot read, or reads as something else."""
    name = _type_name(kind)
    is_binary = any(each in str(kind.type) for each in ("binary", "interval"))
    if (is_binary and name != "uuid") or (name == "numeric" and role in ID_ROLES) or name == "money":
        # Money would come in cents.
        to = "numeric)" if name == "money" else "text), or as bigint"
        raise DataError(
            f"{where}: column {kind.name!r} ({role}) is {name}. Convert it in the query: cast(… as {to}."
        )


def _series(array: Any, kind: Any, role: str) -> pl.Series:
    name = _type_name(kind)
    # Columns of numeric and JSON are texts here.
    series = pl.Series(getattr(array, "storage", array))
    if name == "uuid" and series.dtype == pl.Binary:
        digits = series.bin.encode("hex")
        return digits.str.replace("^(.{8})(.{4})(.{4})(.{4})", "${1}-${2}-${3}-${4}-")
    holds_numbers = role in ("value", "time") or role.startswith((FEATURE, UNREAD))
    return series.cast(pl.Float64) if holds_numbers and name == "numeric" else series


def _as_series(values: list[Any]) -> pl.Series | list[Any]:
    """Convert values of one type to a series; SQLite allows several types, which stay as they are."""
    try:
        return pl.Series(values, strict=True)
    except (TypeError, OverflowError):
        return values
