"""The history of a nightly job: its last runs as JSON, and as a page to look at."""

import json
import logging
import math
from pathlib import Path
from typing import Any

from mrfrec.errors import DataError
from mrfrec.io.atomic import writing
from mrfrec.nightly.job import Job
from mrfrec.nightly.page import page

_log = logging.getLogger("mrfrec.nightly")
_RECENT = 7  # published runs that the size of new data is compared with
_NO_END = "the run did not end: its process was killed, or the machine stopped"


class RunHistory:
    """The runs of a job, the latest last, in REPORT.json; also drawn as REPORT.html."""

    def __init__(self, job: Job, runs: list[dict[str, Any]]) -> None:
        self.path, self.runs = Path(f"{job.report}.json"), runs
        self._title, self._most, self._samples = job.path.stem, job.publish.runs, job.publish.samples

    @classmethod
    def open(cls, job: Job) -> "RunHistory":
        """Read the report of a job; it is empty before the first run."""
        path = Path(f"{job.report}.json")
        runs: list[dict[str, Any]] = []
        if path.exists():
            try:
                runs = json.loads(path.read_bytes())["runs"]
                complete = isinstance(runs, list) and all(_is_complete(run) for run in runs)
                if complete and runs:
                    page(job.path.stem, runs)  # it must be possible to show them
            except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
                complete = False
            if not complete:
                raise DataError(
                    f"{path} is not the report of a nightly job. Without it, a new model cannot be compared "
                    "with the last: restore it, or move it away to begin anew."
                )
        return cls(job, runs)

    @property
    def last_published(self) -> dict[str, Any] | None:
        """The run that new ones are compared with."""
        return next((run for run in reversed(self.runs) if run["status"] == "published"), None)

    @property
    def recent(self) -> list[dict[str, Any]]:
        """The last published runs, 7 at most."""
        return [run for run in self.runs if run["status"] == "published"][-_RECENT:]

    def begin(self, run: dict[str, Any]) -> None:
        """Append a run that has started, so that the report has it even if it is killed.

        Only one run is at work at a time: an earlier run without an end was killed.
        """
        for past in self.runs:
            if past["status"] == "started":
                past |= {"status": "killed", "reasons": [_NO_END]}
                _log.warning("%s: %s", past["started"], _NO_END)
        self.runs.append(run)
        self.write()

    def write(self) -> None:
        """Write the report and its page. The last published run always stays; only it keeps its samples."""
        last = self.last_published
        for run in self.runs:
            if run is not last or not self._samples:
                run.pop("samples", None)
        if len(self.runs) > self._most:
            recent = self.runs[-self._most :]
            self.runs = recent if last is None or last in recent else [last, *recent]
        content = json.dumps({"job": self._title, "runs": self.runs}, indent=2, ensure_ascii=False)
        drawn = page(self._title, self.runs)
        for path, text in ((self.path, content), (self.path.with_suffix(".html"), drawn)):
            with writing(path) as unfinished:
                unfinished.write_text(text + "\n", encoding="utf-8")


def _is_complete(run: dict[str, Any]) -> bool:
    """Return whether a run has the values that later runs are compared with and the page shows."""
    is_published = run["status"] == "published"
    texts = [run["started"], run["status"], *run["reasons"], run.get("metric", "")]
    counts = [run[name] for name in ("users", "items", "pairs") if is_published or name in run]
    numbers = [run["value"]] if "value" in run else []  # there is none if nothing could be measured
    numbers += [run["error"]] if run.get("error") is not None else []
    numbers += [*run["seconds"].values(), run.get("peak_memory", 0)]
    return (
        run["status"] in ("published", "refused", "failed", "started", "killed")
        and all(isinstance(text, str) for text in texts)
        and all(type(count) is int and count > 0 for count in counts)
        and all(type(number) in (int, float) and math.isfinite(number) for number in numbers)
        and ("value" not in run or bool(run["metric"]))
    )
