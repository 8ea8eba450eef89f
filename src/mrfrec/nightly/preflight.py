"""Check what a night would read and write, before it takes time: columns, queries, tables and rules."""

from typing import Any

import numpy as np

from mrfrec.answers.filters import rules_of
from mrfrec.answers.question import Question
from mrfrec.answers.where import columns_of_sql, mask_of
from mrfrec.data.catalogue import Catalogue
from mrfrec.data.ids import Ids
from mrfrec.data.item_table import ItemTable
from mrfrec.errors import DataError, ParameterError
from mrfrec.io.batches import Source
from mrfrec.io.columns import find_item, find_roles, name_list
from mrfrec.io.databases import database_file, is_database, planned, reads_table, redacted
from mrfrec.io.features import read_item_features
from mrfrec.io.frames import check_place
from mrfrec.io.item_table import read_item_table
from mrfrec.io.sources import open_sources, paths_of
from mrfrec.io.tables import check_reading
from mrfrec.models.registry import load
from mrfrec.nightly.job import Job


def check_tables(job: Job, users: str | None = None, items: str | None = None) -> None:
    """Raise if a query fails or lacks a column, or if a table cannot be published or is one that is read.

    `users` and `items` are the types of their ids, once these are known. Nothing is changed.
    """
    item = items or "unknown"
    kinds = {"user": users or "unknown", "item": item, "similar_to": item}
    query = job.source.reading.get("query", "")
    sources = [url for url in job.source.data if is_database(url)] if query and users is None else []
    for url in sources:
        _check_columns(planned(url, query), job)
    if users is None:
        _check_item_queries(job)
    for what, sink in job.sinks.items():
        if sink.table is None:
            continue
        file = database_file(sink.to)
        # Opening a database file that does not exist would create it.
        if file is not None and not file.exists():
            continue
        names = check_place(sink.to, sink.table, sink.names, kinds, sink.columns)
        if any(reads_table(url, query, sink.to, names) for url in sources):
            name = f"{job.path}: publish.{what.split()[0]}.table"
            raise ParameterError(name, "a table of its own", sink.table, "source.query reads it.")


def rehearse(job: Job) -> list[str]:
    """Check everything about a job that needs no events; return sentences about what could not be checked.

    The item table and the features are read. A file of events may be missing only if its name has a day.
    """
    check_tables(job)
    reading, unchecked = job.source.reading, []
    for name in job.source.data:
        if is_database(name):
            continue
        try:
            paths = paths_of(name)
        except DataError as error:
            if not job.reads_dated_files:
                raise DataError(f"{job.path}: source.data: {error}") from None
            unchecked.append(f"the columns of the events: {error}")
            continue
        if paths and all(path.is_file() for path in paths):
            for events in open_sources(name, check_reading(reading)):
                _check_columns(events, job)
        else:
            unchecked.append(f"the columns of {redacted(name)}: only a run reads it.")
    recommendations = job.publish.recommendations
    if recommendations is not None and _columns_named(recommendations.question):
        table = _table_of_items(job)
        items = Ids.range(0) if table is None else table.items
        check_rules(job, Catalogue(items, None, np.zeros(len(items), np.int64), 0, table=table))
    return [*unchecked, "the rows of the events: their ids, their times, and what the guard makes of them."]


def steps(job: Job) -> list[str]:
    """Return the steps of a run as lines of text, without reading or writing anything."""
    source, guard, publish = job.source, job.guard, job.publish
    names = ", ".join(redacted(name) for name in source.data)
    lines = [f"read {names}" + (f" and add it to {publish.model}" if source.mode == "update" else "")]
    if job.reads_since:
        lines[0] += ", from {since} on, some time before the latest event of that model"
    if source.items is not None:
        by = "" if source.items_query is None else f" by items_query: {source.items_query}"
        lines.append(f"read the item table {redacted(source.items)}{by}")
    lines += [
        f"fit {job.build()!r} without {guard.heldout:.0%} of the users, and evaluate {guard.metric} on these",
        f"refuse to publish if the guard finds a fault: {guard!r}",
        f"fit to all users and write {publish.model}, and keep {publish.keep} earlier ones",
    ]
    for what, sink in job.sinks.items():
        rules = [f"{name} = {value!r}" for name, value in sink.options.items()]
        lines.append(", ".join([f"write {what} to {sink.where}, {sink.k} each", *rules]))
    return [*lines, f"write {job.report}.json and {job.report}.html"]


def _check_columns(table: Source, job: Job) -> None:
    """Raise if a table of events lacks a column that the job needs."""
    reading = job.source.reading
    roles: dict[str, Any] = {role: reading.get(role) for role in ("user", "item", "value", "event", "time")}
    needs_times = job.reads_since or check_reading(reading).uses_times or roles["time"] is True
    roles["time"] = roles["time"] if isinstance(roles["time"], str) else None
    find_roles(table, roles, ("user", "item", *(["time"] if needs_times else [])))


def _table_of_items(job: Job) -> ItemTable | None:
    """Return the item table that the rules of a night would use."""
    source = job.source
    if source.items is not None:
        item = source.reading.get("item") if source.items_query is None else None
        if item is not None and item not in open_sources(source.items)[0].columns:
            item = None
        return read_item_table(source.items, item, query=source.items_query)
    if source.features is not None:
        columns: Any = source.feature_columns
        return read_item_features(source.features, columns=columns, query=source.features_query).table
    if source.mode == "update" and job.publish.model.exists():
        return load(job.publish.model).catalogue.table
    return None


def _check_item_queries(job: Job) -> None:
    """Raise if a query for items or features fails, or lacks the column of items or a column of a rule."""
    source, recommendations = job.source, job.publish.recommendations
    if source.features is not None and source.features_query is not None:
        find_item(planned(source.features, source.features_query), None)
    if source.items is None or source.items_query is None:
        return
    table = planned(source.items, source.items_query)
    item = find_item(table, None)
    columns = [name for name in table.columns if name != item]
    for parameter, name in [] if recommendations is None else _columns_named(recommendations.question):
        if name not in columns:
            rule = f"about columns of items_query: {name_list(columns)}"
            raise ParameterError(f"{job.path}: publish.recommendations.{parameter}", rule, name)


def check_rules(job: Job, catalogue: Catalogue) -> None:
    """Raise if the rules of the recommendations do not fit the item table."""
    if job.publish.recommendations is None:
        return
    question = job.publish.recommendations.question
    if catalogue.table is None and _columns_named(question):
        rule = "a table of items, with the columns that the rules name"
        raise ParameterError(f"{job.path}: source.items", rule, None, 'Such as items = "products.csv".')
    try:
        mask_of(question.where, catalogue)
        rules_of(catalogue, question)
    except ParameterError as error:
        raise error.named(f"{job.path}: publish.recommendations.{error.name}") from None


def _columns_named(question: Question) -> list[tuple[str, str]]:
    """Return (parameter, column) for every column that the rules of a question name."""
    where = columns_of_sql(question.where) if isinstance(question.where, str) else question.where
    boosts = [
        (f'boost["{way}"]', name) for way, name in (question.boost or {}).items() if isinstance(name, str)
    ]
    return [
        *(("where", name) for name in where or ()),
        *(("at_most", name) for name in question.at_most or ()),
        *boosts,
    ]
