"""Which events a night reads: {date}, {yesterday} and {since} in a job, and which events no night has read.

In mode "update" there are two ways. If the source of a job names {since}, a night reads it from some time
before the latest event of the published model on. Else it reads a day at a time, and the name of the batch
has {date} or {yesterday}. The published model tells where the last night ended, by the times of its pairs or
by the names of its batches.
"""

from collections.abc import Callable, Collection, Mapping
from datetime import UTC, date, datetime, timedelta
from typing import Any

from mrfrec.data.interactions import Interactions
from mrfrec.data.reading_options import ReadingOptions, duration
from mrfrec.data.times import Times, shown
from mrfrec.errors import ParameterError

SINCE, DATE, YESTERDAY = "{since}", "{date}", "{yesterday}"
# {since} stands for this time while nothing is published.
BEGINNING = "1970-01-01 00:00:00Z"
DAY = 86_400_000_000  # microseconds
_OVERLAP = "1d"
_LONGEST_GAP = 400  # days before tonight in which the last batch may be


def day_of(text: str | None) -> date:
    """Return the day that {date} stands for: the day in `text`, or today (UTC)."""
    try:
        day = datetime.now(UTC).date() if text is None else date.fromisoformat(text)
        # The first day of all has no {yesterday}.
        _ = day - timedelta(days=1)
    except (TypeError, ValueError, OverflowError):
        raise ParameterError("date", "a date such as 2026-11-16", text) from None
    if day > datetime.now(UTC).date() + timedelta(days=1):
        raise ParameterError("date", "at most tomorrow (UTC)", text, "Its events are still to come.")
    return day


def filled(content: Any, day: date, since: str | None = None) -> Any:
    """Return a text, list or table whose texts have dates in place of {date} and {yesterday}.

    {since} is replaced, too, if it is known.
    """
    if isinstance(content, dict):
        return {name: filled(value, day, since) for name, value in content.items()}
    if isinstance(content, list):
        return [filled(value, day, since) for value in content]
    if not isinstance(content, str):
        return content
    text = content.replace(DATE, str(day)).replace(YESTERDAY, str(day - timedelta(days=1)))
    return text if since is None else text.replace(SINCE, since)


def with_batch(content: dict[str, Any]) -> dict[str, Any]:
    """Return the content of a job, with the usual name of the batch if its source is read by days."""
    source = content.get("source")
    if not isinstance(source, dict) or source.get("mode") != "update" or "batch" in source:
        return content
    named = [word for word in (YESTERDAY, DATE) if word in str(source)]
    if not named or SINCE in str(source):
        return content
    return {**content, "source": {**source, "batch": named[0]}}


def check_range(source: Mapping[str, Any], options: ReadingOptions) -> None:
    """Raise if nobody would notice a lost night, or if rows that count would be read twice.

    `source` is the section [source] as it is written in the job.
    """
    mode, batch, overlap = (source.get(name) for name in ("mode", "batch", "overlap"))
    if SINCE not in str(source):
        if overlap is not None:
            raise ParameterError("source.overlap", "left out where the source does not name {since}", overlap)
        if mode == "update" and not any(word in str(batch) for word in (DATE, YESTERDAY)):
            rule = 'a name with {date} or {yesterday} in mode "update", unless the source names {since}'
            raise ParameterError("source.batch", rule, batch, "A lost night would not be noticed.")
        return
    if mode != "update":
        raise ParameterError("source.mode", '"update" where the source names {since}', mode)
    if batch is not None:
        rule = "left out where the source names {since}: times tell what was read before"
        raise ParameterError("source.batch", rule, batch)
    if source.get("time") is False:
        raise ParameterError("source.time", "left out, or a column, where the source names {since}", False)
    if options.duplicates == "error" or (options.rows_have_weights and options.duplicates == "sum"):
        rule = "without {since}, which reads some rows twice, where every row counts"
        advice = "Read whole days: {yesterday}, {date}."
        raise ParameterError("source", rule, source.get("query") or source.get("data"), advice)
    duration("source.overlap", overlap or _OVERLAP)


def since_of(data: Interactions, overlap: str | None, read: int) -> str:
    """Return what {since} stands for: the latest time of the published events, minus the overlap.

    `read` is when the source was read, in microseconds since 1970: an event with a later time does not move
    the range, since events before it were still to come.
    """
    times = times_of(data)
    if times is None:
        return BEGINNING
    start = min(int(times.max()), read) - duration("overlap", overlap or _OVERLAP)
    return f"{datetime.fromtimestamp(max(start, 0) // 1_000_000, UTC):%Y-%m-%d %H:%M:%S}Z"


def times_ahead(data: Interactions, latest: int) -> list[str]:
    """Return a message if the data has events after the latest possible time."""
    times = times_of(data)
    count = 0 if times is None else int((times > latest).sum())
    if times is None or not count:
        return []
    return [f"{count:,} pairs have times up to {shown(int(times.max()))}, which is in the future"]


def gap_between(old: Interactions, new: Interactions) -> list[str]:
    """Return the time between the published events and the new ones, if the new ones do not overlap."""
    was, more = times_of(old), times_of(new)
    if was is None or more is None or more.min() <= was.max():
        return []
    return [f"{shown(int(was.max()))} to {shown(int(more.min()))}"]


def days_without(batch_before: Callable[[int], str], batches: Collection[str]) -> list[str]:
    """Return the batches that the model lacks between the first one it has and tonight's, oldest first.

    `batch_before` returns the name of the batch a number of days ago. If the model has none of the last 400
    batches, this job has not fitted it, and nothing is missing.
    """
    names = [batch_before(days) for days in range(1, _LONGEST_GAP)]
    first = max((index for index, name in enumerate(names) if name in batches), default=0)
    return [name for name in names[:first] if name not in batches][::-1]


def times_of(data: Interactions) -> Times | None:
    """Return the last times of the pairs, even if all of them are the same."""
    return None if data.origin is None else data.origin.times
