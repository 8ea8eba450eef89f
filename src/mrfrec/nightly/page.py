"""The page of a nightly job: what changed, plots and a table of its runs, in one file without scripts."""

from collections.abc import Sequence
from datetime import UTC, datetime
from html import escape
from typing import Any

from mrfrec.evaluation.metrics import parse

Run = dict[str, Any]

_SHOWN = 30  # runs
_PLOTS = {  # key of a run: name and format of what is drawn
    "value": ("metric", ".4f"), "users": ("users", ",.0f"), "items": ("items", ",.0f"),
    "pairs": ("pairs", ",.0f"), "coverage": ("share of the items recommended", ".1%"),
    "seconds": ("seconds", ",.1f"),
}  # fmt: skip
_WIDTH, _HEIGHT = 300, 150  # of a plot, in pixels
_LEFT, _RIGHT, _TOP, _BOTTOM = 62, 292, 8, 126  # of the lines in it
_STYLE = """
:root { color-scheme: light dark; --line: #0072b2; --bad: #b34700; --dim: #666; background: #fff; }
@media (prefers-color-scheme: dark) {
  :root { --line: #56b4e9; --bad: #ff9e4a; --dim: #aaa; background: #121212; }
}
body { font: 16px/1.5 system-ui, sans-serif; max-width: 72rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.4rem; } h2 { font-size: 1.1rem; margin-top: 2rem; } h3 { font-size: 1rem; margin: 0; }
main { overflow-wrap: anywhere; } .bad, .why { color: var(--bad); } figure { margin: 0; }
figcaption, .dim { color: var(--dim); font-size: .9rem; } svg { width: 100%; height: auto; }
.grid { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(18rem, 100%), 1fr)); gap: 1.5rem; }
polyline { fill: none; stroke: var(--line); stroke-width: 2; } svg text { fill: var(--dim); font-size: 11px; }
polyline.limit { stroke: var(--bad); stroke-width: 1; stroke-dasharray: 4 3; }
circle { fill: var(--line); } circle.bad { fill: var(--bad); }
.scroll { overflow-x: auto; } table { border-collapse: collapse; font-size: .9rem; white-space: nowrap; }
th, td { text-align: right; padding: .3rem .6rem; border-bottom: 1px solid #8884; vertical-align: top; }
[aria-label=runs] td:nth-child(3) { color: var(--bad); white-space: normal; min-width: 14rem; }
th:first-child, td:first-child, [aria-label=runs] :nth-child(3) { text-align: left; }
"""


def page(title: str, runs: Sequence[Run]) -> str:
    """Return the page of these runs, the latest last."""
    drawn = runs[-_SHOWN:]
    at_work = runs[-1] if runs[-1]["status"] == "started" else None
    last = runs[-2] if at_work and len(runs) > 1 else runs[-1]
    status = f"<span class='{_mark(last)}'>{escape(last['status'])}</span>"
    parts = [
        f"<h1>{escape(title)}: {status} {_when(last)} UTC</h1>",
        _list("ul class='why'", last["reasons"]),
        f"<p>A run started at {_when(at_work)} UTC and has not ended. If it is no longer at work, it was "
        "killed.</p>" if at_work else "",
        _changes(runs),
        "<h2>Runs</h2>", f"<div class='grid'>{''.join(_plot(name, drawn) for name in _PLOTS)}</div>",
        _explained(runs),
        _samples(runs),
        _runs(drawn),
    ]  # fmt: skip
    return (
        f"<!doctype html>\n<html lang='en'>\n<meta charset='utf-8'>\n"
        f"<meta name='viewport' content='width=device-width'>\n<title>{escape(title)}: nightly</title>\n"
        f"<style>{_STYLE}</style>\n<main>" + "\n".join(part for part in parts if part) + "</main>\n</html>"
    )


def _changes(runs: Sequence[Run]) -> str:
    """Compare the last run that has read its data with the published run before it."""
    place = max((place for place, run in enumerate(runs) if "users" in run), default=0)
    now = runs[place]
    before = next((run for run in reversed(runs[:place]) if run["status"] == "published"), None)
    if before is None:
        return ""
    rows = []
    for key, (name, form) in _PLOTS.items():
        was, x = _number(before, key), _number(now, key)
        if was is not None and x is not None and (key != "value" or before["metric"] == now["metric"]):
            change = f"{x / was - 1:+.1%}" if was else ""
            rows.append([now["metric"] if key == "value" else name, f"{was:{form}}", f"{x:{form}}", change])
    notes = []
    if "new_items" in now:
        notes.append(f"{now['new_items']:,} items are new, {now['gone_items']:,} are gone.")
        notes.append(f"{now['drift']:.1%} of the interactions have moved to other items.")
    if now.get("unchanged") is not None:
        notes.append(
            f"{now['unchanged']:.1%} of the first 10 recommendations for up to 1,000 users are those of the "
            "model before."
        )
    head = f"From the published run of {_when(before)} to the {escape(now['status'])} one of {_when(now)}:"
    table = _table("changes", ("number", "before", "now", "change"), rows)
    return f"<h2>What changed</h2>\n<p class='dim'>{head}</p>\n{table}\n{_list('ul', notes)}"


