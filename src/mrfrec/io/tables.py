"""Tables of who-used-what → `Interactions`, or `Events` where the order of the rows counts.

Rows stream through in batches, so that reading holds a few times what the matrix takes, whatever the size of
the file.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np
import polars as pl
import scipy.sparse as sp

from mrfrec.checks import check_flag, check_number
from mrfrec.core.resources import Progress
from mrfrec.data.events import Events
from mrfrec.data.ids import Id, Ids, Texts
from mrfrec.data.interactions import Interactions, kept
from mrfrec.errors import DataError, ParameterError
from mrfrec.io.columns import check_that_rows_may_be_counted, find_roles, find_titles
from mrfrec.io.rows import Rows
from mrfrec.io.sources import Source, open_sources

__all__ = ["as_interactions", "read_events", "read_interactions", "read_users"]


def read_interactions(
    source: object,
    user: str | None = None,
    item: str | None = None,
    value: str | None = None,
    title: str | None = None,
    *,
    items: object = None,
    min_value: float | None = None,
    binary: bool = True,
    duplicates: Literal["sum", "last", "error"] = "sum",
    on_bad: Literal["refuse", "skip"] = "refuse",
    separator: str | None = None,
    columns: Sequence[str] | None = None,
    progress: Progress | None = None,
) -> Interactions:
    """Read a table with a row for each time a user used an item.

    Users and items come out in ascending order of their ids, so that the order of the rows changes nothing.

    Parameters
    ----------
    source
        A path or a pattern such as "logs/*.parquet", or a list of them: CSV, TSV and JSON lines (plain,
        .gz or .zst), Parquet, Arrow and Feather. Or a data frame of pandas, polars, pyarrow or another
        library. Or a `scipy.sparse` matrix of users × items.
    user, item, value, title
        Names of the columns; recognised where they are obvious (user_id, movieId, rating, …). Ids are
        integers or strings and stay what they are; in CSV files a column is integers if all of it is. Values
        are kept in single precision; a pair whose value is 0 is left out. Of several titles of one item, the
        first in the alphabet is taken.
    items
        A table of items, of any of these kinds, with ids and titles.
    min_value
        Leave out pairs whose value, duplicates combined, is below this: 4 keeps ratings of 4 and more. Users
        and items that have nothing left go with them.
    binary
        Every pair counts 1, whatever its value. With False it counts its value (or its rows, where the table
        has users and items only), and a value of 0 is no interaction.
    duplicates
        For several rows of one user and item: "sum" their values, keep the "last", or take it as an "error".
    on_bad
        A row without ids, with a value that is no number, or with too many fields: "refuse" the table and
        name the row, or "skip" it and count it in `Interactions.skipped`.
    separator
        Of text files; found out if None.
    columns
        Names of the columns of text files that have no header.
    progress
        Called as `progress("read", rows, 0)`.
    """
    _one_of("duplicates", duplicates, ("sum", "last", "error"))
    _one_of("on_bad", on_bad, ("refuse", "skip"))
    binary = check_flag("binary", binary)
    if min_value is not None:
        min_value = check_number("min_value", min_value, "a finite number or None", lambda x: abs(x) < 3e38)
    if progress is not None and not callable(progress):
        raise ParameterError("progress", "a function or None", progress)
    if isinstance(source, Interactions) or sp.issparse(source):
        given = {"user": user, "item": item, "value": value, "separator": separator, "columns": columns}
        for name, named in {**given, "title": title if items is None else None}.items():
            if named is not None:
                raise ParameterError(name, "None for a matrix", named, "It has no columns to name.")
        data = source if isinstance(source, Interactions) else Interactions(source)
        rows, matrix, users, known, titles = Rows(on_bad), data.matrix, data.users, data.items, data.titles
        library = data.library
    else:
        sources = open_sources(source, separator=separator, columns=columns)
        wants_values = value is not None or min_value is not None or not binary
        tables = [(table, _roles(table, user, item, value, title, items, wants_values)) for table in sources]
        without = [table.name for table, roles in tables if "value" not in roles]
        if without and len(without) < len(tables):
            raise DataError(f"{without[0]} has no column of values, but other files have. Read them apart.")
        rows = Rows(on_bad, as_text=any(table.is_text for table in sources))
        for table, roles in tables:
            rows.read(table, roles, progress)
        rows.finish()
        matrix, titles = rows.to_matrix(duplicates, counted=wants_values), rows.titles()
        users, known, library = rows.users.ids, rows.items.ids, sources[0].library
    if rows.read_rows or min_value is not None:
        matrix, users, known, titles = kept(matrix, users, known, titles, min_value, binary)
    if binary:
        ones = np.ones(matrix.nnz, np.float32)
        matrix = sp.csr_array((ones, matrix.indices, matrix.indptr), shape=matrix.shape)
    if items is not None:
        titles = _titles_from(items, known, item, title, rows)
    out = Interactions(matrix, users, known, titles)
    out.skipped, out.library = rows.skipped, library
    return out


def _roles(
    table: Source,
    user: str | None,
    item: str | None,
    value: str | None,
    title: str | None,
    items: object,
    wants_values: bool,
) -> dict[str, str]:
    roles = find_roles(table, user, item, value, title if items is None else None)
    roles.pop("time", None)
    if wants_values and "value" not in roles:
        check_that_rows_may_be_counted(table, roles)
    if items is not None:
        roles.pop("title", None)
    if not wants_values:
        roles.pop("value", None)
    return roles


def read_events(
    source: object,
    user: str | None = None,
    item: str | None = None,
    value: str | None = None,
    time: str | bool = False,
    title: str | None = None,
    *,
    items: object = None,
    min_value: float | None = None,
    on_bad: Literal["refuse", "skip"] = "refuse",
    separator: str | None = None,
    columns: Sequence[str] | None = None,
    progress: Progress | None = None,
) -> Events:
    """Read a table with a row for each time a user used an item, and keep the order of the rows.

    As `read_interactions`, with a few differences. `time` is the name of a column of times (numbers, dates,
    or texts such as 2019-12-08T10:30:00), or True for the one that is recognised. `min_value` leaves out
    rows, before anything else. Every pair counts 1, whatever its value; of several rows of a pair the first
    is kept, and the others are counted in `Events.repeated`.
    """
    _one_of("on_bad", on_bad, ("refuse", "skip"))
    if not isinstance(time, str | bool):
        raise ParameterError("time", "the name of a column, True or False", time)
    if min_value is not None:
        min_value = check_number("min_value", min_value, "a finite number or None", lambda x: abs(x) < 3e38)
    sources = open_sources(source, separator=separator, columns=columns)
    rows = Rows(on_bad, as_text=any(table.is_text for table in sources))
    tables = []
    for table in sources:
        named = time if isinstance(time, str) else None
        needed = ("user", "item", "time") if time else ("user", "item")
        roles = find_roles(table, user, item, value, title if items is None else None, named, needed)
        wanted = {"value": value is not None or min_value is not None, "time": time, "title": items is None}
        for role in [role for role, is_wanted in wanted.items() if not is_wanted]:
            roles.pop(role, None)
        if min_value is not None and "value" not in roles:
            raise ParameterError(
                "min_value", f"None for {table.name}, which has no column of values", min_value,
                "Or name that column: value=… (--value-column at the command line).",
            )  # fmt: skip
        tables.append((table, roles))
    without = [table.name for table, roles in tables if "value" not in roles]
    if without and len(without) < len(tables):
        raise DataError(f"{without[0]} has no column of values, but other files have. Read them apart.")
    for table, roles in tables:
        rows.read(table, roles, progress)
    rows.finish()
    events = rows.to_events()
    if min_value is not None:
        assert events.value is not None
        kept_rows = np.flatnonzero(events.value >= min_value)
        if not len(kept_rows):
            raise DataError(
                f"no events are left: all {len(events):,} rows have a value below min_value={min_value:g}."
            )
        events = events.take(kept_rows)
    events = events.first_of_each_pair()
    titles = events.titles if items is None else _titles_from(items, events.items, item, title, rows)
    return replace(events, titles=titles, skipped=rows.skipped, library=sources[0].library)


def as_interactions(data: object) -> Interactions:
    """What `fit` takes: interactions as they are, a matrix with its values, a table read with defaults."""
    if isinstance(data, Interactions):
        return data
    if sp.issparse(data) or isinstance(data, np.ndarray):
        return Interactions(data)
    return read_interactions(data)


def read_users(path: Path, known: Ids) -> list[Id]:
    """The ids in the user column of a table, as the type the known ones have."""
    found: list[Id] = []
    for source in open_sources(path):
        roles = {"user": find_roles(source, None, None, None, None, needed=("user",))["user"]}
        for batch in Rows("refuse").good(source, roles):
            texts = batch["user"].cast(pl.String)
            found += texts.to_list() if known.is_text else [known.parse(text, "user") for text in texts]
    return found


def _one_of(name: str, value: object, allowed: tuple[str, ...]) -> None:
    if not isinstance(value, str) or value not in allowed:
        raise ParameterError(name, " or ".join(f'"{choice}"' for choice in allowed), value)


def _titles_from(table: object, items: Ids, item: str | None, title: str | None, rows: Rows) -> Texts:
    """Titles of these items, out of a table of items: ids are compared as text."""
    places = {str(name): place for place, name in enumerate(items)}
    texts = [""] * len(items)
    for source in open_sources(table):
        for batch in rows.good(source, find_titles(source, item, title), prefix="items: "):
            named = batch.select(pl.col("item").cast(pl.String), "title").filter(pl.col("title") != "")
            for name, text in named.iter_rows():
                place = places.get(name)
                if place is not None:
                    texts[place] = min(texts[place] or text, text)
    if not any(texts):
        raise DataError("the table of items names none of the items that were used: are the ids the same?")
    return Texts.of(texts)
