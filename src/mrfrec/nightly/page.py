"""The page of a nightly job: its last runs as plots and a table, in one file without scripts."""

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from html import escape
from typing import Any, NamedTuple

from mrfrec.evaluation.metrics import parse

Run = dict[str, Any]

_DRAWN = 30  # runs in the plots and the table
_LONGEST = 80  # characters of a title

_STYLE = """
:root { color-scheme: light dark; --line: #0072b2; --bad: #b34700; --dim: #666; --rule: #8884; }
@media (prefers-color-scheme: dark) { :root { --line: #56b4e9; --bad: #ff9e4a; --dim: #aaa; } }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 72rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.4rem; } h2 { font-size: 1.1rem; margin-top: 2rem; } h3 { font-size: 1rem; margin: 0; }
figure { margin: 0; }
figcaption, .dim { color: var(--dim); font-size: .9rem; } .bad, .why { color: var(--bad); }
.plots, .samples { display: grid; grid-template-columns: repeat(auto-fit, minmax(18rem, 1fr)); gap: 1.5rem; }
svg { width: 100%; height: auto; } polyline { fill: none; stroke: var(--line); stroke-width: 2; }
polyline.limit { stroke: var(--bad); stroke-width: 1; stroke-dasharray: 4 3; }
svg text { fill: var(--dim); font-size: 11px; } .axis { stroke: var(--rule); }
circle { fill: var(--line); } circle.bad { fill: var(--bad); }
.scroll { overflow-x: auto; } table { border-collapse: collapse; font-size: .9rem; }
th, td { text-align: right; padding: .3rem .6rem; border-bottom: 1px solid var(--rule); vertical-align: top; }
th:first-child, td:first-child, .runs :nth-child(3) { text-align: left; }
.runs { width: 100%; white-space: nowrap; } li { overflow-wrap: anywhere; }
.runs td:nth-child(3) { color: var(--bad); white-space: normal; min-width: 14rem; overflow-wrap: anywhere; }
@media (max-width: 45rem) {
  .runs thead { position: absolute; left: -999rem; }
  .runs, .runs tbody { display: block; white-space: normal; }
  .runs tr { display: block; padding: .5rem 0; border-bottom: 1px solid var(--rule); }
  .runs td { display: inline-block; border: 0; padding: 0 .8rem 0 0; }
  .runs td:empty { display: none; } .runs td:nth-child(3) { display: block; min-width: 0; }
  .runs td:nth-child(n+5)::before { content: attr(data-name) " "; color: var(--dim); }
}
"""


class Plot(NamedTuple):
    """A number of each run, and how it is written."""

    name: str
    number: Callable[[Run], float | None]
    form: str
    limits: str = ""  # its name among the limits of a run


def page(title: str, runs: Sequence[Run]) -> str:
    """Return the page of these runs, the latest last."""
    drawn = runs[-_DRAWN:]
    at_work = runs[-1] if runs[-1]["status"] == "started" else None
    last = runs[-2] if at_work and len(runs) > 1 else runs[-1]
    metric = next((run["metric"] for run in reversed(drawn) if "metric" in run), None)
    published = next((run for run in reversed(runs) if run["status"] == "published"), {})
    parts = [
        f"<h1>{escape(title)}: <span class='{_mark(last)}'>{last['status']}</span> {_when(last)} UTC</h1>",
        _list(last["reasons"], "why"),
        f"<p>A run started at {_when(at_work)} UTC and has not ended. If it is no longer at work, it was "
        "killed.</p>" if at_work else "",
        _changes(runs),
        f"<h2>Runs</h2>\n<div class='plots'>{''.join(_plot(each, drawn) for each in _plots(metric))}</div>",
        _explained(metric, drawn),
        _samples(published),
        _runs_table(drawn),
    ]  # fmt: skip
    return (
        f"<!doctype html>\n<html lang='en'>\n<meta charset='utf-8'>\n"
        f"<meta name='viewport' content='width=device-width'>\n<title>{escape(title)}: nightly</title>\n"
        f"<style>{_STYLE}</style>\n" + "\n".join(part for part in parts if part) + "\n</html>"
    )


# ── what changed ──────────────────────────────────────────────────────────────────────────────────


