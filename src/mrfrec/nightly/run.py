"""Run a nightly job: read → guard the data → evaluate → guard the metric → fit → publish → report.

New tables and files are prepared beside the published ones and take their places at the end, tables in one
transaction, files by a rename. A run that is killed leaves the earlier version, and the next run begins anew.
"""

import logging
import os
import resource
import shutil
import sys
import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime
from glob import escape
from os import PathLike
from pathlib import Path
from typing import Any

from mrfrec import __version__
from mrfrec.answers.publishing import staged_recommendations, staged_similar_items
from mrfrec.checks import check_flag, check_nonnegative, counted, in_words
from mrfrec.core.progress import Progress
from mrfrec.data.catalogue import Catalogue
from mrfrec.data.erasures import Erasures
from mrfrec.data.ids import Ids
from mrfrec.data.interactions import Interactions
from mrfrec.data.merging import add, added_before, origin_of_data, without_erased
from mrfrec.errors import DataError, EmptyTableError, MrfrecWarning, ParameterError, RefusedError
from mrfrec.evaluation.metrics import Mean, parse
from mrfrec.evaluation.protocol import fit_and_evaluate
from mrfrec.evaluation.splits import by_hash
from mrfrec.fitted import files
from mrfrec.fitted.measured import Measured
from mrfrec.io.artifact import check_unchanged
from mrfrec.io.atomic import file_path, keep_owner, put_in_place, remove_with_leftovers, writing
from mrfrec.io.databases import redacted
from mrfrec.io.erasures import read_erasures, write_erasures
from mrfrec.io.features import read_item_features
from mrfrec.io.item_table import read_item_table
from mrfrec.io.locks import WAIT, holding, locked
from mrfrec.io.staging import open_staging
from mrfrec.io.tables import RowsBefore, read_events
from mrfrec.models.parameters import runtime_of
from mrfrec.models.recommender import Recommender
from mrfrec.models.registry import load
from mrfrec.nightly.guard import (
    Bound,
    bounds_of,
    changed_ids,
    compare_recommendations,
    drift,
    faults,
    ids_of,
    limits,
    predicted_since,
)
from mrfrec.nightly.history import RunHistory
from mrfrec.nightly.job import Job, latest_time, read_job
from mrfrec.nightly.preflight import check_rules, check_tables
from mrfrec.nightly.ranges import DAY, days_without, gap_between, since_of, times_ahead

_log = logging.getLogger("mrfrec.nightly")


def run(
    job: "Job | str | PathLike[str]",
    *,
    day: str | None = None,
    accept: bool = False,
    wait: float = WAIT,
    earlier: "str | PathLike[str] | None" = None,
    progress: "Progress | None" = None,
) -> dict[str, Any]:
    """Run a nightly job; returns the record of the run, as it stands in the report.

    Parameters
    ----------
    job
        A TOML file (docs/reference/job.md has its keys), or what `read_job` returned.
    day
        What {date} stands for in the job, such as "2026-11-16"; today (UTC) by default.
    accept
        Publish even if the guard refuses; later runs are compared with this one.
    wait
        Seconds to wait for another process that rewrites the model file, such as `mrfrec forget`. Another run
        of the job is not waited for.
    earlier
        Roll back to this model file: publish it, with the tables that the job says, and read, fit and guard
        nothing.
    progress
        Called as `progress(stage, done, total)`.

    Raises
    ------
    RefusedError
        The guard refuses the new model. The published version stays; the report has the reasons.
    BusyError
        Another run of the job is at work, or another process has been rewriting the model all that time.
    """
    check_flag("accept", accept)
    job = job if isinstance(job, Job) else read_job(job, day)
    wait = check_nonnegative("wait", wait)
    target = _target(job.publish.model)
    busy = "another run of this job is at work. Wait for its end."
    with holding(_beside(target, "nightly.lock"), busy):
        try:
            return _Night(
                job, RunHistory(job), accept, wait, progress, file_path(earlier) if earlier else None
            ).go()
        finally:
            remove_unpublished(job.publish.model)


