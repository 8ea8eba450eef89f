"""Run a nightly job: read → guard the data → evaluate → guard the metric → fit → publish → report."""

import logging
import os
import shutil
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

from mrfrec.checks import check_flag, check_nonnegative, counted
from mrfrec.core.engine import Progress
from mrfrec.data.catalogue import Catalogue
from mrfrec.data.erasures import Erasures
from mrfrec.data.ids import Ids
from mrfrec.data.interactions import Interactions
from mrfrec.errors import DataError
from mrfrec.evaluation.metrics import Mean, parse
from mrfrec.evaluation.protocol import fit_and_evaluate
from mrfrec.evaluation.splits import by_hash
from mrfrec.fitted import files
from mrfrec.fitted.measured import Measured
from mrfrec.io.artifact import read_erasures
from mrfrec.io.atomic import WAIT, file_path, holding, locked
from mrfrec.models.recommender import Recommender
from mrfrec.models.registry import load
from mrfrec.nightly.continuity import sample_of, share_again
from mrfrec.nightly.guard import (
    Bound,
    bounds_of,
    compare_recommendations,
    drift,
    faults,
    ids_of,
    limits,
    predicted_since,
)
from mrfrec.nightly.job import Job, latest_time, read_job
from mrfrec.nightly.preflight import check_rules, check_tables
from mrfrec.nightly.publishing import beside, publish, remove_unpublished, target_of
from mrfrec.nightly.ranges import times_ahead
from mrfrec.nightly.reading import read_data
from mrfrec.nightly.record import Night

_log = logging.getLogger("mrfrec.nightly")
# Names of the results of an evaluation, in the record of a run and in the notes of a model.
_RESULTS = ("metric", "value", "error", "asked")
# What the notes of a model keep of the record of its run, for a roll-back to it.
_NOTED = ("started", "read_at", "missed", "accepted", *_RESULTS)


def run(
    job: "Job | str | PathLike[str]",
    *,
    day: str | None = None,
    accept: bool = False,
    accept_missed: bool = False,
    wait: float = WAIT,
    earlier: "str | PathLike[str] | None" = None,
    progress: "Progress | None" = None,
) -> dict[str, Any]:
    """Run a nightly job and return the record of the run, as it stands in the report.

    Parameters
    ----------
    job
        A TOML file (docs/reference/job.md has its keys), or what `read_job` returned.
    day
        What {date} stands for in the job, such as "2026-11-16"; today (UTC) by default.
    accept
        Publish even if the guard refuses. Later runs are compared with this one.
    accept_missed
        In mode "update": from now on, name no days or times that no night has read up to now.
    wait
        Seconds to wait for another process that rewrites the model file, such as `mrfrec forget`. If another
        run of the job is at work, the run fails at once.
    earlier
        Roll back to this model file: publish it and the tables of the job. Nothing is read, fitted or
        guarded.
    progress
        Called as `progress(stage, done, total)`.

    Raises
    ------
    RefusedError
        The guard refuses the new model. The published version stays; the report has the reasons.
    BusyError
        Another run of the job is at work, or another process is still rewriting the model after `wait`.
    """
    check_flag("accept", accept)
    check_flag("accept_missed", accept_missed)
    job = job if isinstance(job, Job) else read_job(job, day)
    wait = check_nonnegative("wait", wait)
    lock = beside(target_of(job.publish.model), "nightly.lock")
    with holding(lock, "another run of this job is at work. Wait for its end."):
        try:
            night = Night(job, accept, accept_missed, progress)
            with night.recorded(), locked(job.publish.model, wait=wait):
                if earlier:
                    _roll_back(night, file_path(earlier))
                else:
                    _work(night)
            return night.record
        finally:
            remove_unpublished(job.publish.model)


