"""Read tables of users and items into `Interactions`.

Rows stream through in batches, so that reading takes a few times the memory of the matrix, however large the
file is.
"""

import inspect
import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import polars as pl
import scipy.sparse as sp

from mrfrec.bars import showing
from mrfrec.checks import counted
from mrfrec.core.engine import Progress
from mrfrec.data.erasures import Erasures
from mrfrec.data.ids import Id, Ids
from mrfrec.data.interactions import Interactions, keep_pairs
from mrfrec.data.pairs import DataNote, Origin, What
from mrfrec.data.reading_options import (
    Duplicates,
    Duration,
    Format,
    MissingTime,
    Moment,
    OnBad,
    ReadingOptions,
    TableOptions,
    TextIds,
)
from mrfrec.data.times import IN_THE_FUTURE
from mrfrec.errors import DataError, ParameterError
from mrfrec.io.batches import OTHER, UNREAD, Source, reading
from mrfrec.io.columns import (
    UnreadColumn,
    UnreadEvents,
    check_that_rows_may_be_counted,
    find_roles,
    name_list,
    note_on_all_pairs,
    note_on_one_id,
    unread_columns,
)
from mrfrec.io.id_numbering import without_fractions
from mrfrec.io.item_table import read_item_rows, table_beside
from mrfrec.io.row_reader import RowReader
from mrfrec.io.sources import open_sources

_log = logging.getLogger("mrfrec")
_COLUMNS = ("user", "item", "value", "title", "event", "time")


def read_interactions(
    source: object,
    user: str | None = None,
    item: str | None = None,
    value: str | bool | None = None,
    title: str | None = None,
    *,
    items: object = None,
    min_value: float | None = None,
    binary: bool = True,
    event: str | None = None,
    event_weights: Mapping[str, float] | None = None,
    time: str | bool | None = None,
    now: Moment | None = None,
    since: Moment | None = None,
    until: Moment | None = None,
    window: Duration | None = None,
    duplicates: Duplicates = "sum",
    max_history: int | None = None,
    min_users: int = 0,
    min_items: int = 0,
    on_bad: OnBad = "refuse",
    missing_time: MissingTime | None = None,
    ids: TextIds | None = None,
    separator: str | None = None,
    columns: Sequence[str] | None = None,
    input_format: Format | None = None,
    query: str | None = None,
    progress: "Progress | bool | None" = None,
) -> Interactions:
    """Read a table with a row for each time a user used an item.

    Users and items are returned in ascending order of their ids. docs/reference/reading.md has each step.

    Parameters
    ----------
    source
        A path or a pattern such as "logs/*.parquet", or a list of them: CSV, TSV and JSON lines (plain,
        .gz or .zst), Parquet, Arrow and Feather; "-" is standard input. Or a folder of Parquet files, a URL
        (s3, gs, az), an open file, a data frame, or with `query` the URL of a database.
    user
        Column of the users, if its name does not tell. Ids are integers or strings and keep their type.
    item
        Column of the items, if its name does not tell.
    value
        Column of the values, for the options that need them: ratings, counts, plays. The options are
        `min_value` and `binary=False`. Values are kept in single precision. False says that every row is a
        like. Without it, a column of ratings, returns, labels or refunds that no option uses gives a warning.
    title
        Column of the items' titles. Of several titles of one item, the first in alphabetical order is taken.
    items
        Another table, of the items, their titles and further columns. It has any of the forms of `source`. A
        model keeps the columns, for filters.
    min_value
        Leave out rows with a value below this: 4 for ratings of 4 and more.
    binary
        Let every pair count 1, or its value. With False, a pair of a table of users and items only counts its
        rows, and a value of 0 is no interaction.
    event
        Column of the kinds of events, if its name does not tell.
    event_weights
        What an event of each kind counts: {"view": 0.2, "cart": 0.5, "buy": 1}. "other" names all other
        kinds. A weight of 0 leaves the rows out.
    time
        Column of the times, if its name does not tell; False reads none. Times are dates, texts in ISO 8601,
        or numbers: seconds since 1970, or smaller units. They are in UTC if they name no zone. The last time
        of each pair is kept, in `Interactions.times`. A row whose time cannot be read is a bad row. With True
        there must be a column of times.
    now
        Time from which `window` is measured, by default the latest time in the data.
    since
        Leave out rows before this time: "2026-11-16", "2026-11-16T10:30:00". A `datetime` is allowed, too.
    until
        Leave out rows at this time and later.
    window
        Leave out rows that are older than this at `now`: "365d", "12h", "2w". A `timedelta` is allowed, too.
    duplicates
        Combine several rows of one user and item: "sum" what they count, take the largest ("max"), the "last"
        or the "first" in the order of the table, or raise an "error". "max" and "first" pass over rows of
        value 0.
    max_history
        Leave out users with more items than this, such as robots.
    min_users
        Then leave out items with fewer users than this.
    min_items
        Then leave out users with fewer items than this. Each limit is applied once.
    on_bad
        Bad rows, such as those without ids: "refuse" the table, or "skip" the rows. The rows
        that were skipped are counted in `Interactions.skipped`.
    missing_time
        Let rows whose time is missing or cannot be read count as the "oldest". They are bad rows else.
    ids
        Ids that are texts, also where they look like integers: of "users", of "items", or "text" for both.
    separator
        Text between the columns of a text file, detected by default. With several characters, quotation marks
        mean nothing.
    columns
        Names of the columns of a text file without a header: ["user", "item", "plays"].
    input_format
        Format of the data, if the names of the files do not tell. Standard input needs it.
    query
        SQL that reads from a database: "select user_id, sku, ts from orders". It cannot change anything.
    progress
        True draws a bar. A function is called as `progress("reading", rows, total)`. The total of
        text is an estimate. It is 0 until the end where it is not known: for compressed text and databases.
    """
    return _interactions(dict(locals()), RowsBefore())


