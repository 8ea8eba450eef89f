"""Run a nightly job: read → guard the data → tune → measure → guard the metric → fit → publish → report.

New tables and files are prepared beside the published ones and take their places at the end, tables in one
transaction, files by a rename. A run that is killed leaves the earlier version, and the next run begins anew.
"""

import fcntl
import filecmp
import logging
import os
import resource
import shutil
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from glob import escape
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mrfrec import __version__
from mrfrec.checks import check_flag
from mrfrec.data.merging import add, origin_of_data
from mrfrec.data.reading import duration
from mrfrec.errors import BusyError, DataError, EmptyTableError, MrfrecError, RefusedError
from mrfrec.evaluation.climbing import climb
from mrfrec.evaluation.heldout import by_hash
from mrfrec.evaluation.metrics import parse
from mrfrec.evaluation.protocol import evaluate
from mrfrec.evaluation.splits import Split
from mrfrec.io.atomic import writing
from mrfrec.io.databases import redacted
from mrfrec.io.staging import open_staging
from mrfrec.io.tables import read_interactions
from mrfrec.models.registry import load
from mrfrec.models.storage.updating import training_data
from mrfrec.nightly.guard import LastModel, data_faults, drift, metric_faults, metric_floor, size_limits
from mrfrec.nightly.history import RunHistory
from mrfrec.nightly.job import Job, read_job
from mrfrec.nightly.places import check_tables
from mrfrec.nightly.samples import sampled_users, samples, unchanged_share

if TYPE_CHECKING:
    from mrfrec.core.engine import Progress
    from mrfrec.data.interactions import Interactions
    from mrfrec.models.recommender import Recommender

_log = logging.getLogger("mrfrec.nightly")


def run(
    job: "Job | str | PathLike[str]",
    *,
    day: str | None = None,
    accept: bool = False,
    keep: int | None = None,
    progress: "Progress | None" = None,
) -> dict[str, Any]:
    """Run a nightly job; returns the record of the run, as it stands in the report.

    Parameters
    ----------
    job
        A TOML file (see the guide to production), or what `read_job` returned.
    day
        What {date} stands for in the job, such as "2026-11-16"; today (UTC) by default.
    accept
        Publish even if the guard refuses; later runs are compared with this one.
    keep
        Number of earlier models to keep, instead of the number in the job.
    progress
        Called as `progress(stage, done, total)`.

    Raises
    ------
    RefusedError
        The guard refuses the new model. The published version stays; the report has the reasons.
    BusyError
        Another run of the job is at work.
    """
    check_flag("accept", accept)
    job = (job if isinstance(job, Job) else read_job(job, day)).keeping(keep)
    with _alone(_target(job.publish.model)):
        try:
            return _Night(job, RunHistory.open(job), progress).go(accept)
        finally:
            _unpublished(_target(job.publish.model)).unlink(missing_ok=True)


def steps(job: Job) -> list[str]:
    """Return the steps of a run as lines of text. Only the report and the old model are read."""
    source, guard, publish = job.source, job.guard, job.publish
    report = RunHistory.open(job)
    before = report.last_published
    published = LastModel.open(publish.model)
    limits = size_limits(guard, report.recent or ([published.size] if published else []))
    names = ", ".join(redacted(name) for name in source.data)
    lines = [
        f"read {names}"
        + (f" and add it to {publish.model}" if source.mode == "update" and published else ""),
        f"hold out {guard.heldout:.0%} of the users with five items or more, by hash, at most 10,000",
    ]
    if job.tune is not None:
        since = f" if the last time is {job.tune.every} ago" if job.tune.every else ""
        lines.append(f"tune {job.kind} for up to {job.tune.minutes:g} minutes{since}")
    lines.append(f"fit {job.build()!r}, measure {guard.metric}, and fit it to all users")
    if not limits:
        lines.append("there is nothing published to compare with: the data may be anything")
    else:
        lines.append("refuse fewer than " + _counted({name: least for name, (least, _) in limits.items()}))
        if any(most is not None for _, most in limits.values()):
            lines.append("refuse more than " + _counted({name: most for name, (_, most) in limits.items()}))
        lines.append(f"refuse if {guard.max_drift:.0%} of the interactions have moved to other items")
    floor = metric_floor(guard, before)
    if before is not None and before.get("metric") == guard.metric:
        lines.append(f"refuse {guard.metric} below {floor:.4f} (it was {before['value']:.4f})")
    else:
        lines.append(f"refuse {guard.metric} below {floor:g}: it has not been measured before")
    lines.append(f"write {publish.model}, and keep {publish.keep} earlier ones")
    lines += [f"write {what} to {sink.where}, {sink.k} each" for what, sink in job.sinks.items()]
    return [*lines, f"write {job.report}.json and {job.report}.html"]


