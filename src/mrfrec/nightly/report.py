"""The report of a nightly job: its last runs as JSON, and as a page of tables and charts without scripts."""

import json
import logging
from collections.abc import Sequence
from datetime import UTC, datetime
from html import escape
from pathlib import Path
from string import Template
from typing import Any

from mrfrec.errors import DataError
from mrfrec.evaluation.metrics import parse
from mrfrec.io.atomic import writing
from mrfrec.nightly.job import Job
from mrfrec.shown import Report, Section

Run = dict[str, Any]

_log = logging.getLogger("mrfrec.nightly")
_RECENT = 7  # published runs that the size of new data is compared with
_KEPT = 100  # runs in the report
_SHOWN = 30  # runs on the page
_NO_END = "the run did not end: its process was killed, or the machine stopped"
# The numbers of a run that are compared and drawn: name and format by key.
_NUMBERS = {
    "value": ("metric", ".4f"), "users": ("users", ",.0f"), "items": ("items", ",.0f"),
    "pairs": ("pairs", ",.0f"), "coverage": ("share of the items recommended", ".1%"),
    "seconds": ("seconds", ",.1f"),
}  # fmt: skip
_PAGE = Template("""<!doctype html>
<html lang='en'>
<meta charset='utf-8'>
<meta name='viewport' content='width=device-width'>
<title>$title: nightly</title>
<style>
:root { color-scheme: light dark; --bad: light-dark(#b34700, #ff9e4a);
  background: light-dark(#fff, #121212); }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 72rem; margin: 2rem auto; padding: 0 1rem;
  overflow-wrap: anywhere; }
h1 { font-size: 1.4rem; } .bad, .why { color: var(--bad); fill: var(--bad); }
table { border-collapse: collapse; } th, td { padding: .3rem .6rem; vertical-align: top; }
.charts { display: flex; flex-wrap: wrap; gap: 1.5rem; } figure { margin: 0; width: 20rem; max-width: 100%; }
polyline { fill: none; stroke: currentColor; } .limit { stroke: var(--bad); stroke-dasharray: 4 3; }
circle { fill: currentColor; }
</style>
<main>
<h1>$title: <span class='$mark'>$status</span> $when UTC</h1>
$reasons
$report
<div class='charts'>
$charts</div>
</main>
</html>""")


class RunHistory:
    """The runs of a job, the latest last, in REPORT.json and drawn in REPORT.html."""

    def __init__(self, job: Job) -> None:
        """Read the report of a job; it is empty before the first run."""
        self.path = Path(f"{job.report}.json")
        self._title = job.path.stem
        self._samples = job.publish.samples
        self._mode = job.publish.permissions or 0o600
        self.runs: list[Run] = []
        if self.path.exists():
            try:
                self.runs = list(json.loads(self.path.read_bytes())["runs"])
                # Raise now, and not after a fit, if a new run cannot be shown beside these or compared.
                _page(self._title, [*self.runs, *self.runs[-1:]])
                _ = [1 / run[name] for run in self.recent for name in ("users", "items", "pairs")]
                _ = [
                    (dict(run.get("ids", {})), {*run.get("missed", []), *run.get("accepted", [])})
                    for run in self.recent
                ]
                _ = [dict(run.get("columns", {})) for run in self.recent]
                _ = [1 / min(run["rows"].values()) for run in self.recent if run.get("rows")]
                samples = [run["sample"] for run in self.recent if "sample" in run]
                _ = [(int(one["users_to"], 16), bytes.fromhex(one["pairs"])) for one in samples]
            except (OSError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError,
                    RecursionError):  # fmt: skip
                raise DataError(
                    f"{self.path} is not the report of a nightly job. Without it, a new model cannot be "
                    "compared with the last: restore it, or move it away to begin anew."
                ) from None

    @property
    def recent(self) -> list[Run]:
        """The last published runs, at most 7."""
        return [run for run in self.runs if run["status"] == "published"][-_RECENT:]

    @property
    def last_published(self) -> Run | None:
        """The run that new ones are compared with."""
        return next(iter(self.recent[-1:]), None)

    @property
    def nights_since_measuring(self) -> int:
        """The number of published runs from the last one that measured the parameters on."""
        published = [run for run in self.runs if run["status"] == "published"]
        nights = (night for night, run in enumerate(reversed(published), 1) if run.get("measured"))
        return next(nights, len(published))

    def begin(self, run: Run) -> None:
        """Append a run that has started, so that the report has it even if it is killed.

        Only one run is at work at a time, so an earlier run without an end was killed.
        """
        for past in self.runs:
            if past["status"] == "started":
                past |= {"status": "killed", "reasons": [_NO_END]}
                _log.warning("%s: %s", past["started"], _NO_END)
        self.runs.append(run)
        self.write()

    def settle(self, model: str) -> None:
        """Note that a killed run was published after all, if the published model file has its hash."""
        for past in self.runs:
            if past["status"] == "killed" and past.get("model") == model:
                past["status"] = "published"

    def write(self) -> None:
        """Write the report and its page. They always keep the last published run."""
        last = self.last_published
        latest = self.runs[-_KEPT:]
        self.runs = latest if last is None or last in latest else [last, *latest]
        sampled = [run for run in self.runs if "samples" in run]
        # The histories of users are not kept for long.
        for run in sampled[:-1] if self._samples else sampled:
            del run["samples"]
        for run in self.runs[: 0 if last is None else self.runs.index(last)]:
            run.pop("sample", None)
        content = json.dumps({"job": self._title, "runs": self.runs}, indent=2, ensure_ascii=False)
        drawn = _page(self._title, self.runs)
        for path, text in ((self.path, content), (self.path.with_suffix(".html"), drawn)):
            # The files may quote rows and items of users, so only their owner may read them, by any umask.
            with writing(path, mode=self._mode) as unfinished:
                unfinished.write_text(text + "\n", encoding="utf-8")