class RowsBefore(NamedTuple):
    """What is known when a table is read for a model that has data already, or at a known time.

    `columns` has the names of the columns of the first table by role; it is None for the first table itself.
    `oldest` is the oldest time of the data, and rows later than `latest` are bad; both are microseconds since
    1970. Rows of people in `erased` are left out. `text_ids` are the roles whose ids are texts
    in the data.
    """

    columns: Mapping[str, str] | None = None
    oldest: int | None = None
    latest: int | None = None
    erased: Erasures | None = None
    text_ids: Collection[str] = ()


def read_events(source: object, before: RowsBefore, **parameters: Any) -> Interactions:
    """Read a table as `read_interactions` does, knowing what came before.

    The table is read from the columns of the earlier one, where it has them; `parameters` may name others.
    With `missing_time="oldest"`, rows without a time get the oldest time of both tables.
    """
    bound = inspect.signature(read_interactions).bind(source, **parameters)
    bound.apply_defaults()
    return _interactions(bound.arguments, before)


def _interactions(parameters: Mapping[str, Any], before: RowsBefore) -> Interactions:
    """Read a table by the parameters of `read_interactions`."""
    item, title, items = (parameters[name] for name in ("item", "title", "items"))
    options = check_reading(parameters)
    named = {role: parameters[role] for role in _COLUMNS} | {"title": title if items is None else None}
    source, progress = parameters["source"], parameters["progress"]
    rows, library, names = _read_rows(source, named, items, options, progress, before)
    share_skipped = sum(rows.skipped.values()) / rows.read_rows
    matrix, sums, times = rows.to_matrix(options.duplicates)
    limits = {name: int(limit) for name, limit in options.limits().items() if limit}
    # Limits that nobody exceeds yet are kept too, since later events may exceed them.
    rules = {**options.rules(), **limits}
    origin = Origin(rules, rows.users.type, rows.items.type, sums, times, columns=names)
    users = rows.users.ids
    item_ids = rows.items.ids
    is_recognised = named["title"] is None and "title" not in (before.columns or ())
    titles = rows.titles(names.get("title") if is_recognised else None)
    if titles is None:
        names = {role: name for role, name in names.items() if role != "title"}
    if before.columns is None:
        for role, ids in (("user", rows.users.ids), ("item", rows.items.ids)):
            if note := note_on_one_id(role, names[role], len(ids), rows.kept_rows):
                rows.note(note)
        if rows.is_binary and (note := note_on_all_pairs(len(users), len(item_ids), matrix.nnz)):
            rows.note(note)
        for column in rows.unread.values():
            if note := column.note():
                rows.note(note)
            elif isinstance(column, UnreadColumn) and column.holds_values:
                _log.info("%s is not used: %s", column.column, column.ways())
    origin = replace(origin, columns=names)
    if rows.is_binary:
        matrix = matrix.astype(np.float32)
    elif not (keep := matrix.data != 0).all():
        if not keep.any():
            raise DataError(f"no interactions are left: all {len(keep):,} pairs have a value that is 0.")
        matrix, users, item_ids, titles = keep_pairs(matrix, users, item_ids, titles, keep)
        origin = replace(origin.only(keep), sets_to_zero=True)
    table = None
    if items is not None:
        read = read_item_rows(items, item, title=title, beside=rows, ids_are_text=item_ids.is_text)
        table = table_beside(read, {})
        titles = table.titles_for(item_ids, None, is_new=False)
    for why, count in rows.skipped.items():
        what: What = "rows ahead" if why == IN_THE_FUTURE else "skipped rows"
        rows.note(DataNote(what, count, f"left out {counted(count, 'row')}: {why}"))
    out = Interactions(matrix, users, item_ids, titles, copy=False).replace(
        notes=tuple(rows.notes),
        skipped=rows.skipped,
        share_skipped=share_skipped,
        unused=rows.unused,
        library=library,
        origin=origin,
        table=table,
        erased=before.erased or Erasures(),
    )
    return out.filtered(**options.limits())


