"""Read what a night learns from: the events of its source and, in mode "update", of the published model."""

import logging
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from typing import Any

from mrfrec.checks import counted, in_words
from mrfrec.data.erasures import Erasures
from mrfrec.data.ids import text_roles
from mrfrec.data.interactions import Interactions
from mrfrec.data.merging import add, added_before, origin_of_data, without_erased
from mrfrec.errors import EmptyTableError, ParameterError
from mrfrec.io.databases import redacted
from mrfrec.io.features import read_item_features
from mrfrec.io.item_table import read_item_table
from mrfrec.io.tables import RowsBefore, read_events
from mrfrec.models.recommender import Recommender
from mrfrec.nightly.continuity import columns_of, lost_columns
from mrfrec.nightly.guard import changed_ids, ids_of
from mrfrec.nightly.job import latest_time
from mrfrec.nightly.ranges import DAY, days_without, gap_between, since_of
from mrfrec.nightly.record import Night

_log = logging.getLogger("mrfrec.nightly")


def read_data(night: Night, published: Recommender | None, erased: Erasures) -> Interactions:
    """Return the events, with the features and the item table that the job names.

    Rows of the users in `erased` are left out.
    """
    old = None
    if night.job.source.mode == "update" and published is not None:
        old = without_erased(published.fitted_.data_for("mode = update"), erased)
    if old is not None and night.job.reads_since:
        _set_since(night, old, published)
    new = _new_events(night, old, erased)
    _check_ids(night, published, new, is_batch=old is not None)
    _check_columns(night, published, new, is_batch=old is not None)
    if night.job.source.mode == "update":
        batches = () if published is None else published.batches_
        data = _updated(night, old, new, batches)
        _note_missed(night, published, old, new, (*batches, *origin_of_data(data).batches))
    else:
        assert new is not None
        data = new
    return _with_items(night, data)


def _set_since(night: Night, old: Interactions, published: Recommender | None) -> None:
    """Put a time in place of {since} in the job."""
    read = latest_time() - DAY
    # A model that a command has rewritten since has no notes.
    for text in ({} if published is None else published.notes_).get("read_at"), night.last.get("read_at"):
        with suppress(ValueError):
            read = min(read, int(datetime.fromisoformat(str(text)).timestamp() * 1e6))
            break
    since = since_of(old, night.job.source.overlap, read)
    night.job = night.job.since(since)
    night.record["since"] = since
    _log.info("reading the events since %s", since)


def _new_events(night: Night, old: Interactions | None, erased: Erasures) -> Interactions | None:
    """Return the events of the source; None if it has none, but there are old ones."""
    source = night.job.source
    before = RowsBefore(erased=erased, latest=latest_time())
    if old is not None:
        origin = origin_of_data(old)
        oldest = None if origin.times is None else int(origin.times.min())
        text_ids = text_roles(old.users, old.items)
        before = before._replace(columns=origin.columns, oldest=oldest, text_ids=text_ids)
    parameters = {**({"time": True} if night.job.reads_since else {}), **source.reading}
    try:
        new = read_events(source.data, before, progress=night.progress, **parameters)
    except EmptyTableError as error:
        if old is not None:
            return None
        raise EmptyTableError(f"{', '.join(map(redacted, source.data))}: {error}") from None
    if new.skipped:
        night.record["skipped"] = new.skipped
    night.record["bad"] = new.share_skipped
    _note(night, new)
    return new


def _note(night: Night, data: Interactions) -> None:
    """Record what reading or adding has noticed."""
    notes = (note._asdict() for note in data.notes)
    night.record["notes"] += [note for note in notes if note not in night.record["notes"]]


def _check_ids(
    night: Night, published: Recommender | None, new: Interactions | None, *, is_batch: bool
) -> None:
    """Refuse events whose ids are of another type than the published ones."""
    if new is not None:
        ids = {} if published is None else ids_of(published.users_, published.items_)
        night.refuse_if(changed_ids({**night.last.get("ids", {}), **ids}, new, is_batch=is_batch))


