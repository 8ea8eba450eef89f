"""Check, before a nightly job begins, that it may replace its tables and does not read them."""

from mrfrec.errors import ParameterError
from mrfrec.io.atomic import check_writable
from mrfrec.io.databases import database_file, is_database
from mrfrec.io.frames import check_place
from mrfrec.io.queries import reads_table
from mrfrec.nightly.job import Job

_UNKNOWN = dict.fromkeys(("user", "item", "similar_to"), "unknown")


def check_tables(job: Job, users: str | None = None, items: str | None = None) -> None:
    """Raise if a table could not be published, or is read by the query. Nothing is changed.

    `users` and `items` are the kinds of their ids, once these are known.
    """
    kinds = _UNKNOWN
    if users is not None and items is not None:
        kinds = {"user": users, "item": items, "similar_to": items}
    source, query = job.source.data[0], job.source.reading.get("query")
    for what, sink in job.sinks.items():
        if sink.table is None:
            continue
        file = database_file(sink.to)
        if file is not None and not file.exists():  # opening it would create it
            check_writable(file)
            continue
        names = check_place(sink.to, sink.table, sink.names, kinds, sink.columns)
        if users is None and is_database(source) and query and reads_table(source, query, sink.to, names):
            name = f"{job.path}: publish.{what.split()[0]}.table"
            raise ParameterError(name, "a table of its own", sink.table, "source.query reads it.")