def _counted(counts: Mapping[str, float | None]) -> str:
    return ", ".join(f"{count:,.0f} {name}" for name, count in counts.items() if count is not None)


class _Night:
    """One run, and its record so far."""

    def __init__(self, job: Job, report: RunHistory, progress: "Progress | None") -> None:
        self.job, self.report, self.progress = job, report, progress
        self.before = report.last_published
        self.record: dict[str, Any] = {
            "started": datetime.now(UTC).isoformat(timespec="seconds"),
            "status": "started",
            "reasons": [],
            "seconds": {},
            "mrfrec": __version__,
        }

    def go(self, accept: bool) -> dict[str, Any]:
        start = time.perf_counter()
        try:
            self.report.begin(self.record)
            self._work(accept)
            self.record["status"] = "published"
        except RefusedError:
            self.record["status"] = "refused"
            raise
        except BaseException as error:
            self.record["status"] = "failed"
            self.record["reasons"] = [str(error) or type(error).__name__]
            raise
        finally:
            self.record["seconds"]["total"] = round(time.perf_counter() - start, 3)
            self.record["peak_memory"] = _peak_memory()
            self.report.write()
        seconds, peak = self.record["seconds"]["total"], self.record["peak_memory"]
        _log.info("published in %.1f s with %.0f MB at most", seconds, peak / 1e6)
        return self.record

    def _work(self, accept: bool) -> None:
        job = self.job
        check_tables(job)  # before anything takes time
        published = self._published(accept)
        with self._stage("read"):
            data = self._data()
        check_tables(job, data.users.kind, data.items.kind)
        size = {"users": data.n_users, "items": data.n_items, "pairs": len(data)}
        moved: dict[str, Any] = {"drift": None} if published is None else drift(published, data)
        recent = self.report.recent or ([] if published is None else [published.size])
        limits = size_limits(job.guard, recent)
        self.record |= {**size, **moved, "data": data.fingerprint, "limits": limits}
        _log.info("%s users, %s items, %s pairs", *(f"{count:,}" for count in size.values()))
        self._guard(data_faults(job.guard, recent, size, moved["drift"]), accept)
        split = self._split(data, accept)
        with self._stage("tune"):
            parameters = self._parameters(split)
        recommended = job.publish.recommendations
        options = dict(recommended.options) if recommended else {}
        options.pop("explain", None)
        if split is not None:
            with self._stage("measure"):
                self._measure(split, parameters, recommended.k if recommended else 20, accept)
        users = sampled_users(data.users if split is None else split.test.users)
        del split
        with self._stage("fit"):
            model = job.build(parameters).fit(data, progress=self.progress)
        with self._stage("compare"):
            if published is not None:
                self.record["unchanged"] = unchanged_share(model, job.publish.model, data, users, options)
            self.record["samples"] = samples(model, data, users[: job.publish.samples], options)
        with self._stage("publish"):
            self._publish(model, accept)

    def _published(self, accept: bool) -> LastModel | None:
        try:
            return LastModel.open(self.job.publish.model)
        except MrfrecError as error:
            if not accept:
                raise
            _log.warning("%s (accepted)", error)
            return None

    def _split(self, data: "Interactions", accept: bool) -> Split | None:
        """Hold out users; None if that cannot be done and the model may be published all the same."""
        try:
            return by_hash(data, self.job.guard.heldout, validation=self._tunes)
        except DataError as error:
            # New events are only kept in a published model. If it took a metric to publish the first, a shop
            # whose users have few items on each day would never have one.
            begins = self.job.source.mode == "update" and "value" not in (self.before or {})
            fault = f"nothing can be measured: {str(error).rstrip('.')}"
            if begins and not self.job.guard.min_metric:
                self.record["reasons"].append(fault)
                _log.warning("%s. Until then, models are published without a metric", fault)
            else:
                self._guard([fault], accept)
            return None

    def _measure(self, split: Split, parameters: Mapping[str, Any], k: int, accept: bool) -> None:
        """Measure a model that is fitted to the users who are not held out, and guard the metric."""
        guard, measured = self.job.guard, self._measured(split)
        k = min(k, split.training.n_items)
        coverage = f"coverage@{k}"
        results = evaluate(self.job.build(parameters), split, [measured, coverage], progress=self.progress)
        found = results.mean(measured)
        error = found.error if found.error == found.error else None  # of one user there is none
        self.record |= {"metric": guard.metric, "value": found.mean, "error": error, "asked": len(split.test)}
        self.record |= {"k": k, "coverage": results.mean(coverage).mean}
        self.record["limits"]["value"] = [metric_floor(guard, self.before) or None, None]
        _log.info("%s %s on %s held-out users", guard.metric, found, f"{len(split.test):,}")
        if error is not None and 2 * error > guard.max_drop * found.mean:
            _log.warning(
                "twice the standard error, %.4f, is more than max_drop = %g allows: the guard may refuse by "
                "chance. Hold out more users (heldout), or raise max_drop", 2 * error, guard.max_drop,
            )  # fmt: skip
        self._guard(metric_faults(guard, self.before, guard.metric, found), accept)

    def _measured(self, split: Split) -> str:
        """Return the metric, over all items if there are fewer than it asks for."""
        metric = parse(self.job.guard.metric)
        return f"{metric.kind}@{min(metric.k, split.training.n_items)}"

    def _guard(self, faults: list[str], accept: bool) -> None:
        """Refuse to go on if there are faults, unless they are accepted."""
        self.record["reasons"] += faults
        for fault in faults:
            _log.warning("%s%s", fault, " (accepted)" if accept else "")
        if faults and not accept:
            raise RefusedError(
                f"nothing was published: {'; '.join(faults)}. If this is as it should be, run the job with "
                "accept=True (--accept); otherwise mend the data."
            )

    def _data(self) -> "Interactions":
        job = self.job
        try:
            new = read_interactions(job.source.data, progress=self.progress, **job.source.reading)
        except EmptyTableError as error:
            if job.source.mode == "fit" or not job.publish.model.exists():
                names, query = (
                    ", ".join(map(redacted, job.source.data)),
                    job.source.reading.get("query"),
                )
                asked = f" The query was: {' '.join(query.split())}" if query else ""
                raise EmptyTableError(f"{names}: {error}{asked}") from None
            # The batch is not noted: its events may come later.
            _log.info("there are no new events: the model is made of the same events as the last")
            self.record["reasons"].append("no new events")
            return training_data(load(job.publish.model), "mode = update")
        if new.skipped:
            self.record["skipped"] = new.skipped
        if job.source.mode == "fit":
            return new
        name = job.source.batch or new.fingerprint
        known: tuple[str, ...] = ()
        if job.publish.model.exists():
            model = load(job.publish.model)
            old, known = training_data(model, "mode = update"), model.batches_
            if name in known:
                _log.info("the batch %s was added before", name)
                return old
            new = add(old, new)
        new.origin = replace(origin_of_data(new), batches=(*known, name))
        self.record["batch"] = name
        return new

    # ── parameters ────────────────────────────────────────────────────────────────────────────────

    @property
    def _last_tuned(self) -> dict[str, Any] | None:
        """The last run whose parameters may be used again."""
        tune = self.job.tune
        if tune is None or tune.every is None:
            return None
        start = datetime.now(UTC) - timedelta(microseconds=duration("every", tune.every))
        for past in reversed(self.report.runs):
            if "tuned" in past and past["tuned"]["asked"] == self._asked:
                return past if datetime.fromisoformat(past["tuned"]["at"]) > start else None
        return None

    @property
    def _asked(self) -> dict[str, Any]:
        return {"kind": self.job.kind, "fixed": self.job.parameters}

    @property
    def _tunes(self) -> bool:
        return self.job.tune is not None and self._last_tuned is None

    def _parameters(self, split: Split | None) -> dict[str, Any]:
        job = self.job
        if job.tune is None:
            return job.parameters
        past = self._last_tuned
        if past is not None:
            self.record |= {"parameters": past["parameters"], "tuned": past["tuned"]}
            return dict(past["parameters"])
        if split is None:
            return job.parameters
        best = climb(
            split, self._measured(split), model=job.kind, fixed=job.parameters, minutes=job.tune.minutes,
            machine=job.machine.model_dump(), progress=self.progress,
        ).best  # fmt: skip
        tuned = {"at": self.record["started"], "asked": self._asked}
        self.record |= {"parameters": best.parameters, "tuned": tuned}
        return best.parameters

    # ── publishing ────────────────────────────────────────────────────────────────────────────────

    def _publish(self, model: "Recommender", accept: bool) -> None:
        publish = self.job.publish
        target = _target(publish.model)
        new = _unpublished(target)
        self.record["rows"] = {}
        with ExitStack() as staged:
            # Files first: the block ends with the databases, which may fail, and then renames the files. The
            # tables of one database are replaced in one transaction.
            databases: dict[str, Any] = {}
            for what, sink in sorted(self.job.sinks.items(), key=lambda each: each[1].table is not None):
                if sink.table and sink.to not in databases:
                    databases[sink.to] = staged.enter_context(open_staging(sink.to))
                place = databases.get(sink.to, sink.to)
                is_similar = what == "similar items"
                stage = model.staged_similar_items if is_similar else model.staged_recommendations
                named = {"table": sink.table, "columns": sink.columns, **sink.options}
                rows = staged.enter_context(stage(place, k=sink.k, progress=self.progress, **named))
                self.record["rows"][what] = rows
                _log.info("%s rows of %s for %s", f"{rows:,}", what, sink.where)
                self._guard([] if rows else [f"there are no {what} to publish"], accept)
            names = ("started", "metric", "value", "error", "asked")
            noted = {name: self.record[name] for name in names if name in self.record}
            notes = {**noted, "fit_seconds": self.record["seconds"]["fit"]}
            model.save(new, include_histories=publish.histories, notes=notes)
            _keep_old(target, publish.keep)
        new.replace(target)  # the tables are the new ones: nothing that may fail comes before this
        _log.info("wrote %s", publish.model)

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


