"""Connect to PostgreSQL, SQLite and DuckDB by URL, without ever showing a password.

    postgresql://user:password@host:5432/database
    sqlite:///relative/file.db        sqlite:////absolute/file.db
    duckdb:///relative/file.duckdb    duckdb:////absolute/file.duckdb

libpq finds what the URL of a PostgreSQL does not say where it always does: PGHOST, PGUSER, PGPASSWORD,
~/.pgpass, PGPASSFILE, service files.
"""

import re
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

from mrfrec.errors import DataError, MissingLibraryError, ParameterError

_FILES = ("sqlite", "duckdb")
_SCHEMES = ("postgresql", "postgres", *_FILES)
_TARGETS = "a file, or the URL of a database: postgresql://…, sqlite:///… or duckdb:///…"
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


def shown(url: str) -> str:
    """Return a URL as it may be shown: without its password, its query, or anything if it is malformed."""
    scheme, mark, rest = url.partition("://")
    if not mark or scheme in _FILES:
        return url
    if scheme in _SCHEMES:
        parts = _POSTGRES.fullmatch(url)
        return f"{scheme}://{parts['place']}" if parts else f"{scheme}://…"
    place, _, query = rest.partition("?")
    return f"{scheme}://{'…' if '@' in query else place.rpartition('@')[2]}"


def refuse_url(path: object, rule: str = _TARGETS) -> None:
    """Refuse a URL in place of a file, also one of which `Path` has made `s3:/bucket`; show no password."""
    if re.match(r"[A-Za-z][\w+.-]+:/", str(path)):
        raise ParameterError("path", rule, shown(re.sub(":/+", "://", str(path), count=1)))


@contextmanager
def connect(url: str, *, write: bool = False, autocommit: bool = False) -> Iterator[Any]:
    """Open a database by its URL and yield a cursor of its driver.

    The block is one transaction: committed at its end, rolled back if it raises. With `autocommit` each
    statement is one, until the caller begins another. What the driver raises becomes a `DataError` without
    passwords. Only with `write` may files be changed, or created if they are missing.
    """
    driver, connection = _opened(url, write, autocommit)
    try:
        # A cursor of DuckDB is another connection, with its own transaction; the connection acts as one.
        cursor = connection if url.startswith("duckdb") else connection.cursor()
        with closing(connection), closing(cursor):
            if url.startswith(_FILES) and not autocommit:
                cursor.execute("begin immediate" if write and url.startswith("sqlite") else "begin")
            elif not (write or autocommit):
                cursor.execute("set transaction read only")
            yield cursor
            if not autocommit:
                connection.commit()
    except driver.Error as error:
        raise failure(url, error) from None


def _opened(url: str, write: bool, autocommit: bool) -> tuple[Any, Any]:
    """Return the driver and an open connection."""
    scheme, _, rest = url.partition("://")
    if scheme in _FILES:
        path = Path(rest[1:])
        if not rest.startswith("/") or rest == "/":
            rule = f"{scheme}:///file.db, or with a fourth slash an absolute path"
            raise ParameterError("the URL of the database", rule, url)
        if not (path.is_file() or (write and path.parent.is_dir())):
            raise DataError(
                f"{url}: there is no {'folder' if write else 'file'} {path.parent if write else path}."
            )
    else:
        parts = _POSTGRES.fullmatch(url)
        if parts is None or re.search("%(?![0-9a-fA-F]{2})", url):
            raise ParameterError(
                "the URL of the database", "postgresql://user:password@host:port/database", shown(url),
                "In a password, write @ as %40, / as %2F, ? as %3F, % as %25 and & as %26.",
            )  # fmt: skip
    driver: Any
    try:
        if scheme == "sqlite":
            import sqlite3

            driver = sqlite3
        elif scheme == "duckdb":
            import duckdb

            driver = duckdb
        else:
            from adbc_driver_postgresql import dbapi

            driver = dbapi
    except ImportError:
        raise MissingLibraryError(f'{scheme}:// needs a driver: pip install "mrfrec[sql]".') from None
    try:
        if scheme == "sqlite":
            file = f"file:{quote(str(path))}?mode={'rwc' if write else 'rw'}"
            connection = driver.connect(file, uri=True, isolation_level=None, check_same_thread=False)
            if not write:  # mode=ro would not let it undo what a killed writer has begun
                connection.execute("pragma query_only = on")
                connection.execute("pragma schema_version")  # fails if the file is not a database
                attach = driver.SQLITE_ATTACH  # creates files
                connection.set_authorizer(lambda action, *_: int(action == attach))
            return driver, connection
        if scheme == "duckdb":
            connection = driver.connect(str(path), read_only=not write)
            connection.execute("set enable_progress_bar = false")  # it would be printed
            return driver, connection
        return driver, driver.connect(url, autocommit=autocommit)
    except driver.Error as error:
        raise failure(url, error) from None


def failure(url: str, error: Exception, where: str = "") -> DataError:
    """Return what the driver says as an error of the data, on one line, without passwords and the query."""
    echo = r"\n(LINE \d+:[^\n]*\n *\^+|Query was:.*)|\s*\. SQLSTATE: \w+"
    text = re.sub(echo, "", str(error), flags=re.DOTALL)
    text = re.sub(r"^.*?ERROR: ", "", " ".join(text.split()))
    for secret in sorted(_secrets(url), key=len, reverse=True):
        text = text.replace(secret, "***")
    return DataError(f"{shown(url)}{where}: {text[:500].rstrip('.')}.")


def _secrets(url: str) -> set[str]:
    parts = _POSTGRES.fullmatch(url)
    if parts is None:
        return set()
    pairs = [pair.partition("=") for pair in (parts["query"] or "").split("&")]
    found = [parts["password"] or "", *(value for key, _, value in pairs if "password" in unquote(key))]
    return {form for secret in found for form in (secret, unquote(secret)) if form}