def _page(title: str, runs: Sequence[Run]) -> str:
    """Return the page of these runs, the latest last."""
    drawn = runs[-_SHOWN:]
    at_work = runs[-1] if runs[-1]["status"] == "started" else None
    last = runs[-2] if at_work and len(runs) > 1 else runs[-1]
    reasons = "".join(f"<li>{escape(reason)}</li>" for reason in last["reasons"])
    about = []
    if at_work:
        began = f"A run started at {_when(at_work)} UTC and has not ended."
        about.append(f"{began} If it is no longer at work, it was killed.")
    changed, told = _changes(runs)
    if "since" in last:
        told.append(f"The events since {last['since']} were read.")
    if "again" in last:
        told.append(f"{last['again']:,} pairs of the new events were in the model already.")
    told += [note["text"] for note in last.get("notes", ())]
    sections = [*changed, *_samples(runs), _table(drawn)]
    return _PAGE.substitute(
        title=escape(title), mark=_mark(last), status=escape(last["status"]), when=_when(last),
        reasons=f"<ul class='why'>{reasons}</ul>" if reasons else "",
        report=Report([*about, *told], sections, notes=_explained(runs)).html(),
        charts="".join(_chart(key, drawn) for key in _NUMBERS),
    )  # fmt: skip


def _changes(runs: Sequence[Run]) -> tuple[list[Section], list[str]]:
    """Compare the last run that has read its data with the published run before it, in a table and lines."""
    index = max((index for index, run in enumerate(runs) if "users" in run), default=0)
    now = runs[index]
    before = next((run for run in reversed(runs[:index]) if run["status"] == "published"), None)
    if before is None:
        return [], []
    rows = []
    for key, (name, form) in _NUMBERS.items():
        was, x = _number(before, key), _number(now, key)
        if was is not None and x is not None and (key != "value" or before["metric"] == now["metric"]):
            change = f"{x / was - 1:+.1%}" if was else ""
            rows.append([now["metric"] if key == "value" else name, f"{was:{form}}", f"{x:{form}}", change])
    lines = []
    if "new_items" in now:
        lines.append(f"{now['new_items']:,} items are new, {now['gone_items']:,} are gone.")
        lines.append(f"{now['drift']:.1%} of the interactions have moved to other items.")
    if now.get("unchanged") is not None:
        lines.append(
            f"{now['unchanged']:.1%} of the first 10 recommendations for up to 1,000 users are the same as "
            "with the model before."
        )
    head = f"From the published run of {_when(before)} to the {now['status']} one of {_when(now)}"
    return [Section(("number", "before", "now", "change"), rows, head)], lines


def _samples(runs: Sequence[Run]) -> list[Section]:
    last = _last(runs, "samples")
    if last is None or not last["samples"]:
        return []
    rows = []
    for number, sample in enumerate(last["samples"], 1):
        more = sample["items"] - len(sample["history"])
        had = ", ".join(sample["history"]) + (f", and {more:,} more" if more else "")
        best = " ".join(f"{rank}. {name}" for rank, name in enumerate(sample["recommended"], 1))
        rows.append([f"User {number}", had, best])
    head = f"What the model of {_when(last)} ({last['status']}) recommends to a few users"
    return [Section(("example", "has", "recommended"), rows, head)]