def remove_unpublished(model: Path) -> list[Path]:
    """Remove the copies of a model that a killed run may have left beside it, and return their names.

    The lock of the model, or that of the job, must be held.
    """
    copies = [_beside(_target(model), name) for name in ("nightly", "earlier")]
    removed = [copy for copy in copies if copy.exists()]
    for copy in copies:
        remove_with_leftovers(copy)
    return removed


def steps(job: Job) -> list[str]:
    """Return the steps of a run as lines of text. Nothing is read or written."""
    source, guard, publish = job.source, job.guard, job.publish
    names = ", ".join(redacted(name) for name in source.data)
    lines = [f"read {names}" + (f" and add it to {publish.model}" if source.mode == "update" else "")]
    if job.reads_since:
        lines[0] += ", from {since} on, some time before the latest event of that model"
    if source.items is not None:
        by = "" if source.items_query is None else f" by items_query: {source.items_query}"
        lines.append(f"read the table of items {redacted(source.items)}{by}")
    lines += [
        f"fit {job.build()!r} without {guard.heldout:.0%} of the users, and evaluate {guard.metric} on these",
        f"refuse to publish if the guard finds a fault: {guard!r}",
        f"fit to all users and write {publish.model}, and keep {publish.keep} earlier ones",
    ]
    for what, sink in job.sinks.items():
        rules = [f"{name} = {value!r}" for name, value in sink.options.items()]
        lines.append(", ".join([f"write {what} to {sink.where}, {sink.k} each", *rules]))
    return [*lines, f"write {job.report}.json and {job.report}.html"]


