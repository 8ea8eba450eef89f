"""A run of a nightly job while it is at work: what it was asked to do, and its record so far."""

import logging
import resource
import sys
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

from mrfrec import __version__
from mrfrec.core.engine import Progress
from mrfrec.errors import MrfrecWarning, RefusedError
from mrfrec.models.recommender import Recommender
from mrfrec.nightly.job import Job
from mrfrec.nightly.report import RunHistory

_log = logging.getLogger("mrfrec.nightly")


class Night:
    """A run of a job. Its `record` is what the report will say about it."""

    def __init__(self, job: Job, accept: bool, accept_missed: bool, progress: Progress | None) -> None:
        self.job = job
        self.history = RunHistory(job)
        self.accept = accept
        self.accept_missed = accept_missed
        self.progress = progress
        self.record: dict[str, Any] = {
            "started": datetime.now(UTC).isoformat(timespec="seconds"),
            "status": "started",
            "reasons": [],
            "seconds": {},
            "mrfrec": __version__,
        }
        self.record["read_at"] = self.record["started"]

    @property
    def last(self) -> dict[str, Any]:
        """The record of the last published run; empty before the first one."""
        return self.history.last_published or {}

    def accepted_by(self, published: Recommender | None) -> list[str]:
        """Return the missed days and times that were accepted, by the last run or by that of a model."""
        noted = {} if published is None else published.notes_
        return sorted({*self.last.get("accepted", []), *noted.get("accepted", [])})

    @contextmanager
    def recorded(self) -> Iterator[None]:
        """Write the record into the report when the run starts, and again when it ends, however it ends."""
        start = time.perf_counter()
        try:
            self.history.begin(self.record)
            yield
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
            self.history.write()
        seconds, peak = self.record["seconds"]["total"], self.record["peak_memory"] / 1e6
        _log.info("published in %.1f s with %.0f MB at most", seconds, peak)

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Record the seconds of a stage."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.record["seconds"][name] = round(time.perf_counter() - start, 3)

    @contextmanager
    def noting_warnings(self) -> Iterator[None]:
        """Write all warnings about the data into the log and the record."""
        notes = self.record["notes"] = []
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", MrfrecWarning)
            try:
                yield
            finally:
                known = {note["text"] for note in notes}
                texts = dict.fromkeys(str(one.message) for one in caught if one.category is MrfrecWarning)
                new = (text for text in texts if text not in known)
                notes += [{"what": "warning", "count": 1, "text": text} for text in new]
                for text in texts:
                    _log.warning("%s", text)

    def refuse_if(self, reasons: Sequence[str]) -> None:
        """Refuse to go on if there are reasons to, unless the run was told to accept them."""
        self.record["reasons"] += reasons
        if self.accept:
            for reason in reasons:
                _log.warning("%s (accepted)", reason)
        elif reasons:
            raise RefusedError(
                f"nothing was published: {'; '.join(reasons)}. If this is as it should be, run the job with "
                "accept=True (--accept); otherwise mend the data."
            )


def _peak_memory() -> int:
    """Return the largest memory of this process so far, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