def check_reading(parameters: Mapping[str, Any]) -> TableOptions:
    """Check the parameters of `read_interactions` as far as possible without data."""
    return TableOptions.of(
        **{name: parameters[name] for name in TableOptions.model_fields if name in parameters}
    )


def _read_rows(
    source: object,
    named: dict[str, Any],
    items: object,
    options: ReadingOptions,
    progress: "Progress | bool | None",
    before: RowsBefore,
) -> tuple[RowReader, str | None, dict[str, str]]:
    """Read the rows of all tables; also return the data frame library and the columns of the first one."""
    sources = open_sources(source, options)
    min_value = options.min_value
    uses_values = options.uses_values
    time = named["time"]
    needs_times = options.uses_times or isinstance(time, str) or time is True
    uses_kinds = options.event_weights is not None
    wanted = {"value": uses_values, "title": items is None}
    needs_column = needs_times and options.missing_time is None
    needed = ("user", "item", *(["time"] if needs_column else []), *(["event"] if uses_kinds else []))
    ignores_values = named["value"] is False
    uses = {"time": time is not False, "value": uses_values, "event": uses_kinds}
    compared = ("user", "item", *(role for role, is_used in uses.items() if is_used))
    tables: list[tuple[Source, dict[str, str]]] = []
    names: dict[str, str] = {}
    rows = RowReader(options, latest=before.latest, oldest=before.oldest, erased=before.erased)
    for ids in (rows.users, rows.items):
        ids.joins_texts = ids.role in before.text_ids
    for table in sources:
        roles = find_roles(table, named, needed, before.columns, compared)
        counts = "its weight" if options.rows_have_weights else "as a like"
        is_looked_at = before.columns is None and not (ignores_values or tables)
        if not uses_kinds and (kinds := roles.pop("event", None)) is not None:
            rows.unused[kinds] = "event_weights={…}"
            if is_looked_at:
                rows.unread[kinds] = UnreadEvents(kinds, table.name, counts)
        if time is False:
            roles.pop("time", None)
        if ignores_values:
            roles.pop("value", None)
        if uses_values and "value" not in roles:
            check_that_rows_may_be_counted(table, roles)
            if min_value is not None:
                rule = f"left out for {table.name}, which has no column of values"
                advice = "Or name that column: value=… (--value-column)."
                raise ParameterError("min_value", rule, min_value, advice)
        if "value" in roles and not uses_values and not tables:
            rows.unused[roles["value"]] = "min_value=… or binary=False"
        if is_looked_at and not uses_values:
            for name in unread_columns(table, roles):
                holds_values = name == roles.get("value")
                rows.unread[name] = UnreadColumn(name, table.name, counts, holds_values=holds_values)
        read = {role: name for role, name in roles.items() if wanted.get(role, True)}
        others = [name for name in table.columns if name not in roles.values()]
        if others and not tables:
            used = ", ".join(f"{role} {name!r}" for role, name in read.items() if role in _COLUMNS)
            _log.info("columns of %s: %s; not read: %s", table.name, used, name_list(others))
        names = names or {role: name for role, name in read.items() if role in _COLUMNS}
        read |= {f"{UNREAD}{name}": name for name in rows.unread if name in table.columns}
        tables.append((table, read))
    without = [table.name for table, roles in tables if "value" not in roles]
    if without and len(without) < len(tables):
        raise DataError(f"{without[0]} has no column of values, but other files have. Read them apart.")
    untimed = [table.name for table, roles in tables if "time" not in roles]
    if untimed and options.missing_time is not None:
        if len(untimed) == len(tables) and before.oldest is None:
            rule = f"left out for {untimed[0]}, which has no column of times"
            raise ParameterError("missing_time", rule, options.missing_time, "Or name it: time=….")
        rows.fills_times = True
    elif untimed and len(untimed) < len(tables):
        raise DataError(
            f"{untimed[0]} has no column of times, but other files have. Name it: time=… of "
            'read_interactions (--time-column). Let its rows count as the oldest: missing_time="oldest" '
            "(--missing-time oldest). Or read no times: time=False (--time-column no)."
        )
    with showing(progress) as report:
        if report is not None:
            rows.expected = _expected_rows(sources)
        for table, roles in tables:
            rows.read(table, roles, report)
        rows.finish()
        if report is not None:
            report("reading", rows.read_rows, rows.read_rows)
    return rows, sources[0].library, names


