"""The history of a nightly job: its last runs as JSON, and as a page to look at."""

import json
import logging
from pathlib import Path
from typing import Any

from mrfrec.errors import DataError
from mrfrec.io.atomic import writing
from mrfrec.nightly.job import Job
from mrfrec.nightly.page import page

_log = logging.getLogger("mrfrec.nightly")
_RECENT = 7  # published runs that the size of new data is compared with
_KEPT = 100  # runs in the report
_NO_END = "the run did not end: its process was killed, or the machine stopped"


class RunHistory:
    """The runs of a job, the latest last, in REPORT.json; also drawn as REPORT.html."""

    def __init__(self, job: Job) -> None:
        """Read the report of a job; it is empty before the first run."""
        self.path = Path(f"{job.report}.json")
        self._title = job.path.stem
        self._samples = job.publish.samples
        self._mode = job.publish.permissions or 0o600
        self.runs: list[dict[str, Any]] = []
        if self.path.exists():
            try:
                self.runs = list(json.loads(self.path.read_bytes())["runs"])
                # It must be possible to show the runs beside a further one, and to compare with them.
                page(self._title, [*self.runs, *self.runs[-1:]])
                _ = [1 / run[name] for run in self.recent for name in ("users", "items", "pairs")]
                _ = [(dict(run.get("ids", {})), list(run.get("missed", []))) for run in self.recent]
            except (OSError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError,
                    RecursionError):  # fmt: skip
                raise DataError(
                    f"{self.path} is not the report of a nightly job. Without it, a new model cannot be "
                    "compared with the last: restore it, or move it away to begin anew."
                ) from None

    @property
    def recent(self) -> list[dict[str, Any]]:
        """The last published runs, 7 at most."""
        return [run for run in self.runs if run["status"] == "published"][-_RECENT:]

    @property
    def last_published(self) -> dict[str, Any] | None:
        """The run that new ones are compared with."""
        return next(iter(self.recent[-1:]), None)

    @property
    def nights_since_measuring(self) -> int:
        """The number of runs published since one that measured the parameters, that one included."""
        published = [run for run in self.runs if run["status"] == "published"]
        nights = (night for night, run in enumerate(reversed(published), 1) if run.get("measured"))
        return next(nights, len(published))

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

    def settle(self, model: str) -> None:
        """Note that a run was published, if it was killed only after its model, of this hash, was there."""
        for past in self.runs:
            if past["status"] == "killed" and past.get("model") == model:
                past["status"] = "published"

    def write(self) -> None:
        """Write the report and its page. The last published run always stays."""
        last = self.last_published
        latest = self.runs[-_KEPT:]
        self.runs = latest if last is None or last in latest else [last, *latest]
        sampled = [run for run in self.runs if "samples" in run]
        for run in sampled[:-1] if self._samples else sampled:  # what people had is not kept for long
            del run["samples"]
        content = json.dumps({"job": self._title, "runs": self.runs}, indent=2, ensure_ascii=False)
        drawn = page(self._title, self.runs)
        for path, text in ((self.path, content), (self.path.with_suffix(".html"), drawn)):
            # They may quote rows and items of people: others must not read them, whatever the umask of cron.
            with writing(path, mode=self._mode) as unfinished:
                unfinished.write_text(text + "\n", encoding="utf-8")
