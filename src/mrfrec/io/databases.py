"""Connect to PostgreSQL and SQLite by URL, without ever showing a password.

    postgresql://user:password@host:5432/database
    sqlite:///relative/file.db        sqlite:////absolute/file.db

libpq finds what the URL of a PostgreSQL does not say where it always does: PGHOST, PGUSER, PGPASSWORD,
~/.pgpass, PGPASSFILE, service files.

A server that says nothing is given up: after `connect_timeout` seconds while connecting, after
`answer_timeout` seconds while it owes an answer. Both are parameters of the URL: ?connect_timeout=30.
"""

import re
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from threading import Lock, Thread
from typing import Any
from urllib.parse import quote, unquote

from mrfrec.checks import missing_extra
from mrfrec.errors import DataError, ParameterError

_SCHEMES = ("postgresql", "postgres", "sqlite")
_TARGETS = "a file, or the URL of a database: postgresql://… or sqlite:///…"
_LIMITS = {"connect_timeout": 10.0, "answer_timeout": 1800.0}  # seconds
# A machine that is gone is noticed after two minutes, whatever the limits.
_KEEPALIVES = {"keepalives_idle": "60", "keepalives_interval": "15", "tcp_user_timeout": "120000"}
_GRACE = 5.0  # seconds for a server to stop a statement
_HOST = r"(?:\[[\da-fA-F:.]*\]|[^][@:/?,]*)(?::\d*)?"
_POSTGRES = re.compile(
    rf"""postgres(?:ql)?://
    (?:[^:@/?]* (?::(?P<password>[^@/?]*))? @)?
    (?P<place>{_HOST} (?:,{_HOST})* (?:/[^@?]*)?)
    (?:\?(?P<query>[^@=&]+=[^@=&]* (?:&[^@=&]+=[^@=&]*)*))?""",
    re.VERBOSE,
)


def is_database(source: object) -> bool:
    """Return whether a source is the URL of a database."""
    return isinstance(source, str) and source.partition("://")[0] in _SCHEMES and "://" in source


def database_file(url: str) -> Path | None:
    """Return the file of a database in a file, without links; None for a server."""
    scheme, _, rest = url.partition("://")
    return Path(rest[1:]).resolve() if scheme == "sqlite" else None


def redacted(url: str) -> str:
    """Return a URL as it may be shown: without its password, its query, or anything if it is malformed."""
    scheme, mark, rest = url.partition("://")
    if not mark or scheme == "sqlite":
        return url
    if scheme in _SCHEMES:
        parts = _POSTGRES.fullmatch(url)
        return f"{scheme}://{parts['place']}" if parts else f"{scheme}://…"
    place, _, query = rest.partition("?")
    return f"{scheme}://{'…' if '@' in query else place.rpartition('@')[2]}"


def refuse_url(path: object, rule: str = _TARGETS) -> None:
    """Refuse a URL in place of a file, also one of which `Path` has made `s3:/bucket`; show no password."""
    if re.match(r"[A-Za-z][\w+.-]+:/", str(path)):
        raise ParameterError("path", rule, redacted(re.sub(":/+", "://", str(path), count=1)))


