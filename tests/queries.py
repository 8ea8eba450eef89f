"""Run SQL in the database of a URL."""

from typing import Any

from mrfrec.io.databases import connect


def fetch(url: str, query: str) -> list[Any]:
    """Return the rows of a query."""
    with connect(url) as cursor:
        return list(cursor.execute(query).fetchall())


def execute(url: str, *statements: str) -> None:
    """Execute statements in one transaction."""
    with connect(url, write=True) as cursor:
        for statement in statements:
            cursor.execute(statement)