def _changes(runs: Sequence[Run]) -> str:
    """Compare the last run that has read its data with the published run before it."""
    place = max((place for place, run in enumerate(runs) if "users" in run), default=0)
    now = runs[place]
    before = next((run for run in reversed(runs[:place]) if run["status"] == "published"), None)
    if before is None:
        return ""
    rows = [
        [plot.name, f"{was:{plot.form}}", f"{x:{plot.form}}", f"{x / was - 1:+.1%}" if was else ""]
        for plot in _plots(now.get("metric"))
        if (was := plot.number(before)) is not None and (x := plot.number(now)) is not None
    ]
    notes = []
    if "new_items" in now:
        moved = f"; {now['drift']:.1%} of the interactions have moved to other items" if now["drift"] else ""
        notes.append(f"{now['new_items']:,} items are new, {now['gone_items']:,} are gone{moved}.")
    if now.get("unchanged") is not None:
        notes.append(
            f"{now['unchanged']:.1%} of the first 10 recommendations for up to 1,000 users are those of the "
            "model before."
        )
    if now.get("parameters") != before.get("parameters"):
        notes.append("The parameters of the model were tuned anew.")
    if now.get("mrfrec") != before.get("mrfrec"):
        notes.append(f"mrfrec is {now.get('mrfrec')}; it was {before.get('mrfrec')}.")
    return (
        f"<h2>What changed</h2>\n<p class='dim'>From the published run of {_when(before)} to the "
        f"{now['status']} one of {_when(now)}:</p>\n"
        f"{_table('changes', ('', 'before', 'now', 'change'), rows)}\n{_list(notes)}"
    )


# ── plots ─────────────────────────────────────────────────────────────────────────────────────────


def _plots(metric: str | None) -> list[Plot]:
    return [
        Plot(metric or "metric", lambda run: run.get("value") if run.get("metric") == metric else None, ".4f",
             "value"),
        Plot("users", lambda run: run.get("users"), ",.0f", "users"),
        Plot("items", lambda run: run.get("items"), ",.0f", "items"),
        Plot("pairs", lambda run: run.get("pairs"), ",.0f", "pairs"),
        Plot("share of the items recommended", lambda run: run.get("coverage"), ".1%"),
        Plot("seconds", lambda run: run["seconds"].get("total"), ",.1f"),
        Plot("peak memory, MB", lambda run: run.get("peak_memory", 0) / 1e6 or None, ",.0f"),
    ]  # fmt: skip


_WIDTH, _HEIGHT = 300, 150  # of a plot, in pixels
_LEFT, _RIGHT, _TOP, _BOTTOM = 62, 292, 8, 126  # of the lines in it