class _Night:
    """One run, and its record so far."""

    def __init__(
        self, job: Job, report: RunHistory, accept: bool, wait: float, progress: "Progress | None",
        earlier: Path | None,
    ) -> None:  # fmt: skip
        self.job = job
        self.report = report
        self.accept = accept
        self.wait = wait
        self.progress = progress
        self.earlier = earlier  # model to roll back to
        self.bounds: list[Bound] = []  # of the guard; known once the data is read
        self.file_hash = ""  # of the model file that was read
        self.erased = Erasures()  # people whose rows are left out; known once that file is read
        self.notes: Mapping[str, Any] = {}  # of the model to roll back to
        self.record: dict[str, Any] = {
            "started": datetime.now(UTC).isoformat(timespec="seconds"),
            "status": "started",
            "reasons": [],
            "seconds": {},
            "mrfrec": __version__,
        }

    def go(self) -> dict[str, Any]:
        start = time.perf_counter()
        try:
            self.report.begin(self.record)
            with locked(self.job.publish.model, wait=self.wait):
                self._work() if self.earlier is None else self._roll_back(self.earlier)
            self.record["status"] = "published"
        except RefusedError:
            self.record["status"] = "refused"
            raise
        except BaseException as error:
            self.record["status"] = "failed"
            self.record["reasons"].append(str(error) or type(error).__name__)
            raise
        finally:
            self.record["seconds"]["total"] = round(time.perf_counter() - start, 3)
            self.record["peak_memory"] = _peak_memory()
            self.report.write()
        seconds = self.record["seconds"]["total"]
        peak = self.record["peak_memory"] / 1e6
        _log.info("published in %.1f s with %.0f MB at most", seconds, peak)
        return self.record

    def _roll_back(self, earlier: Path) -> None:
        """Publish an earlier model; its numbers are those that the next run is compared with."""
        publish = self.job.publish
        model = load(earlier)
        fitted = model.fitted_
        training = fitted.training
        if publish.recommendations is not None:
            training = fitted.training_for(
                "publish.recommendations", "Roll back to a file with histories, or"
            )
        check_tables(self.job, training.users.kind if training else "unknown", fitted.catalogue.items.kind)
        check_rules(self.job, fitted.catalogue)
        with self._noting_warnings():
            self._read_published()
        said = f"rolled back to {earlier.name}"
        if later := self.erased.beyond(fitted.erased):
            if not fitted.has_histories:
                before = f"{earlier.name} has no histories and was written before {counted(later, 'erasure')}"
                self._guard([f"{before}: the people who were forgotten may be in its weights"])
            model.forget(self.erased, progress=self.progress)
            if gone := fitted.size.users - model.fitted_.size.users:
                said += f", fitted again without {counted(gone, 'user')} who were forgotten since"
        names = ("metric", "value", "error", "asked")
        self.record |= {name: fitted.notes[name] for name in names if name in fitted.notes}
        size = model.fitted_.size._asdict()
        self.record |= {name: size[name] for name in ("users", "items", "pairs")}
        self.record["ids"] = ids_of(training.users if training else None, fitted.catalogue.items)
        self.record["missed"] = (self.report.last_published or {}).get("missed", [])
        self.record["reasons"].append(said)
        self.notes = fitted.notes
        with self._stage("publish"):
            self._publish(model)

    def _work(self) -> None:
        job = self.job
        check_tables(job)  # before anything takes time
        with self._noting_warnings(), self._stage("read"):
            published = self._read_published()
            data = self._data(published)
        check_tables(job, data.users.kind, data.items.kind)
        table = None if data.table is None else data.table.over(data.items)
        check_rules(job, Catalogue(data.items, data.titles, data.popularity, data.n_users, table=table))
        size = {"users": data.n_users, "items": data.n_items, "pairs": len(data)}
        moved = {"drift": None} if published is None else drift(published, data)
        recent = self.report.recent or ([] if published is None else [published.fitted_.size._asdict()])
        self.record |= {**size, **moved, "data": data.fingerprint, "ids": ids_of(data.users, data.items)}
        self.bounds = bounds_of(job.guard, recent, self.report.last_published)
        self.record["limits"] = limits(self.bounds)
        _log.info("%s users, %s items, %s pairs", *(f"{count:,}" for count in size.values()))
        numbers = {**size, "drift": moved["drift"], "bad": self.record.get("bad")}
        self._guard([*times_ahead(data, latest_time()), *faults(self.bounds, numbers)])
        self._ask_last_night(published, data)
        nights = job.model.measure_every
        again = nights is not None and self.report.nights_since_measuring >= nights
        measured = None if published is None or again else published.measured_
        with self._stage("measure"):
            measured, users = self._evaluate(data, measured)
        with self._stage("fit"):
            model = job.build().fit(data, progress=self.progress, measured=measured)
        if model.measured_ is not None:
            self.record["values"] = str(model.measured_)
        with self._stage("compare"):
            options = {} if job.publish.recommendations is None else job.publish.recommendations.options
            options.pop("explain", None)
            count = job.publish.samples
            self.record |= compare_recommendations(model, published, data, users, count, **options)
        del published
        with self._stage("publish"):
            self._publish(model)

    def _read_published(self) -> Recommender | None:
        """Open the published model, if there is one, and note who was forgotten."""
        path = self.job.publish.model
        if not path.exists():
            self.erased = read_erasures(path) or Erasures()
            return None
        published = load(path)
        self.file_hash, self.erased = published.fitted_.file_hash, published.fitted_.erasures
        self.report.settle(self.file_hash)
        return published

    def _ask_last_night(self, published: "Recommender | None", data: "Interactions") -> None:
        """Record how well the published model would have predicted what came since its data ended."""
        if data.times is None:
            return
        self.record["latest"] = int(data.times.max())
        last = (self.report.last_published or {}).get("latest")
        if published is None or last is None:
            return
        metric = parse(self.job.guard.metric)
        name = f"{metric.kind}@{min(metric.k, len(published.items_))}"
        found = predicted_since(published, data, last, name) if metric.is_accuracy else None
        if found is not None:
            self.record["predicted"] = found
            shown = Mean(found["value"], found["error"] or 0.0)
            _log.info("the model before would have predicted what came since: %s %s, %s users", name, shown,
                      f"{found['asked']:,}")  # fmt: skip

    def _evaluate(self, data: "Interactions", measured: Measured | None) -> "tuple[Measured | None, Ids]":
        """Evaluate the job's model on held-out users, and guard the metric.

        `measured` are the values that an earlier model measured, None to measure anew. Returns the values
        used and the held-out users. If nobody can be held out and that is accepted, returns `measured` and
        all users.
        """
        guard = self.job.guard
        metric = parse(guard.metric)
        try:
            split = by_hash(data, guard.heldout)
        except DataError as reason:
            self._guard([f"nothing can be measured: {str(reason).rstrip('.')}"])
            return measured, data.users
        name = f"{metric.kind}@{min(metric.k, split.training.n_items)}"  # of all items if there are fewer
        recommendations = self.job.publish.recommendations
        k = 20 if recommendations is None else recommendations.k
        coverage = f"coverage@{min(k, split.training.n_items)}"
        model = self.job.build()
        results = fit_and_evaluate(model, split, [name, coverage], progress=self.progress, measured=measured)
        mean = results.mean(name)
        error = mean.error if mean.error == mean.error else None  # NaN if there is only one user
        self.record |= {"metric": guard.metric, "value": mean.mean, "error": error, "asked": len(split.test)}
        self.record["coverage"] = results.mean(coverage).mean
        _log.info("%s %s on %s held-out users", guard.metric, mean, f"{len(split.test):,}")
        self._guard(faults(self.bounds, {"value": mean}))
        self.record["measured"] = measured is None
        return model.measured_, split.test.users

    def _guard(self, reasons: list[str]) -> None:
        """Refuse to go on if there are reasons to, unless they are accepted."""
        self.record["reasons"] += reasons
        for reason in reasons:
            _log.warning("%s%s", reason, " (accepted)" if self.accept else "")
        if reasons and not self.accept:
            raise RefusedError(
                f"nothing was published: {'; '.join(reasons)}. If this is as it should be, run the job with "
                "accept=True (--accept); otherwise mend the data."
            )

    def _data(self, published: "Recommender | None") -> "Interactions":
        """Return the events, with the features and the table of the items if the job names some."""
        data = self._events(published)
        source, table = self.job.source, data.table
        if source.items_query is not None:
            table = read_item_table(source.items, query=source.items_query)
        if source.features is not None:
            data = self._with_features(data)
        return data if table is None or table is data.table else data.with_table(table)

    def _with_features(self, data: "Interactions") -> "Interactions":
        source = self.job.source
        columns: Any = source.feature_columns
        try:
            features = read_item_features(source.features, columns=columns, query=source.features_query)
        except ParameterError as error:
            raise error.named("source.feature_columns") if error.name == "columns" else error from None
        return data.without_unused_items().with_features(features)

    def _events(self, published: "Recommender | None") -> "Interactions":
        """Return the events of the source and, in mode update, those of the published model."""
        is_update = self.job.source.mode == "update"
        old = None
        if is_update and published is not None:
            old = without_erased(published.fitted_.data_for("mode = update"), self.erased)
        if old is not None and self.job.reads_since:
            since = since_of(old, self.job.source.overlap, latest_time() - DAY)
            self.job = self.job.since(since)
            self.record["since"] = since
            _log.info("reading the events since %s", since)
        new = self._read(old)
        if new is not None:
            before = (self.report.last_published or {}).get("ids", {})
            ids = {} if published is None else ids_of(published.users_, published.items_)
            self._guard(changed_ids({**before, **ids}, new, is_batch=old is not None))
        if not is_update:
            assert new is not None
            return new
        data = self._added(old, new, () if published is None else published.batches_)
        known = () if published is None else published.batches_
        self._note_missed(old, new, (*known, *origin_of_data(data).batches))
        return data

    def _read(self, old: "Interactions | None") -> "Interactions | None":
        """Return the events of the source, to be added to the old ones; None if it has none and these are."""
        source = self.job.source
        before = RowsBefore(erased=self.erased, latest=latest_time())
        if old is not None:
            origin = origin_of_data(old)
            oldest = None if origin.times is None else int(origin.times.min())
            before = before._replace(columns=origin.columns, oldest=oldest)
        parameters = {**({"time": True} if self.job.reads_since else {}), **source.reading}
        try:
            new = read_events(source.data, before, progress=self.progress, **parameters)
        except EmptyTableError as error:
            if old is not None:
                return None
            raise EmptyTableError(f"{', '.join(map(redacted, source.data))}: {error}") from None
        if new.skipped:
            self.record["skipped"] = new.skipped
        self.record["bad"] = new.share_skipped
        self._note(new)
        return new

    def _note(self, data: "Interactions") -> None:
        """Record what reading and adding have noticed."""
        notes = (note._asdict() for note in data.notes)
        self.record["notes"] += [note for note in notes if note not in self.record["notes"]]

    def _added(
        self, old: "Interactions | None", new: "Interactions | None", batches: tuple[str, ...]
    ) -> "Interactions":
        """Return the old events and the new ones, of which one may be missing, with the names of batches."""
        if new is None:
            assert old is not None
            return self._without_news(old, new)
        origin = origin_of_data(new)
        rules = {name: x for name, x in origin.rules.items() if name not in self.job.passing_rules}
        new.origin = replace(origin, rules=rules)
        name = self.job.source.batch or new.fingerprint
        if old is not None and name in batches:
            _log.info("the batch %s was added before", name)
            return old if new.table is None else old.with_table(new.table)
        data = new
        if old is not None:
            data = add(old, new)
            self._note(data)
            again = added_before(old, new)
            self.record["again"] = again
            said = f"{again:,} of {counted(len(new), 'new pair')} are in the model already"
            _log.info(said)
            adds_up = not origin.is_binary and origin.rules.get("duplicates", "sum") == "sum"
            was_missed = name in (self.report.last_published or {}).get("missed", [])
            if again and adds_up and origin.times is not None and not was_missed:
                self._guard([f"{said}, with the same time or a later one: their values would count twice"])
            if self.job.reads_since and again == len(new):
                return self._without_news(old, new)
        data.origin = replace(origin_of_data(data), batches=(*batches, name))
        self.record["batch"] = name
        return data

    def _without_news(self, old: "Interactions", new: "Interactions | None") -> "Interactions":
        """Return the old events with today's table of items, which says what is in stock.

        The batch is not noted, since its events may come later.
        """
        _log.info("there are no new events: the model is made of the same events as the last")
        self.record["reasons"].append("no new events")
        source = self.job.source
        if new is not None and new.table is not None:
            return old.with_table(new.table)
        if new is None and source.items is not None and source.items_query is None:
            return old.with_table(read_item_table(source.items))
        return old

    def _note_missed(
        self, old: "Interactions | None", new: "Interactions | None", batches: tuple[str, ...]
    ) -> None:
        """Record which events no night has read, until they are read or a run is accepted."""
        found = [] if self.job.reads_since else days_without(self.job.batch_before, batches)
        how = "run the job for each of these days (--date)"
        if self.job.reads_since:
            found = gap_between(old, new) if old is not None and new is not None else []
            how = "roll back to the model before that"
        before = (self.report.last_published or {}).get("missed", [])
        missed = [each for each in dict.fromkeys([*before, *found]) if each not in batches]
        self.record["missed"] = [] if self.accept else missed
        if missed:
            reason = f"no night has read the events of {in_words(missed)}: {how}, or accept that (--accept)"
            self.record["reasons"].append(reason)
            _log.warning(reason)

    @contextmanager
    def _noting_warnings(self) -> Iterator[None]:
        """Write all warnings about the data into the log and the record."""
        notes = self.record["notes"] = []
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", MrfrecWarning)
            try:
                yield
            finally:
                known = {note["text"] for note in notes}
                texts = dict.fromkeys(str(each.message) for each in caught if each.category is MrfrecWarning)
                new = (text for text in texts if text not in known)
                notes += [{"what": "warning", "count": 1, "text": text} for text in new]
                for text in texts:
                    _log.warning("%s", text)

    # ── publishing ────────────────────────────────────────────────────────────────────────────────

    def _publish(self, model: "Recommender") -> None:
        publish = self.job.publish
        target = _target(publish.model)
        new = _beside(target, "nightly")
        earlier = _beside(target, "earlier")
        self.record["rows"] = {}
        with ExitStack() as staged:
            # The block ends in reverse order: it commits the databases, which may fail, and then renames the
            # files, which it enters first. The tables of one database are replaced in one transaction.
            databases: dict[str, Any] = {}
            for what, sink in sorted(self.job.sinks.items(), key=lambda each: each[1].table is not None):
                if sink.table and sink.to not in databases:
                    databases[sink.to] = staged.enter_context(open_staging(sink.to))
                place = databases.get(sink.to, sink.to)
                target_options = {"table": sink.table, "columns": sink.columns}
                options = {"k": sink.k, "target": target_options, "progress": self.progress, **sink.options}
                if what == "similar items":
                    written = staged_similar_items(model.fitted_, place, **options)
                else:
                    written = staged_recommendations(model.fitted_, runtime_of(model), place, **options)
                rows = staged.enter_context(written)
                self.record["rows"][what] = rows
                _log.info("%s rows of %s for %s", f"{rows:,}", what, sink.where)
                self._guard([] if rows else [f"there are no {what} to publish"])
            if self.earlier is not None and model.fitted_.file_hash:
                shutil.copy2(self.earlier, new)  # with its time: it is as old as it was
                self.record["model"] = model.fitted_.file_hash
            elif self.earlier is not None:  # without people who were forgotten since
                was = self.earlier.stat()
                self.record["model"] = files.save(
                    model.fitted_, new, model.fitted_.has_histories, self.notes, was.st_mode & 0o777, None
                )
                os.utime(new, ns=(was.st_atime_ns, was.st_mtime_ns))
            else:
                names = ("started", "metric", "value", "error", "asked")
                results = {name: self.record[name] for name in names if name in self.record}
                notes = {**results, "fit_seconds": self.record["seconds"]["fit"]}
                mode = publish.permissions or (0o600 if publish.histories else None)
                self.record["model"] = files.save(model.fitted_, new, publish.histories, notes, mode, None)
            write_erasures(target, model.fitted_.erasures)
            if target.exists():
                keep_owner(target, new)
            kept = _copy(target, earlier)
            self.report.write()  # with the numbers, in case the process is killed from here on
            check_unchanged(target, [self.file_hash])
        # The tables are the new ones already: replace the model before anything else can fail.
        if kept is not None:
            put_in_place(earlier, kept)
        put_in_place(new, target)
        _log.info("wrote %s", publish.model)
        _remove_old(target, publish.keep, kept)

    @contextmanager
    def _stage(self, name: str) -> Iterator[None]:
        start = time.perf_counter()
        try:
            yield
        finally:
            self.record["seconds"][name] = round(time.perf_counter() - start, 3)


