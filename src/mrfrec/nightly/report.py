"""The report of a nightly job: the last runs as JSON, and a page to look at."""

import json
from pathlib import Path
from typing import Any

from mrfrec.errors import DataError
from mrfrec.io.atomic import writing
from mrfrec.nightly.job import Job
from mrfrec.nightly.page import page

_NEEDED = {"started": str, "status": str, "reasons": list, "seconds": dict}  # of every run
_OF_PUBLISHED = {"users": int, "items": int, "pairs": int, "metric": str, "value": float}


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
                complete = all(_is_complete(run) for run in runs)
            except (OSError, ValueError, LookupError, TypeError, AttributeError):
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
    if run["status"] not in ("published", "refused", "failed"):
        return False
    needed = _NEEDED | (_OF_PUBLISHED if run["status"] == "published" else {})
    return all(isinstance(run[name], kind) for name, kind in needed.items())
