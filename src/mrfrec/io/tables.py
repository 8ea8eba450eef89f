"""Read tables of users and items into `Interactions`, or into `Events` where the order of the rows counts.

Rows stream through in batches, so that reading takes a few times the memory of the matrix, whatever the size
of the file.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import scipy.sparse as sp

from mrfrec.core.engine import Progress
from mrfrec.core.progress import shows_progress
from mrfrec.data.events import Events
from mrfrec.data.ids import Id, Ids, Texts
from mrfrec.data.interactions import Interactions, log_several_titles, only
from mrfrec.data.merging import retyped
from mrfrec.data.provenance import Origin
from mrfrec.data.reading import Duplicates, Duration, Format, Moment, OnBad, ReadingOptions
from mrfrec.errors import DataError, ParameterError
from mrfrec.io.batches import Source
from mrfrec.io.columns import check_that_rows_may_be_counted, find_roles, find_titles
from mrfrec.io.row_reader import RowReader
from mrfrec.io.sources import open_sources

_log = logging.getLogger("mrfrec")
_COLUMNS = ("user", "item", "value", "title", "event", "time")


@shows_progress
def read_interactions(
    source: object,
    user: str | None = None,
    item: str | None = None,
    value: str | None = None,
    title: str | None = None,
    *,
    items: object = None,
    min_value: float | None = None,
    binary: bool | None = None,
    event: str | None = None,
    event_weights: Mapping[str, float] | None = None,
    time: str | None = None,
    half_life: Duration | None = None,
    now: Moment | None = None,
    since: Moment | None = None,
    until: Moment | None = None,
    window: Duration | None = None,
    duplicates: Duplicates = "sum",
    max_history: int | None = None,
    min_users: int = 0,
    min_items: int = 0,
    on_bad: OnBad = "refuse",
    separator: str | None = None,
    columns: Sequence[str] | None = None,
    input_format: Format | None = None,
    query: str | None = None,
    progress: "Progress | bool | None" = None,
) -> Interactions:
    """Read a table with a row for each time a user used an item.

    Users and items are returned in ascending order of their ids, whatever the order of the rows. Bad rows are
    refused or skipped first, then `min_value`, kinds of weight 0 and times drop rows, then `duplicates`
    combines the rows of each pair, then `max_history`, `min_users` and `min_items` drop users and items.

    Parameters
    ----------
    source
        A path or a pattern such as "logs/*.parquet", or a list of them: CSV, TSV and JSON lines (plain,
        .gz or .zst), Parquet, Arrow and Feather; "-" is standard input. Or an open file. Or a data frame of
        pandas, polars, pyarrow or another library. Or a `scipy.sparse` matrix of users × items. Or, with
        `query`, the URL of a database: "postgresql://user@host/shop", "sqlite:///shop.db" or
        "duckdb:///shop.duckdb". Paths may also be URLs: http(s)://, s3://, gs://, az://.
    user
        Column of the users, if its name does not tell. Names such as user_id are recognised. Ids are integers
        or strings and keep their type; in text files a column is integers if all of it is.
    item
        Column of the items, if its name does not tell. Names such as movieId are recognised.
    value
        Column of the values: ratings, counts, plays. Values are kept in single precision.
    title
        Column of the items' titles. Of several titles of one item, the first in alphabetical order is taken.
    items
        Another table, of the items and their titles. It has any of the forms of `source`.
    min_value
        Leave out rows with a value below this: 4 for ratings of 4 and more.
    binary
        Let every pair count 1, or its value. True is the default for tables. With False a pair counts its
        value, or its number of rows if the table has users and items only, and a pair whose value is 0 is no
        interaction; this is the default for a matrix and `Interactions`.
    event
        Column of the kinds of events, if its name does not tell.
    event_weights
        What an event of each kind counts: {"view": 0.2, "cart": 0.5, "buy": 1}. A row counts the weight, or
        its value times the weight with `binary=False`. Kinds without a weight are refused, unless there is a
        weight for "other"; a weight of 0 leaves the rows out.
    time
        Column of the times, for the options that need them. Times are dates, texts such as
        2019-12-08T10:30:00, or seconds or milliseconds since 1970. Times without a zone are taken as UTC.
    half_life
        Let rows count half after this time: "30d", "12h", "2w". They count a quarter after twice this time,
        and so on; a `timedelta` is allowed, too. The factor multiplies the other weights of a row. After
        20 half-lives, at a millionth, rows fade no more, so that an old purchase is not recommended again;
        `window` leaves old rows out.
    now
        Time from which ages are measured, by default the latest time in the data. Later rows count in full.
        The default is the latest time that `since` and `until` keep, so that the same table gives the same
        result on any day.
    since
        Leave out rows before this time: "2026-11-16", "2026-11-16T10:30:00". A `datetime`, or seconds or
        milliseconds since 1970, are allowed, too.
    until
        Leave out rows at this time and later.
    window
        Leave out rows that are older than this at `now`: "365d".
    duplicates
        Combine several rows of one user and item: "sum" what they count, take the largest ("max"), the "last"
        or the "first" in the order of the table, or raise an "error". "max" and "first" pass over rows of
        value 0.
    max_history
        Leave out users with more items than this, such as robots.
    min_users
        Then leave out items with fewer users than this.
    min_items
        Then leave out users with fewer items than this. Each limit is applied once, as by `Events.filtered`.
    on_bad
        Bad rows, without ids or without a number as value: "refuse" the table, or "skip" the rows. The error
        names the first bad row; `Interactions.skipped` counts the rows that were skipped. A row with too many
        fields is bad, too.
    separator
        Text between the columns of a text file, detected by default. It has one character or more; with more,
        quotation marks mean nothing.
    columns
        Names of the columns of a text file without a header: ["user", "item", "plays"].
    input_format
        Format of the data, if the names of the files do not tell. Standard input needs it.
    query
        SQL that reads from a database: "select user_id, sku, ts from orders". Rows count in the order in
        which they come, which databases fix only by `order by`: it matters for `duplicates` "first" and
        "last". The query cannot change anything. A password is best left to PGPASSWORD or ~/.pgpass.
    progress
        True draws a bar on stderr. A function is called as `progress(stage, rows, total)`; the total is
        estimated from the bytes of text files, and 0 where it is not known.
    """
    given = dict(locals())
    assert not isinstance(progress, bool)
    has_columns = not (isinstance(source, Interactions) or sp.issparse(source))
    given["binary"] = has_columns if binary is None else binary
    options = _options(given)
    named = {role: given[role] for role in _COLUMNS} | {"title": title if items is None else None}
    if not has_columns:
        for role, name in named.items():
            if name is not None:
                raise ParameterError(role, "left out for a matrix", name, "It has no columns to name.")
        options.check_matrix()
        data = source if isinstance(source, Interactions) else Interactions(source)
        rows, library, origin, binary = RowReader(options), data.library, None, options.binary
        parts = data.matrix, data.users, data.items, data.titles
        keep = None if options.min_value is None else data.matrix.data >= options.min_value
    else:
        if time is not None and not options.uses_times:
            rule = "left out without half_life, window, since or until"
            raise ParameterError("time", rule, time, "Nothing else needs times here.")
        rows, library = _read(source, named, items, options, progress)
        binary = rows.is_binary
        matrix, sums, times = rows.to_matrix(duplicates)
        origin = Origin(options.rules(), rows.users.kind, rows.items.kind, sums, times)
        parts = matrix, rows.users.ids, rows.items.ids, rows.titles()
        keep = None if binary else matrix.data != 0
    if keep is not None and not (rows.read_rows and keep.all()):
        if not keep.any():
            what = "0" if min_value is None or rows.read_rows else f"below min_value={min_value:g}"
            raise DataError(f"no interactions are left: all {len(keep):,} pairs have a value that is {what}.")
        parts = only(*parts, keep)
        origin = origin and replace(origin.only(keep), sets_to_zero=True)
    matrix, users, known, titles = parts
    if binary:
        ones = np.ones(matrix.nnz, np.float32)
        matrix = sp.csr_array((ones, matrix.indices, matrix.indptr), shape=matrix.shape)
    if items is not None:
        titles = _titles_from(items, known, item, title, rows)
    out = Interactions(matrix, users, known, titles, copy=False)
    out.skipped, out.library, out.origin = rows.skipped, library, origin
    out = retyped(out) if origin is not None and origin.sets_to_zero else out
    kept = out.filtered(**options.limits())
    if kept is out and out.origin is not None:  # later events may exceed the limits
        limits = {name: int(limit) for name, limit in options.limits().items() if limit}
        out.origin = replace(out.origin, rules={**out.origin.rules, **limits})
    return kept


@shows_progress
def read_events(
    source: object,
    user: str | None = None,
    item: str | None = None,
    value: str | None = None,
    time: str | bool = False,
    title: str | None = None,
    *,
    items: object = None,
    event: str | None = None,
    progress: "Progress | bool | None" = None,
    **options: Any,
) -> Events:
    """Read a table with a row for each time a user used an item, and keep the order of the rows.

    Rows are read and counted as by `read_interactions`, with the same parameters except `max_history`,
    `min_users` and `min_items`, for which there is `Events.filtered`. A pair with several rows has the place
    and the time of the first row that `min_value` keeps; the others are counted in `Events.repeated`.

    Parameters
    ----------
    time
        Name of a column of times (numbers, dates, or texts such as 2019-12-08T10:30:00), or True for the one
        that is recognised.
    options
        Further parameters of `read_interactions`.
    """
    assert not isinstance(progress, bool)
    if not isinstance(time, str | bool):
        raise ParameterError("time", "the name of a column, True or False", time)
    reading = ReadingOptions(**options)
    for name, limit in reading.limits().items():
        if limit:
            raise ParameterError(name, "left out for events", limit, "Use Events.filtered.")
    named = {"user": user, "item": item, "value": value, "title": title if items is None else None}
    named |= {"event": event, "time": time if isinstance(time, str) else None}
    rows, library = _read(source, named, items, reading, progress, timed=bool(time))
    events = rows.to_events(reading.duplicates)
    titles = events.titles if items is None else _titles_from(items, events.items, item, title, rows)
    return replace(events, titles=titles, skipped=rows.skipped, library=library)


def check_reading(given: Mapping[str, Any]) -> ReadingOptions:
    """Check parameters of `read_interactions` as far as that can be done without data."""
    for name in _COLUMNS:
        if not isinstance(given.get(name, ""), str):
            raise ParameterError(name, "a text", given[name])
    return _options(given)


def _options(given: Mapping[str, Any]) -> ReadingOptions:
    names = [field.name for field in fields(ReadingOptions) if field.name in given]
    return ReadingOptions(**{name: given[name] for name in names})


def _read(
    source: object,
    named: dict[str, str | None],
    items: object,
    options: ReadingOptions,
    progress: Progress | None,
    *,
    timed: bool = False,
) -> tuple[RowReader, str | None]:
    """Read the rows of all tables; return them, and the data frame library of the first table."""
    if named["event"] is not None and options.event_weights is None:
        advice = "Say what each kind counts."
        raise ParameterError("event", "left out without event_weights", named["event"], advice)
    sources = open_sources(source, options)
    min_value, uses_values = options.min_value, options.min_value is not None or not options.binary
    timed, kinds = timed or options.uses_times, options.event_weights is not None
    wanted = {"value": uses_values, "time": timed, "title": items is None}
    needed = ("user", "item", *(["time"] if timed else []), *(["event"] if kinds else []))
    tables: list[tuple[Source, dict[str, str]]] = []
    for table in sources:
        roles = find_roles(table, named, needed)
        if not kinds:
            roles.pop("event", None)
        if uses_values and "value" not in roles:
            check_that_rows_may_be_counted(table, roles)
            if min_value is not None:
                rule = f"left out for {table.name}, which has no column of values"
                raise ParameterError("min_value", rule, min_value, "Or name that column: value=….")
        if "value" in roles and not uses_values and not tables:
            _log.info(
                "column %r of %s is not used: every %s counts %s. To learn from its values: binary=False.",
                roles["value"], table.name, *(("row", "its weight") if options.weighs else ("pair", "1")),
            )  # fmt: skip
        tables.append((table, {role: name for role, name in roles.items() if wanted.get(role, True)}))
    without = [table.name for table, roles in tables if "value" not in roles]
    if without and len(without) < len(tables):
        raise DataError(f"{without[0]} has no column of values, but other files have. Read them apart.")
    as_text = any(table.is_text for table in sources)
    rows = RowReader(options, as_text=as_text)
    expected = [table.rows() for table in sources] if progress is not None else []
    rows.expected = 0 if None in expected else sum(count or 0 for count in expected)
    for table, roles in tables:
        rows.read(table, roles, progress)
    rows.finish()
    if progress is not None:
        progress("reading", rows.read_rows, rows.read_rows)
    return rows, sources[0].library


def as_interactions(data: object) -> Interactions:
    """Convert data for `fit`: interactions as they are, a matrix with its values, a table with defaults."""
    if isinstance(data, Interactions):
        return data
    if sp.issparse(data) or isinstance(data, np.ndarray):
        return Interactions(data)
    return read_interactions(data)


def read_users(path: Path, known: Ids) -> list[Id]:
    """Read the user column of a table, as ids of the type of the known ones."""
    users: list[Id] = []
    for source in open_sources(path):
        roles = {"user": find_roles(source, {}, needed=("user",))["user"]}
        for batch in RowReader().good(source, roles):
            texts = batch["user"].cast(pl.String)
            users += texts.to_list() if known.is_text else [known.parse(text, "user") for text in texts]
    return users


def _titles_from(table: object, items: Ids, item: str | None, title: str | None, rows: RowReader) -> Texts:
    """Look up the titles of these items in a table of items, comparing ids as text."""
    places = {str(name): place for place, name in enumerate(items)}
    texts, several = [""] * len(items), list[int]()
    for source in open_sources(table):
        for batch in rows.good(source, find_titles(source, item, title), prefix="items: "):
            named = batch.select(pl.col("item").cast(pl.String), "title").filter(pl.col("title") != "")
            for name, text in named.iter_rows():
                place = places.get(name)
                if place is not None:
                    if texts[place] not in ("", text):
                        several.append(place)
                    texts[place] = min(texts[place] or text, text)
    log_several_titles(items, several)
    if not any(texts):
        raise DataError("the table of items names none of the items that were used: are the ids the same?")
    return Texts.of(texts)
