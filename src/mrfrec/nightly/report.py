"""The report of a nightly job: the last runs as JSON, and a page to look at."""

import json
import math
from pathlib import Path
from typing import Any

from mrfrec.errors import DataError
from mrfrec.io.atomic import writing
from mrfrec.nightly.job import Job
from mrfrec.nightly.page import page


class RunHistory:
    """The runs of a job, the latest last, in REPORT.json; also drawn as REPORT.html."""

    def __init__(self, path: Path, title: str, most: int, runs: list[dict[str, Any]]) -> None:
        self.path, self._title, self._most, self.runs = path, title, most, runs

    @classmethod
    def open(cls, job: Job) -> "RunHistory":
        """Read the report of a job; it is empty before the first run."""
        path = Path(f"{job.report}.json")
        runs: list[dict[str, Any]] = []
        if path.exists():
            try:
                runs = json.loads(path.read_bytes())["runs"]
                complete = isinstance(runs, list) and all(_is_complete(run) for run in runs)
            except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
                complete = False
            if not complete:
                raise DataError(
                    f"{path} is not the report of a nightly job. Without it, a new model cannot be compared "
                    "with the last: restore it, or move it away to begin anew."
                )
        return cls(path, job.path.stem, job.publish.runs, runs)

    @property
    def last_published(self) -> dict[str, Any] | None:
        """The run that new ones are compared with."""
        return next((run for run in reversed(self.runs) if run["status"] == "published"), None)

    def add(self, run: dict[str, Any]) -> None:
        """Append a run, and write the report and its page. The last published run stays in any case."""
        self.runs.append(run)
        last = self.last_published
        if len(self.runs) > self._most:
            recent = self.runs[-self._most :]
            self.runs = recent if last is None or last in recent else [last, *recent]
        content = json.dumps({"job": self._title, "runs": self.runs}, indent=2, ensure_ascii=False)
        for path, text in (
            (self.path, content),
            (self.path.with_suffix(".html"), page(self._title, self.runs)),
        ):
            with writing(path) as unfinished:
                unfinished.write_text(text + "\n", encoding="utf-8")


def _is_complete(run: dict[str, Any]) -> bool:
    """Return whether a run has what later ones are compared with, and what the page shows."""
    is_published = run["status"] == "published"
    texts = [run["started"], run["status"], *run["reasons"], run.get("metric", "")]
    counts = [run[name] for name in ("users", "items", "pairs") if is_published or name in run]
    numbers = [run[name] for name in ("value",) if is_published or name in run]
    numbers += [run["error"]] if run.get("error") is not None else []
    numbers += [*run["seconds"].values(), run.get("peak_memory", 0)]
    return (
        run["status"] in ("published", "refused", "failed")
        and all(isinstance(text, str) for text in texts)
        and all(type(count) is int and count > 0 for count in counts)
        and all(type(number) in (int, float) and math.isfinite(number) for number in numbers)
        and (not is_published or bool(run["metric"]))
    )