def _target(model: Path) -> Path:
    """Return the file that a link leads to."""
    return model.resolve() if model.is_symlink() else model


def _beside(target: Path, name: str) -> Path:
    """Return a hidden file beside a model, such as .shop.mrf.nightly for the one to be published."""
    return target.with_name(f".{target.name}.{name}")


def _copy(target: Path, earlier: Path) -> Path | None:
    """Link or copy the model to be replaced to `earlier`; return the name, with its time, to keep it as."""
    if not target.exists():
        return None
    earlier.unlink(missing_ok=True)
    try:
        os.link(target, earlier)
    except OSError:  # a file system without links, or another user's file
        with writing(earlier, mode=target.stat().st_mode & 0o777) as unfinished:
            shutil.copyfile(target, unfinished)
    written = datetime.fromtimestamp(target.stat().st_mtime, UTC)
    return target.with_name(f"{target.stem}.{written:%Y%m%dT%H%M%S.%fZ}{target.suffix}")


def _remove_old(target: Path, keep: int, latest: Path | None) -> None:
    """Remove all but the last `keep` earlier models; `latest`, replaced just now, is the last of them."""
    paths = target.parent.glob(f"{escape(target.stem)}.{'[0-9]' * 8}T*Z*{escape(target.suffix)}")
    old = sorted(paths, key=lambda path: (path == latest, path))
    for path in old[: max(len(old) - keep, 0)]:
        with suppress(OSError):  # another user's file, perhaps: the new model is published all the same
            path.unlink()
            _beside(path, "lock").unlink(missing_ok=True)


def _peak_memory() -> int:
    """Return the largest memory of this process so far, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