def _check_columns(
    night: Night, published: Recommender | None, new: Interactions | None, *, is_batch: bool
) -> None:
    """Refuse events without times, values or titles that the published ones had; record their columns."""
    before = night.last.get("columns") or ({} if published is None else published.fitted_.columns)
    if new is None:
        night.record["columns"] = dict(before)
        return
    now = night.record["columns"] = columns_of(new, is_batch=is_batch)
    night.refuse_if(lost_columns(before, now, has_items=night.job.source.items is not None))


def _updated(
    night: Night, old: Interactions | None, new: Interactions | None, batches: tuple[str, ...]
) -> Interactions:
    """Add the new events to the old ones, under the name of their batch. One of the two may be missing."""
    if new is None:
        assert old is not None
        return _without_news(night, old, new)
    origin = origin_of_data(new)
    rules = {name: x for name, x in origin.rules.items() if name not in night.job.passing_rules}
    new = new.replace(origin=replace(origin, rules=rules))
    name = night.job.source.batch or new.fingerprint
    if old is None:
        data = new
    elif name in batches:
        reason = f"the batch {name} is in the model already: its events are not added again"
        night.record["reasons"].append(reason)
        _log.warning(reason)
        return old if new.table is None else old.with_table(new.table)
    else:
        data = add(old, new)
        _note(night, data)
        again = _check_again(night, old, new, name)
        if night.job.reads_since and again == len(new):
            return _without_news(night, old, new)
    night.record["batch"] = name
    return data.replace(origin=replace(origin_of_data(data), batches=(*batches, name)))


def _check_again(night: Night, old: Interactions, new: Interactions, batch: str) -> int:
    """Return how many new pairs the model has already; refuse pairs whose values would count twice."""
    again = added_before(old, new)
    night.record["again"] = again
    said = f"{again:,} of {counted(len(new), 'new pair')} are in the model already"
    _log.info(said)
    origin = origin_of_data(new)
    adds_up = not origin.is_binary and origin.rules.get("duplicates", "sum") == "sum"
    was_missed = batch in night.last.get("missed", [])
    if again and adds_up and origin.times is not None and not was_missed:
        night.refuse_if([f"{said}, with the same time or a later one: their values would count twice"])
    return again


def _without_news(night: Night, old: Interactions, new: Interactions | None) -> Interactions:
    """Return the old events with today's item table, which says what is in stock.

    The name of the batch is not noted, since its events may come later.
    """
    _log.info("there are no new events: the model is made of the same events as the last")
    night.record["reasons"].append("no new events")
    source = night.job.source
    if new is not None and new.table is not None:
        return old.with_table(new.table)
    if new is None and source.items is not None and source.items_query is None:
        return old.with_table(read_item_table(source.items))
    return old


def _note_missed(
    night: Night,
    published: Recommender | None,
    old: Interactions | None,
    new: Interactions | None,
    batches: tuple[str, ...],
) -> None:
    """Record which events no night has read, until a night reads them or a run accepts that (accept_missed).

    What was accepted is also in the notes of the model, for a roll-back to it.
    """
    if night.job.reads_since:
        missed = gap_between(old, new) if old is not None and new is not None else []
        advice = "roll back to the model before that"
    else:
        missed = days_without(night.job.batch_before, batches)
        advice = "run the job for each of these days (--date)"
    missed = sorted({*night.last.get("missed", []), *missed} - {*batches, *night.accepted_by(published)})
    accepted = missed if night.accept_missed else []
    night.record["accepted"] = sorted({*night.accepted_by(published), *accepted})
    night.record["missed"] = [] if night.accept_missed else missed
    if missed:
        accept = "or accept that (--accept-missed)"
        reason = f"no night has read the events of {in_words(missed)}: {advice}, {accept}"
        night.record["reasons"].append(reason)
        _log.warning(reason)


def _with_items(night: Night, data: Interactions) -> Interactions:
    """Return the events with the features and the item table that the job names."""
    source, table = night.job.source, data.table
    if source.items_query is not None:
        table = read_item_table(source.items, query=source.items_query)
    if source.features is not None:
        columns: Any = source.feature_columns
        try:
            features = read_item_features(source.features, columns=columns, query=source.features_query)
        except ParameterError as error:
            raise error.named("source.feature_columns") if error.name == "columns" else error from None
        data = data.without_unused_items().with_features(features)
    return data if table is None or table is data.table else data.with_table(table)
