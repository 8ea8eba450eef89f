"""Publish a model and its tables: prepare all of them, then exchange them for the published ones.

The tables of a database are exchanged in one transaction, and files by a rename. A run that is killed before
leaves the earlier version.
"""

import logging
import os
import shutil
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from datetime import UTC, datetime
from glob import escape
from pathlib import Path
from typing import Any

from mrfrec.answers.tables import staged_recommendations, staged_similar_items
from mrfrec.fitted.state import Runtime
from mrfrec.io.artifact import check_unchanged, write_erasures
from mrfrec.io.atomic import keep_owner, put_in_place, remove_with_leftovers, writing
from mrfrec.io.staging import open_staging
from mrfrec.models.recommender import Recommender
from mrfrec.nightly.guard import Bound, faults
from mrfrec.nightly.record import Night

_log = logging.getLogger("mrfrec.nightly")


def publish(
    night: Night,
    model: Recommender,
    write: Callable[[Path], str],
    file_hash: str,
    bounds: Sequence[Bound] = (),
) -> None:
    """Publish a model and the tables of its job, unless their rows are out of bounds.

    `write` writes the model to a path and returns the hash of that file. `file_hash` is the hash of the model
    that the run has read: if another one was published since, the run fails.
    """
    target = target_of(night.job.publish.model)
    new, earlier = beside(target, "nightly"), beside(target, "earlier")
    with ExitStack() as staged:
        # The stack ends in reverse order. The databases, which are entered last, commit first, since a commit
        # may fail; then the files are renamed.
        _stage_tables(night, model, staged, bounds)
        night.record["model"] = write(new)
        write_erasures(target, model.fitted_.erasures)
        if target.exists():
            keep_owner(target, new)
        kept = _keep_earlier(target, earlier)
        # The process may be killed from here on, so the report already has the numbers.
        night.history.write()
        check_unchanged(target, [file_hash])
    # The tables are the new ones now: replace the model before anything else can fail.
    if kept is not None:
        put_in_place(earlier, kept)
    put_in_place(new, target)
    _log.info("wrote %s", night.job.publish.model)
    _remove_old(target, night.job.publish.keep, kept)


def _stage_tables(night: Night, model: Recommender, staged: ExitStack, bounds: Sequence[Bound]) -> None:
    """Write the tables of the job beside the published ones; they are exchanged when `staged` ends."""
    counts = night.record["rows"] = {}
    # All tables of a database are replaced in one transaction.
    databases: dict[str, Any] = {}
    for what, sink in sorted(night.job.sinks.items(), key=lambda one: one[1].table is not None):
        if sink.table and sink.to not in databases:
            databases[sink.to] = staged.enter_context(open_staging(sink.to))
        destination = databases.get(sink.to, sink.to)
        target_options = {"table": sink.table, "columns": sink.columns}
        options = {"k": sink.k, "target": target_options, "progress": night.progress, **sink.options}
        if what == "similar items":
            written = staged_similar_items(model.fitted_, destination, **options)
        else:
            written = staged_recommendations(model.fitted_, Runtime.of(model), destination, **options)
        rows = counts[what] = staged.enter_context(written)
        _log.info("%s rows of %s for %s", f"{rows:,}", what, sink.where)
        night.refuse_if(faults(bounds, {what: rows}) if rows else [f"there are no {what} to publish"])


def remove_unpublished(model: Path) -> list[Path]:
    """Remove the copies of a model that a killed run may have left beside it, and return their names.

    The caller must hold the lock of the model or of the job.
    """
    copies = [beside(target_of(model), name) for name in ("nightly", "earlier")]
    removed = [copy for copy in copies if copy.exists()]
    for copy in copies:
        remove_with_leftovers(copy)
    return removed


def target_of(model: Path) -> Path:
    """Return the file that a link leads to."""
    return model.resolve() if model.is_symlink() else model


def beside(target: Path, name: str) -> Path:
    """Return a hidden file beside a model, such as .shop.mrf.nightly for the one to be published."""
    return target.with_name(f".{target.name}.{name}")


def _keep_earlier(target: Path, earlier: Path) -> Path | None:
    """Link or copy the model to be replaced to `earlier`; return the name under which it will be kept."""
    if not target.exists():
        return None
    earlier.unlink(missing_ok=True)
    try:
        os.link(target, earlier)
    except OSError:
        # The file system has no links, or the file belongs to another user.
        with writing(earlier, mode=target.stat().st_mode & 0o777) as unfinished:
            shutil.copyfile(target, unfinished)
    written = datetime.fromtimestamp(target.stat().st_mtime, UTC)
    return target.with_name(f"{target.stem}.{written:%Y%m%dT%H%M%S.%fZ}{target.suffix}")


def _remove_old(target: Path, keep: int, latest: Path | None) -> None:
    """Remove all but the last `keep` earlier models; `latest`, replaced just now, counts as the last one."""
    paths = target.parent.glob(f"{escape(target.stem)}.{'[0-9]' * 8}T*Z*{escape(target.suffix)}")
    old = sorted(paths, key=lambda path: (path == latest, path))
    for path in old[: max(len(old) - keep, 0)]:
        # A file of another user may stay: the new model is published already.
        with suppress(OSError):
            path.unlink()
            beside(path, "lock").unlink(missing_ok=True)