def _unpublished(target: Path) -> Path:
    """Return the name of a model that is not published yet."""
    return target.with_name(f".{target.name}.nightly")


def _keep_old(target: Path, keep: int) -> None:
    """Give the model that is to be replaced a second name, by its time; remove the oldest of these."""
    if not target.exists():
        return
    digits = f"{'[0-9]' * 8}T{'[0-9]' * 6}Z"
    old = list(target.parent.glob(f"{escape(target.stem)}.{digits}*{escape(target.suffix)}"))
    # It is among them if it was put back from there, or if a run was killed just after this.
    if not any(filecmp.cmp(target, path, shallow=False) for path in old):
        written = datetime.fromtimestamp(target.stat().st_mtime, UTC)
        for extra in ("", *(f"-{number}" for number in range(1, 100))):  # of one second
            kept = target.with_name(f"{target.stem}.{written:%Y%m%dT%H%M%SZ}{extra}{target.suffix}")
            if kept not in old:
                _link(target, kept)
                old.append(kept)
                break
    old.sort()
    for path in old[: max(len(old) - keep, 0)]:
        path.unlink(missing_ok=True)


def _link(target: Path, kept: Path) -> None:
    """Give a file a second name, or make a copy where that is not possible."""
    try:
        os.link(target, kept)
    except OSError:  # a file system without links, or another user's file
        with writing(kept) as unfinished:
            shutil.copyfile(target, unfinished)
        shutil.copystat(target, kept)


@contextmanager
def _alone(model: Path) -> Iterator[None]:
    """Hold a lock beside the model, which ends with the process that holds it."""
    with model.with_name(f".{model.name}.lock").open("a+") as file:
        try:
            fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            who = file.read(40).strip() or "another process"
            raise BusyError(f"another run of this job is at work ({who}). Wait for its end.") from None
        file.seek(0)
        file.truncate()
        file.write(f"process {os.getpid()}\n")
        file.flush()
        yield


def _peak_memory() -> int:
    """Return the largest memory of this process so far, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