def _expected_rows(tables: Sequence[Source]) -> int:
    """Return about how many rows all tables have together, or 0 if that is unknown."""
    counts = []
    for table in tables:
        with reading(table.name):
            counts.append(table.rows())
    return sum(counts) if all(counts) else 0


def as_interactions(data: object, times: object = None) -> Interactions:
    """Convert data for `fit`: a matrix keeps its values, a table is read with the default options.

    Only a matrix takes `times`.
    """
    if times is not None and not sp.issparse(data):
        advice = "Interactions and tables have their own: read_interactions(…, time=…)."
        raise ParameterError(
            "times", "None unless the data is a scipy.sparse matrix", type(times).__name__, advice
        )
    if isinstance(data, Interactions):
        return data
    if sp.issparse(data) or isinstance(data, np.ndarray):
        return Interactions(data, times=times)
    return read_interactions(data)


def read_users(path: Path, known: Ids, user: str | None = None) -> list[Id]:
    """Read the column of users of a table, as ids of the type of the known ones."""
    users: list[Id] = []
    for source in open_sources(path):
        found = find_roles(source, {"user": user}, needed=("user",), compared=("user",))
        roles = {role: name for role, name in found.items() if role == "user" or role.startswith(OTHER)}
        rows = RowReader()
        for batch in rows.good_rows(source, roles):
            texts = _id_texts(batch, "user", source, known, rows)
            users += texts.to_list() if known.is_text else [known.parse(text, "user") for text in texts]
    return users


def _id_texts(batch: pl.DataFrame, role: str, source: Source, known: Ids, rows: RowReader) -> pl.Series:
    """Return ids as texts, as they compare with the known ones."""
    texts = batch[role].cast(pl.String)
    if source.is_text and not known.is_text:
        texts, note = without_fractions(texts, role)
        if note is not None:
            rows.note(note)
    return texts
