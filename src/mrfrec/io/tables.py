"""Read tables of who-used-what into `Interactions`, or into `Events` where the order of the rows counts.

Rows stream through in batches, so that reading takes a few times the memory of the matrix, whatever the size
of the file.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import polars as pl
import scipy.sparse as sp

from mrfrec.checks import check_count, check_flag, check_number
from mrfrec.core.engine import Progress
from mrfrec.core.progress import shows_progress
from mrfrec.data.events import Events
from mrfrec.data.ids import Id, Ids, Texts
from mrfrec.data.interactions import Interactions, log_several_titles, only
from mrfrec.data.merging import retyped
from mrfrec.data.provenance import Origin
from mrfrec.errors import DataError, ParameterError
from mrfrec.io.batches import Source
from mrfrec.io.columns import check_that_rows_may_be_counted, find_roles, find_titles
from mrfrec.io.rows import RowReader
from mrfrec.io.sources import open_sources
from mrfrec.io.weighting import Duration, Moment, Weighting

_log = logging.getLogger("mrfrec")

Duplicates = Literal["sum", "max", "last", "first", "error"]
_DUPLICATES = ("sum", "max", "last", "first", "error")


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
    on_bad: Literal["refuse", "skip"] = "refuse",
    separator: str | None = None,
    columns: Sequence[str] | None = None,
    input_format: str | None = None,
    query: str | None = None,
    progress: "Progress | bool | None" = None,
) -> Interactions:
    """Read a table with a row for each time a user used an item.

    Users and items are returned in ascending order of their ids, whatever the order of the rows. Bad rows are
    refused or skipped first, then `min_value`, kinds of weight 0 and times drop rows, then `duplicates`
    combines the rows of each pair, then `max_history`, `min_users` and `min_items` drop users and items.
    `read_events` does the same.

    Parameters
    ----------
    source
        A path or a pattern such as "logs/*.parquet", or a list of them: CSV, TSV and JSON lines (plain,
        .gz or .zst), Parquet, Arrow and Feather; "-" is standard input. Or an open file. Or a data frame of
        pandas, polars, pyarrow or another library. Or a `scipy.sparse` matrix of users × items. Or, with
        `query`, the URL of a database: "postgresql://user@host/shop", "sqlite:///shop.db" or
        "duckdb:///shop.duckdb". Paths may also be URLs: http(s)://, s3://, gs://, az://.
    user, item, value, title
        Names of the columns; recognised if they are obvious (user_id, movieId, rating, …). Ids are
        integers or strings and keep their type; in text files a column is integers if all of it is. Values
        are kept in single precision. Of several titles of one item, the first in alphabetical order is taken.
    items
        A table of items, in any of these forms, with ids and titles.
    min_value
        Drop rows with a value below this: 4 keeps ratings of 4 and more.
    binary
        Let every pair count 1, whatever its value; the default for tables. With False it counts its value (or
        its number of rows, if the table has users and items only), and a pair whose value is 0 is no
        interaction; the default for a matrix and `Interactions`.
    event, event_weights
        Column of the kinds of events, and what an event of each kind counts: {"view": 0.2, "cart": 0.5,
        "buy": 1}. A row counts the weight, or its value times the weight with `binary=False`. Kinds without a
        weight are refused, unless there is one for "other"; a weight of 0 leaves the rows out.
    time
        Column of the times, for the parameters that follow: dates, texts such as 2019-12-08T10:30:00, or
        seconds or milliseconds since 1970. Times without a zone are taken as UTC.
    half_life
        Let a row count half after this time, a quarter after twice this time, …: "30d", "12h", "2w" or a
        `timedelta`. It multiplies what the row counts otherwise. After 20 half-lives, at a millionth, rows
        fade no more, so that an old purchase is not recommended again; `window` leaves old rows out.
    now
        The time from which ages are measured; later rows count in full. By default the latest time that
        `since` and `until` keep: the same table gives the same result on any day.
    since, until
        Leave out rows before `since`, and rows at `until` or later: "2026-11-16", "2026-11-16T10:30:00", a
        `datetime`, or seconds or milliseconds since 1970.
    window
        Leave out rows older than this, at `now`: "365d".
    duplicates
        For several rows of one user and item: "sum" what they count, or take the largest ("max"), the "last"
        or the "first" in the order of the table, or raise an "error". Rows of value 0 are passed over by
        "max" and "first".
    max_history
        Leave out users with more items than this.
    min_users
        Then leave out items with fewer users.
    min_items
        Then leave out users with fewer items; one pass each, as `Events.filtered` does.
    on_bad
        A row without ids, with a value that is no number, or with too many fields: "refuse" the table and
        name the row, or "skip" it and count it in `Interactions.skipped`.
    separator
        Separator of text files, of one character or more (then quotation marks mean nothing); detected if
        None.
    columns
        Names of the columns of text files that have no header.
    input_format
        "csv", "tsv", "jsonl", "parquet" or "arrow"; told by the name of the file if None.
    query
        SQL that returns the table from a database: "select user_id, sku, ts from orders". Rows count in the
        order in which they come, which databases fix only by `order by`: it matters for `duplicates` "first"
        and "last". Nothing can be changed by the query. A password is best left to PGPASSWORD or ~/.pgpass.
    progress
        True draws a bar on stderr. A function is called as `progress(stage, rows, total)`; the total is
        estimated from the bytes of text files, and 0 where it is not known.
    """
    assert not isinstance(progress, bool)
    has_columns = not (isinstance(source, Interactions) or sp.issparse(source))
    binary = has_columns if binary is None else binary
    min_value = _check_options(min_value, binary, duplicates, on_bad)
    weighting = Weighting.of(event_weights, half_life, now, since, until, window)
    named = {"user": user, "item": item, "value": value, "title": title if items is None else None}
    named |= {"event": event, "time": time}
    reading: dict[str, Any] = {"separator": separator, "columns": columns, "input_format": input_format}
    reading["query"] = query
    if not has_columns:
        of_rows = {"event_weights": event_weights, "half_life": half_life, "since": since, "until": until}
        for name, given in {**named, **reading, **of_rows, "window": window}.items():
            if given is not None:
                raise ParameterError(name, "None for a matrix", given, "It has no columns to name.")
        data = source if isinstance(source, Interactions) else Interactions(source)
        rows, library, origin = RowReader(on_bad), data.library, None
        parts = data.matrix, data.users, data.items, data.titles
        keep = None if min_value is None else data.matrix.data >= min_value
    else:
        if time is not None and not weighting.uses_times:
            rule = "None without half_life, window, since or until"
            raise ParameterError("time", rule, time, "Nothing else needs times here.")
        rows, library = _read(source, named, items, min_value, binary, weighting, on_bad, progress, **reading)
        rules = {
            "binary": None if binary else False, "min_value": min_value,
            "duplicates": None if duplicates == "sum" else duplicates, **weighting.rules(),
        }  # fmt: skip
        rules = {name: rule for name, rule in rules.items() if rule is not None}
        binary = rows.binary
        matrix, sums, times = rows.to_matrix(duplicates)
        origin = Origin(rules, rows.users.kind, rows.items.kind, sums, times)
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
    limits: dict[str, Any] = {"max_history": max_history, "min_users": min_users, "min_items": min_items}
    kept = out.filtered(**limits)
    if kept is out and out.origin is not None:  # later events may exceed the limits
        given = {name: int(limit) for name, limit in limits.items() if limit}
        out.origin = replace(out.origin, rules={**out.origin.rules, **given})
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
    min_value: float | None = None,
    binary: bool = True,
    event: str | None = None,
    event_weights: Mapping[str, float] | None = None,
    half_life: Duration | None = None,
    now: Moment | None = None,
    since: Moment | None = None,
    until: Moment | None = None,
    window: Duration | None = None,
    duplicates: Duplicates = "sum",
    on_bad: Literal["refuse", "skip"] = "refuse",
    separator: str | None = None,
    columns: Sequence[str] | None = None,
    input_format: str | None = None,
    query: str | None = None,
    progress: "Progress | bool | None" = None,
) -> Events:
    """Read a table with a row for each time a user used an item, and keep the order of the rows.

    The parameters are those of `read_interactions`, and so is the resulting matrix. A pair with several rows
    has the place and the time of the first one that `min_value` keeps; the others are counted in
    `Events.repeated`. To leave out users and items, see `Events.filtered`.

    Parameters
    ----------
    time
        Name of a column of times (numbers, dates, or texts such as 2019-12-08T10:30:00), or True for the one
        that is recognised.
    """
    assert not isinstance(progress, bool)
    if not isinstance(time, str | bool):
        raise ParameterError("time", "the name of a column, True or False", time)
    min_value = _check_options(min_value, binary, duplicates, on_bad)
    weighting = Weighting.of(event_weights, half_life, now, since, until, window)
    named = {"user": user, "item": item, "value": value, "title": title if items is None else None}
    named |= {"event": event, "time": time if isinstance(time, str) else None}
    reading: dict[str, Any] = {"separator": separator, "columns": columns, "input_format": input_format}
    reading["query"] = query
    timed = bool(time) or weighting.uses_times
    rows, library = _read(
        source, named, items, min_value, binary, weighting, on_bad, progress, timed=timed, **reading
    )
    events = rows.to_events(duplicates)
    titles = events.titles if items is None else _titles_from(items, events.items, item, title, rows)
    return replace(events, titles=titles, skipped=rows.skipped, library=library)


def check_reading(options: Mapping[str, Any]) -> None:
    """Check parameters of `read_interactions` as far as that can be done without data."""
    names = ("event_weights", "half_life", "now", "since", "until", "window")
    Weighting.of(**{name: options[name] for name in names if name in options})
    _check_options(
        options.get("min_value"), options.get("binary", True), options.get("duplicates", "sum"),
        options.get("on_bad", "refuse"),
    )  # fmt: skip
    for name in ("user", "item", "value", "title", "time", "event", "query"):
        if not isinstance(options.get(name, ""), str):
            raise ParameterError(name, "a text", options[name])
    for name in ("max_history", "min_users", "min_items"):
        if options.get(name) is not None:
            check_count(name, options[name], least=0)


def _check_options(min_value: float | None, binary: bool, duplicates: str, on_bad: str) -> float | None:
    for name, given, allowed in (
        ("duplicates", duplicates, _DUPLICATES),
        ("on_bad", on_bad, ("refuse", "skip")),
    ):
        if not isinstance(given, str) or given not in allowed:
            raise ParameterError(name, " or ".join(f'"{choice}"' for choice in allowed), given)
    check_flag("binary", binary)
    if min_value is None:
        return None
    return check_number("min_value", min_value, "a finite number or None", lambda x: abs(x) < 3e38)


def _read(
    source: object,
    named: dict[str, str | None],
    items: object,
    min_value: float | None,
    binary: bool,
    weighting: Weighting,
    on_bad: str,
    progress: Progress | None,
    *,
    timed: bool = False,
    **reading: Any,
) -> tuple[RowReader, str | None]:
    """Read the rows of all tables; return them, and the data frame library of the first table."""
    if named["event"] is not None and weighting.kinds is None:
        raise ParameterError(
            "event", "None without event_weights", named["event"], "Say what each kind counts."
        )
    sources = open_sources(source, **reading)
    uses_values = min_value is not None or not binary
    timed, kinds = timed or weighting.uses_times, weighting.kinds is not None
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
                raise ParameterError(
                    "min_value", f"None for {table.name}, which has no column of values", min_value,
                    "Or name that column: value=… (--value-column at the command line).",
                )  # fmt: skip
        if "value" in roles and not uses_values and not tables:
            _log.info(
                "column %r of %s is not used: every %s counts %s. To learn from its values: binary=False "
                "(--values at the command line).", roles["value"], table.name,
                *(("row", "its weight") if weighting.weighs else ("pair", "1")),
            )  # fmt: skip
        tables.append((table, {role: name for role, name in roles.items() if wanted.get(role, True)}))
    without = [table.name for table, roles in tables if "value" not in roles]
    if without and len(without) < len(tables):
        raise DataError(f"{without[0]} has no column of values, but other files have. Read them apart.")
    as_text = any(table.is_text for table in sources)
    rows = RowReader(on_bad, as_text=as_text, min_value=min_value, binary=binary, weighting=weighting)
    expected = [table.rows() for table in sources] if progress is not None else []
    rows.expected = 0 if None in expected else sum(count or 0 for count in expected)
    for table, roles in tables:
        rows.read(table, roles, progress)
    rows.finish()
    if progress is not None:
        progress("reading", rows.read_rows, rows.read_rows)
    return rows, sources[0].library


def as_interactions(data: object) -> Interactions:
    """Convert what `fit` takes: interactions as they are, a matrix with its values, a table with defaults."""
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
        for batch in RowReader("refuse").good(source, roles):
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