@contextmanager
def connect(url: str, *, write: bool = False, autocommit: bool = False) -> Iterator[Any]:
    """Open a database by its URL and yield a cursor of its driver.

    The block is one transaction: committed at its end, rolled back if it raises. With `autocommit` each
    statement is one, until the caller begins another. What the driver raises becomes a `DataError` without
    passwords. Only with `write` may files be changed, or created if they are missing. SQLite creates an empty
    file when it connects; one into which nothing was written is removed.
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
            yield cursor
            if not autocommit:
                ask(cursor, connection.commit)
    except driver.Error as error:
        raise failure(url, error) from None


def _remove_empty(file: Path) -> None:
    with suppress(OSError):  # it is gone, or others may not remove it
        if file.stat().st_size == 0:
            file.unlink()


def ask(cursor: Any, call: Callable[..., Any], *arguments: Any) -> Any:
    """Call something that waits for the database of a cursor, and give up if that stays silent."""
    return cursor.ask(call, *arguments) if isinstance(cursor, _ServerCursor) else call(*arguments)


class _ServerCursor:
    """A cursor whose calls end, also if the server never answers.

    They run in a thread. When that is not back in time, the server is asked to stop. If the thread stays
    where it is, the cursor is lost: later calls do nothing, and the thread closes all if it ever comes back.
    """

    def __init__(self, url: str, limit: float) -> None:
        self._url, self._limit = url, limit
        self._lock, self._is_lost = Lock(), False
        self.cursor: Any = None
        self.closing = ExitStack()  # of all that the driver has opened, the last first

    def ask(self, call: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        if self._is_lost:
            return None
        answer: Future[Any] = Future()
        Thread(target=self._work, args=(answer, partial(call, *arguments, **options)), daemon=True).start()
        is_late = True  # also after Ctrl-C
        try:
            is_late = bool(wait([answer], self._limit or None).not_done)
        finally:
            if is_late:
                self._give_up(answer)
        if is_late:
            raise DataError(
                f"{redacted(self._url)}: the database has not answered for {self._limit:g} s. To wait "
                "longer, add answer_timeout=… to the URL, in seconds (0: without a limit)."
            )
        return answer.result()

    def _work(self, answer: "Future[Any]", call: Callable[[], Any]) -> None:
        found, failed = None, None
        try:
            found = call()
        except BaseException as error:
            failed = error
        with self._lock:
            answer.set_result(found) if failed is None else answer.set_exception(failed)
        if self._is_lost:
            self.closing.close()

    def _give_up(self, answer: "Future[Any]") -> None:
        try:
            if self.cursor is not None:
                Thread(target=self.cursor.adbc_cancel, daemon=True).start()
                wait([answer], _GRACE)
        finally:
            with self._lock:
                self._is_lost = not answer.done()

    def close(self) -> None:
        self.ask(self.closing.close)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.cursor, name)
        return partial(self.ask, found) if callable(found) else found


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
        if not write:  # mode=ro would not let it undo what a killed writer has begun
            connection.execute("pragma query_only = on")
            connection.execute("pragma schema_version")  # fails if the file is not a database
            attach = sqlite3.SQLITE_ATTACH  # creates files
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
        connection = cursor.ask(partial(dbapi.connect, full, autocommit=autocommit))
        cursor.cursor = connection.cursor()
    except dbapi.Error as error:
        raise failure(url, error) from None
    cursor.closing.callback(connection.close)
    cursor.closing.callback(cursor.cursor.close)
    return dbapi, connection, cursor


def _limited(url: str) -> tuple[str, float]:
    """Return a URL for libpq, with the limits that it lacks, and the seconds to wait for an answer."""
    place, _, query = url.partition("?")
    given = dict(pair.split("=", 1) for pair in query.split("&") if pair)
    limit = given.pop("answer_timeout", str(_LIMITS["answer_timeout"]))
    if not re.fullmatch(r"\d{1,9}(\.\d+)?", limit):
        raise ParameterError("answer_timeout", "a number of seconds, or 0 for no limit", limit)
    given = {"connect_timeout": f"{_LIMITS['connect_timeout']:.0f}", **_KEEPALIVES, **given}
    return f"{place}?{'&'.join(f'{name}={value}' for name, value in given.items())}", float(limit)


def failure(url: str, error: Exception, where: str = "") -> DataError:
    """Return what the driver says as an error of the data, on one line, without passwords and the query."""
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
    pairs = [pair.partition("=") for pair in (parts["query"] or "").split("&")]
    found = [parts["password"] or "", *(value for key, _, value in pairs if "password" in unquote(key))]
    return {form for secret in found for form in (secret, unquote(secret)) if form}