def _plot(key: str, runs: Sequence[Run]) -> str:
    """Draw a number of each run over its date: points, a line through the good ones, and dashed limits."""
    name, form = _PLOTS[key]
    points = [(_date(run).timestamp(), x, run) for run in runs if (x := _number(run, key)) is not None]
    if not points:
        return ""
    if key == "value":  # there may have been another metric before
        name = points[-1][2]["metric"]
        points = [each for each in points if each[2]["metric"] == name]
    limits = [
        [(at, run.get("limits", {}).get(key, (None, None))[i]) for at, _, run in points] for i in (0, 1)
    ]
    lines = [("limit", [(at, x) for at, x in line if x is not None]) for line in limits]
    lines.append(("published", [(at, x) for at, x, run in points if _mark(run) == "good"]))
    numbers = [x for _, x, _ in points] + [x for _, line in lines for _, x in line]
    low, high = min(numbers), max(numbers)
    first, _, first_run = points[0]
    last, now, last_run = points[-1]

    def place(at: float, x: float) -> tuple[float, float]:
        across = (at - first) / (last - first) if last > first else 0.5
        up = (x - low) / (high - low) if high > low else 0.5
        return round(_LEFT + across * (_RIGHT - _LEFT), 1), round(_BOTTOM - up * (_BOTTOM - _TOP), 1)

    drawn = ""
    for kind, line in lines:
        corners = " ".join(f"{x},{y}" for x, y in (place(*each) for each in line))
        drawn += f"<polyline class='{kind}' points='{corners}'/>" if line else ""
    for at, x, run in points:
        across, down = place(at, x)
        told = f"<title>{_when(run)}: {x:{form}} ({escape(run['status'])})</title>"
        drawn += f"<circle class='{_mark(run)}' cx='{across}' cy='{down}' r='3.5'>{told}</circle>"
    days = [_when(first_run)[:10], _when(last_run)[:10]]
    labels = [(_LEFT - 6, place(last, x)[1] + 4, "end", f"{x:{form}}") for x in sorted({low, high})]
    labels += [(_LEFT, _HEIGHT - 6, "start", days[0]), (_RIGHT, _HEIGHT - 6, "end", days[1])][: len({*days})]
    for across, down, end, text in labels:
        drawn += f"<text x='{across}' y='{down}' text-anchor='{end}'>{text}</text>"
    caption = f"{escape(name)}: {now:{form}}"
    told = f"{caption}; from {days[0]} to {days[1]}, between {low:{form}} and {high:{form}}"
    svg = f"<svg viewBox='0 0 {_WIDTH} {_HEIGHT}' role='img' aria-label='{told}'>{drawn}</svg>"
    return f"<figure><figcaption>{caption}</figcaption>{svg}</figure>\n"


def _explained(runs: Sequence[Run]) -> str:
    text = "Points are runs, orange where nothing was published. Dashed lines are the limits of the guard."
    if (last := _last(runs, "value")) is not None:
        metric = parse(last["metric"])
        text += f" {metric}: {metric.meaning}"
        if metric.is_accuracy:
            text += (
                f" A fifth of the items of {last['asked']:,} held-out users is hidden; a hit is one of these "
                f"among the first {metric.k} recommended. Larger is better."
            )
    if (last := _last(runs, "predicted")) is not None:
        found = last["predicted"]
        error = "" if found["error"] is None else f" ± {found['error']:.4f}"
        text += (
            f" The model before would have predicted what {found['asked']:,} people took since then with "
            f"{found['metric']} {found['value']:.4f}{error}."
        )
    if (last := _last(runs, "values")) is not None:
        text += f" Parameters: {last['values']}."
    return f"<p class='dim'>{escape(text)}</p>"


def _samples(runs: Sequence[Run]) -> str:
    last = _last(runs, "samples")
    if last is None or not last["samples"]:
        return ""
    drawn = ""
    for number, sample in enumerate(last["samples"], 1):
        more = sample["items"] - len(sample["history"])
        had = escape(", ".join(sample["history"])) + (f", and {more:,} more" if more else "")
        best = _list("ol", sample["recommended"])
        drawn += f"<div><h3>User {number}</h3><p class='dim'>has {had}</p>{best}</div>"
    head = f"The model of {_when(last)} ({escape(last['status'])}), asked about a few users:"
    return f"<h2>What is recommended</h2>\n<p class='dim'>{head}</p>\n<div class='grid'>{drawn}</div>"


def _runs(runs: Sequence[Run]) -> str:
    rows = []
    for run in reversed(runs):
        value = "" if "value" not in run else f"{run['value']:.4f}"
        value += f" ± {run['error']:.4f}" if run.get("error") is not None else ""
        counts = [f"{run[name]:,}" if name in run else "" for name in ("users", "items", "pairs")]
        seconds = f"{run['seconds']['total']:,.1f}" if "total" in run["seconds"] else ""
        memory = f"{run['peak_memory'] / 1e6:,.0f}" if "peak_memory" in run else ""
        why = "; ".join(run["reasons"])
        rows.append([_when(run), run["status"], why, value, *counts, seconds, memory])
    names = ("run (UTC)", "result", "why", "metric", "users", "items", "pairs", "seconds", "peak MB")
    return f"<h2>All numbers</h2>\n{_table('runs', names, rows)}"


def _table(name: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table that scrolls sideways if it is too wide for the page."""
    columns = "".join(f"<th scope='col'>{each}</th>" for each in head)
    lines = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>\n" for row in rows)
    return (
        f"<div class='scroll' tabindex='0' role='region' aria-label='{name}'><table>\n"
        f"<thead><tr>{columns}</tr></thead>\n<tbody>{lines}</tbody>\n</table></div>"
    )


def _list(kind: str, lines: Sequence[str]) -> str:
    entries = "".join(f"<li>{escape(line)}</li>" for line in lines)
    return f"<{kind}>{entries}</{kind[:2]}>" if entries else ""


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