def _table(runs: Sequence[Run]) -> Section:
    """Return the numbers of these runs, the latest first."""
    rows = []
    for run in reversed(runs):
        value = "" if "value" not in run else f"{run['value']:.4f}"
        value += f" ± {run['error']:.4f}" if run.get("error") is not None else ""
        counts = [f"{run[name]:,}" if name in run else "" for name in ("users", "items", "pairs")]
        seconds = f"{run['seconds']['total']:,.1f}" if "total" in run["seconds"] else ""
        memory = f"{run['peak_memory'] / 1e6:,.0f}" if "peak_memory" in run else ""
        rows.append([_when(run), run["status"], "; ".join(run["reasons"]), value, *counts, seconds, memory])
    names = ("run (UTC)", "result", "why", "metric", "users", "items", "pairs", "seconds", "peak MB")
    return Section(names, rows, "All runs")


def _explained(runs: Sequence[Run]) -> list[str]:
    lines = ["Points are runs; orange ones published nothing. Dashed lines are the limits of the guard."]
    if (last := _last(runs, "value")) is not None:
        metric = parse(last["metric"])
        lines.append(f"{metric}: {metric.meaning}")
        if metric.is_accuracy:
            lines[-1] += (
                f" A fifth of the items of {last['asked']:,} held-out users is hidden; a hit is a hidden "
                f"item among the first {metric.k} recommended. Larger is better."
            )
    if (last := _last(runs, "predicted")) is not None:
        past = last["predicted"]
        error = "" if past["error"] is None else f" ± {past['error']:.4f}"
        lines.append(
            f"The model before would have predicted what {past['asked']:,} users took since then with "
            f"{past['metric']} {past['value']:.4f}{error}."
        )
    if (last := _last(runs, "values")) is not None:
        lines.append(f"Parameters: {last['values']}.")
    return lines


def _chart(key: str, runs: Sequence[Run]) -> str:
    """Draw a number of two or more runs over their dates, and the limits of the guard as dashed lines."""
    name, form = _NUMBERS[key]
    points = [(_date(run).timestamp(), x, run) for run in runs if (x := _number(run, key)) is not None]
    # Earlier runs may have had another metric.
    if key == "value" and points:
        name = points[-1][2]["metric"]
        points = [point for point in points if point[2]["metric"] == name]
    if len(points) < 2:
        return ""
    limits = [
        [(at, limit) for at, _, run in points if (limit := _limits(run, key)[side]) is not None]
        for side in (0, 1)
    ]
    lines = [("limit", line) for line in limits]
    lines.append(("published", [(at, x) for at, x, run in points if _mark(run) == "good"]))
    numbers = [x for _, x, _ in points] + [x for line in limits for _, x in line]
    low, high, first, last = min(numbers), max(numbers), points[0][0], points[-1][0]

    def position(at: float, x: float) -> tuple[float, float]:
        across = (at - first) / (last - first) if last > first else 0.5
        up = (x - low) / (high - low) if high > low else 0.5
        return round(5 + 290 * across, 1), round(95 - 90 * up, 1)

    drawn = ""
    for kind, line in lines:
        corners = " ".join(f"{x},{y}" for x, y in (position(*point) for point in line))
        drawn += f"<polyline class='{kind}' points='{corners}'/>" if line else ""
    for at, x, run in points:
        across, down = position(at, x)
        hint = f"<title>{_when(run)}: {x:{form}} ({escape(run['status'])})</title>"
        drawn += f"<circle class='{_mark(run)}' cx='{across}' cy='{down}' r='3.5'>{hint}</circle>"
    days = " to ".join(f"{_when(points[end][2])[:10]}" for end in (0, -1))
    caption = f"{escape(name)}: {points[-1][1]:{form}} ({days}, between {low:{form}} and {high:{form}})"
    return (
        f"<figure><figcaption>{caption}</figcaption>"
        f"<svg viewBox='0 0 300 100' role='img' aria-label='{caption}'>{drawn}</svg></figure>\n"
    )


def _limits(run: Run, key: str) -> tuple[float | None, float | None]:
    least, most = run.get("limits", {}).get(key, (None, None))
    return least, most


def _number(run: Run, key: str) -> float | None:
    return run["seconds"].get("total") if key == "seconds" else run.get(key)


def _last(runs: Sequence[Run], key: str) -> Run | None:
    """Return the last run that has a value of this name."""
    return next((run for run in reversed(runs) if key in run), None)


def _mark(run: Run) -> str:
    return "bad" if run["status"] in ("refused", "failed", "killed") else "good"


def _date(run: Run) -> datetime:
    return datetime.fromisoformat(run["started"]).astimezone(UTC)


def _when(run: Run) -> str:
    return f"{_date(run):%Y-%m-%d %H:%M}"