def _work(night: Night) -> None:
    """Make a model of the events and publish it, if the guard finds no fault."""
    job = night.job
    check_tables(job)
    with night.noting_warnings(), night.stage("read"):
        before = _read_published(night)
        data = read_data(night, before.model, before.erased)
    bounds = _guard_data(night, before.model, data)
    _ask_published(night, before.model, data)
    measured = _values_to_keep(night, before.model)
    with night.stage("measure"):
        measured, users = _evaluate(night, data, measured, bounds)
    with night.stage("fit"):
        model = job.build().fit(data, progress=night.progress, measured=measured)
    if model.measured_ is not None:
        night.record["values"] = str(model.measured_)
    with night.stage("compare"):
        options = {} if job.publish.recommendations is None else job.publish.recommendations.options
        options.pop("explain", None)
        count = job.publish.samples
        night.record |= compare_recommendations(model, before.model, data, users, count, **options)
    file_hash = before.file_hash
    # The published model is not needed any more, and takes memory.
    del before

    def write(path: Path) -> str:
        results = {name: night.record[name] for name in _NOTED if name in night.record}
        notes = {**results, "fit_seconds": night.record["seconds"]["fit"]}
        mode = job.publish.permissions or (0o600 if job.publish.histories else None)
        return files.save(model.fitted_, path, job.publish.histories, notes, mode, None)

    with night.stage("publish"):
        publish(night, model, write, file_hash, bounds)


class _Published(NamedTuple):
    """What an earlier run has published."""

    model: Recommender | None
    file_hash: str
    erased: Erasures  # users who were forgotten


def _read_published(night: Night) -> _Published:
    """Open the published model, if there is one."""
    path = night.job.publish.model
    if not path.exists():
        return _Published(None, "", read_erasures(path) or Erasures())
    model = load(path)
    night.history.settle(model.fitted_.file_hash)
    return _Published(model, model.fitted_.file_hash, model.fitted_.erasures)


def _guard_data(night: Night, published: Recommender | None, data: Interactions) -> list[Bound]:
    """Record the size of the data, and refuse it if it is out of bounds. Returns the bounds of the guard."""
    job = night.job
    check_tables(job, data.users.type, data.items.type)
    table = None if data.table is None else data.table.over(data.items)
    check_rules(job, Catalogue(data.items, data.titles, data.popularity, data.n_users, table=table))
    size = {"users": data.n_users, "items": data.n_items, "pairs": len(data)}
    moved = {"drift": None} if published is None else drift(published, data)
    night.record |= {**size, **moved, "data": data.fingerprint, "ids": ids_of(data.users, data.items)}
    sample = night.last.get("sample")
    if job.source.mode == "fit" and night.last.get("data") == data.fingerprint:
        reason = "the events are those of the last published run: does the source still get new ones?"
        night.record["reasons"].append(reason)
        _log.warning(reason)
    night.record["same_pairs"] = None if sample is None else share_again(sample, data)
    night.record["sample"] = sample_of(data)
    recent = night.history.recent or ([] if published is None else [published.fitted_.size._asdict()])
    bounds = bounds_of(job.guard, recent, night.history.last_published)
    night.record["limits"] = limits(bounds)
    _log.info("%s users, %s items, %s pairs", *(f"{count:,}" for count in size.values()))
    numbers = {**size, **{name: night.record.get(name) for name in ("drift", "same_pairs", "bad")}}
    night.refuse_if([*times_ahead(data, latest_time()), *faults(bounds, numbers)])
    return bounds


def _ask_published(night: Night, published: Recommender | None, data: Interactions) -> None:
    """Record how well the published model would have predicted what came since its data ended."""
    if data.times is None:
        return
    night.record["latest"] = int(data.times.max())
    ended = night.last.get("latest")
    metric = parse(night.job.guard.metric)
    if published is None or ended is None or not metric.is_accuracy:
        return
    name = f"{metric.kind}@{min(metric.k, len(published.items_))}"
    if (predicted := predicted_since(published, data, ended, name)) is not None:
        night.record["predicted"] = predicted
        shown = Mean(predicted["value"], predicted["error"] or 0.0)
        asked = f"{predicted['asked']:,}"
        _log.info(
            "the model before would have predicted what came since: %s %s, %s users", name, shown, asked
        )


def _values_to_keep(night: Night, published: Recommender | None) -> Measured | None:
    """Return the parameters that the published model measured, or None if it is time to measure anew."""
    nights = night.job.model.measure_every
    is_due = nights is not None and night.history.nights_since_measuring >= nights
    return None if published is None or is_due else published.measured_