def _plot(plot: Plot, runs: Sequence[Run]) -> str:
    """Draw a number of each run over its date: a point for each, a line through those that were published."""
    points = [(_date(run).timestamp(), run, x) for run in runs if (x := plot.number(run)) is not None]
    if not points:
        return ""
    limits = [[(at, _limits(run, plot)[side]) for at, run, _ in points] for side in (0, 1)]
    lines = [[(at, float(x)) for at, x in line if x is not None] for line in limits]
    numbers = [x for *_, x in points] + [x for line in lines for _, x in line]
    low, high = min(numbers), max(numbers)
    first, last = points[0][0], points[-1][0]

    def place(at: float, x: float) -> tuple[str, str]:
        across = (at - first) / (last - first) if last > first else 0.5
        up = (x - low) / (high - low) if high > low else 0.5
        return f"{_LEFT + across * (_RIGHT - _LEFT):.1f}", f"{_BOTTOM - up * (_BOTTOM - _TOP):.1f}"

    def line(of: Sequence[tuple[float, float]], kind: str) -> str:
        return f"<polyline class='{kind}' points='{' '.join(','.join(place(*each)) for each in of)}'/>"

    dots = ""
    for at, run, x in points:
        across, up = place(at, x)
        dots += (
            f"<circle class='{_mark(run)}' cx='{across}' cy='{up}' r='3.5'><title>{_when(run)}: "
            f"{x:{plot.form}} ({run['status']})</title></circle>"
        )
    texts = [(_LEFT - 6, _TOP + 4, "end", f"{high:{plot.form}}")] if high > low else []
    texts += [(_LEFT - 6, _BOTTOM if high > low else (_TOP + _BOTTOM) // 2, "end", f"{low:{plot.form}}")]
    days = [_when(points[0][1])[:10], _when(points[-1][1])[:10]]
    texts += [(_LEFT, _HEIGHT - 6, "start", days[0])]
    texts += [(_RIGHT, _HEIGHT - 6, "end", days[1])] if days[1] != days[0] else []
    labels = "".join(f"<text x='{x}' y='{y}' text-anchor='{end}'>{text}</text>" for x, y, end, text in texts)
    published = [(at, x) for at, run, x in points if run["status"] == "published"]
    caption = f"{escape(plot.name)}: {points[-1][2]:{plot.form}}"
    span = f"{days[0]} to {days[1]}, between {low:{plot.form}} and {high:{plot.form}}"
    return (
        f"<figure><figcaption>{caption}</figcaption><svg viewBox='0 0 {_WIDTH} {_HEIGHT}' role='img' "
        f"aria-label='{caption}; {span}'>"
        f"<line class='axis' x1='{_LEFT}' x2='{_RIGHT}' y1='{_BOTTOM + 6}' y2='{_BOTTOM + 6}'/>"
        f"{''.join(line(each, 'limit') for each in lines if each)}{line(published, 'value')}{dots}{labels}"
        "</svg></figure>\n"
    )


def _limits(run: Run, plot: Plot) -> list[float | None]:
    return list(run.get("limits", {}).get(plot.limits, (None, None)))


def _explained(metric: str | None, runs: Sequence[Run]) -> str:
    last = next((run for run in reversed(runs) if "value" in run), None)
    notes = ["Points are runs, orange where nothing was published. Dashed lines are the limits of the guard."]
    if metric is not None and last is not None:
        meant = parse(metric)
        asked = f" of {last['asked']:,} held-out users" if "asked" in last else " of the held-out users"
        hits = (
            f"A fifth of the items{asked} is hidden, and a hit is one of them among the first {meant.k} "
            "recommended. " if meant.is_accuracy else ""
        )  # fmt: skip
        better = " The mean over the users is shown; larger is better." if meant.is_accuracy else ""
        notes.append(f"{escape(metric)}: {hits}{escape(meant.meaning)}{better}")
        if "coverage" in last:
            notes.append(
                f"The share of the items recommended counts those among the first {last['k']:,}{asked}."
            )
    return "".join(f"<p class='dim'>{note}</p>" for note in notes)


# ── samples and the table ─────────────────────────────────────────────────────────────────────────


def _samples(run: Run) -> str:
    if not run.get("samples"):
        return ""
    found = ""
    for number, sample in enumerate(run["samples"], 1):
        more = sample["items"] - len(sample["history"])
        history = ", ".join(map(_named, sample["history"])) + (f", and {more:,} more" if more else "")
        items = "".join(f"<li>{_named(item)}</li>" for item in sample["recommended"])
        found += f"<div><h3>User {number}</h3><p class='dim'>has {history}</p><ol>{items}</ol></div>"
    return f"<h2>What is recommended</h2>\n<div class='samples'>{found}</div>"


def _named(item: dict[str, Any]) -> str:
    title = str(item["title"] or "")
    title = title if len(title) <= _LONGEST else title[: _LONGEST - 1] + "…"
    return escape(f"{title} ({item['item']})" if title else str(item["item"]))


def _runs_table(runs: Sequence[Run]) -> str:
    head = ("run (UTC)", "result", "why", "metric", "users", "items", "pairs", "seconds", "peak MB")
    rows = []
    for run in reversed(runs):
        value = "" if "value" not in run else f"{run['value']:.4f}"
        value += f" ± {run['error']:.4f}" if run.get("error") is not None else ""
        counts = [f"{run[name]:,}" if name in run else "" for name in ("users", "items", "pairs")]
        seconds = f"{run['seconds']['total']:,.1f}" if "total" in run["seconds"] else ""
        memory = f"{run['peak_memory'] / 1e6:,.0f}" if "peak_memory" in run else ""
        rows.append([_when(run), run["status"], "; ".join(run["reasons"]), value, *counts, seconds, memory])
    return f"<h2>All numbers</h2>\n{_table('runs', head, rows)}"


def _table(kind: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table of texts that scrolls sideways."""
    columns = "".join(f"<th scope='col'>{name}</th>" for name in head)
    lines = ""
    for row in rows:
        cells = [f"<td data-name='{name}'>{escape(cell)}</td>" for name, cell in zip(head, row, strict=True)]
        lines += f"<tr>{''.join(cells)}</tr>\n"
    return (
        f"<div class='scroll' tabindex='0' role='region' aria-label='{kind}'><table class='{kind}'>\n"
        f"<thead><tr>{columns}</tr></thead>\n<tbody>{lines}</tbody>\n</table></div>"
    )


def _list(lines: Sequence[str], kind: str = "") -> str:
    found = "".join(f"<li>{escape(line)}</li>" for line in lines)
    return f"<ul class='{kind}'>{found}</ul>" if found else ""


def _mark(run: Run) -> str:
    return "bad" if run["status"] in ("refused", "failed", "killed") else "good"


def _date(run: Run) -> datetime:
    found = datetime.fromisoformat(run["started"])
    return found.replace(tzinfo=UTC) if found.tzinfo is None else found.astimezone(UTC)


def _when(run: Run) -> str:
    return f"{_date(run):%Y-%m-%d %H:%M}"