def _evaluate(
    night: Night, data: Interactions, measured: Measured | None, bounds: list[Bound]
) -> tuple[Measured | None, Ids]:
    """Evaluate the model of the job on held-out users, and refuse it if the metric is out of bounds.

    `measured` are the values that an earlier model measured; with None they are measured anew. Returns the
    values for the fit to all users, and the users who were held out.
    """
    guard, recommendations = night.job.guard, night.job.publish.recommendations
    metric = parse(guard.metric)
    try:
        split = by_hash(data, guard.heldout)
    except DataError as reason:
        night.refuse_if([f"nothing can be measured: {str(reason).rstrip('.')}"])
        return measured, data.users
    # If there are fewer items than the metric looks at, all items count.
    name = f"{metric.kind}@{min(metric.k, split.training.n_items)}"
    k = 20 if recommendations is None else recommendations.k
    coverage = f"coverage@{min(k, split.training.n_items)}"
    model = night.job.build()
    results = fit_and_evaluate(model, split, [name, coverage], progress=night.progress, measured=measured)
    mean = results.mean(name)
    # The error of a single user is NaN.
    error = mean.error if mean.error == mean.error else None
    night.record |= {"metric": guard.metric, "value": mean.mean, "error": error, "asked": len(split.test)}
    night.record["coverage"] = results.mean(coverage).mean
    _log.info("%s %s on %s held-out users", guard.metric, mean, f"{len(split.test):,}")
    night.refuse_if(faults(bounds, {"value": mean}))
    night.record["measured"] = measured is None
    return model.measured_, split.test.users


def _roll_back(night: Night, earlier: Path) -> None:
    """Publish an earlier model. The next run is compared with its numbers."""
    job = night.job
    model = load(earlier)
    fitted = model.fitted_
    training = fitted.training
    if job.publish.recommendations is not None:
        training = fitted.training_for("publish.recommendations", "Roll back to a file with histories, or")
    check_tables(job, training.users.type if training else "unknown", fitted.catalogue.items.type)
    check_rules(job, fitted.catalogue)
    with night.noting_warnings():
        before = _read_published(night)
    said = f"rolled back to {earlier.name}"
    if later := before.erased.beyond(fitted.erased):
        if not fitted.has_histories:
            reason = f"{earlier.name} has no histories and was written before {counted(later, 'erasure')}"
            night.refuse_if([f"{reason}: the people who were forgotten may be in its weights"])
        model.forget(before.erased, progress=night.progress)
        if gone := fitted.size.users - model.fitted_.size.users:
            said += f", fitted again without {counted(gone, 'user')} who were forgotten since"
    size = model.fitted_.size._asdict()
    night.record |= {name: fitted.notes[name] for name in _RESULTS if name in fitted.notes}
    night.record |= {name: size[name] for name in ("users", "items", "pairs")}
    night.record["ids"] = ids_of(training.users if training else None, fitted.catalogue.items)
    night.record["columns"] = dict(fitted.columns)
    if model.fitted_.has_histories:
        night.record["sample"] = sample_of(model.fitted_.data_for("roll back"))
    night.record["missed"] = fitted.notes.get("missed", [])
    night.record["accepted"] = night.accepted_by(model)
    night.record["read_at"] = fitted.notes.get("read_at")
    night.record["reasons"].append(said)

    def write(path: Path) -> str:
        return _write_as_old(model, fitted.notes, earlier, path)

    with night.stage("publish"):
        publish(night, model, write, before.file_hash)


def _write_as_old(model: Recommender, notes: Mapping[str, Any], earlier: Path, path: Path) -> str:
    """Write an earlier model, which keeps the time of its file: it is as old as it was."""
    if model.fitted_.file_hash:
        shutil.copy2(earlier, path)
        return model.fitted_.file_hash
    # Users who were forgotten have changed the model, so it is written anew.
    was = earlier.stat()
    written = files.save(model.fitted_, path, model.fitted_.has_histories, notes, was.st_mode & 0o777, None)
    os.utime(path, ns=(was.st_atime_ns, was.st_mtime_ns))
    return written
