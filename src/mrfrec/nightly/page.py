"""The page of a nightly job: its last runs as a table and as small plots, one file without scripts."""

from collections.abc import Callable, Sequence
from html import escape
from typing import Any

Number = Callable[[dict[str, Any]], float | None]

_WIDTH, _HEIGHT, _EDGE = 300, 96, 6  # of a plot, in pixels; the distance of its lines from its border
_DRAWN = 30  # runs in the plots and the table

_STYLE = """
:root { color-scheme: light dark; --line: #0072b2; --bad: #d55e00; --dim: #767676; --rule: #8884; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 72rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.4rem; } figure { margin: 0; } figcaption { color: var(--dim); font-size: .9rem; }
.plots { display: grid; grid-template-columns: repeat(auto-fit, minmax(16rem, 1fr)); gap: 1.5rem; }
svg { width: 100%; height: auto; } polyline { fill: none; stroke: var(--line); stroke-width: 2; }
circle { fill: var(--line); } circle.refused, circle.failed { fill: var(--bad); }
.scroll { overflow-x: auto; margin-top: 2rem; }
table { border-collapse: collapse; width: 100%; font-size: .9rem; }
th, td { text-align: right; padding: .3rem .6rem; border-bottom: 1px solid var(--rule); white-space: nowrap; }
th:nth-child(-n+2), td:nth-child(-n+2) { text-align: left; } .refused, .failed { color: var(--bad); }
td.why { text-align: left; white-space: normal; min-width: 12rem; }
"""


def page(title: str, runs: Sequence[dict[str, Any]]) -> str:
    """Return the page of these runs, the latest last."""
    last, runs = runs[-1], runs[-_DRAWN:]
    why = "".join(f"<li>{escape(reason)}</li>" for reason in last["reasons"])
    plots = "".join(_plot(name, runs, number, form) for name, number, form in _plots(runs))
    rows = "".join(_row(run) for run in reversed(runs))
    head = "".join(
        f"<th scope='col'>{name}</th>"
        for name in ("run (UTC)", "result", "metric", "users", "items", "pairs", "seconds", "peak MB", "")
    )
    return (
        f"<!doctype html>\n<html lang='en'>\n<meta charset='utf-8'>\n"
        f"<meta name='viewport' content='width=device-width'>\n<title>{escape(title)}: nightly</title>\n"
        f"<style>{_STYLE}</style>\n<h1>{escape(title)}: <span class='{last['status']}'>{last['status']}"
        f"</span> {escape(_when(last))}</h1>\n{f'<ul>{why}</ul>' if why else ''}\n"
        f"<div class='plots'>{plots}</div>\n<div class='scroll' tabindex='0' role='region' "
        f"aria-label='Runs'><table>\n<thead><tr>{head}</tr></thead>\n<tbody>{rows}</tbody>\n</table></div>\n</html>"
    )


def _plots(runs: Sequence[dict[str, Any]]) -> list[tuple[str, Number, str]]:
    metric = next((run["metric"] for run in reversed(runs) if "metric" in run), "metric")
    return [
        (metric, lambda run: run.get("value") if run.get("metric") == metric else None, ".4f"),
        ("users", lambda run: run.get("users"), ",.0f"),
        ("items", lambda run: run.get("items"), ",.0f"),
        ("pairs", lambda run: run.get("pairs"), ",.0f"),
        ("seconds", lambda run: run["seconds"].get("total"), ",.1f"),
        ("peak memory, MB", lambda run: run.get("peak_memory", 0) / 1e6 or None, ",.0f"),
    ]


def _plot(name: str, runs: Sequence[dict[str, Any]], number: Number, form: str) -> str:
    """Draw a number of each run; a point for each, and a line through those that were published."""
    points = [(place, run, x) for place, run in enumerate(runs) if (x := number(run)) is not None]
    if not points:
        return ""
    low, high = min(x for *_, x in points), max(x for *_, x in points)

    def at(place: int, x: float) -> tuple[float, float]:
        across = place / max(len(runs) - 1, 1)
        up = (x - low) / (high - low) if high > low else 0.5
        return (
            round(_EDGE + across * (_WIDTH - 2 * _EDGE), 1),
            round(_HEIGHT - _EDGE - up * (_HEIGHT - 2 * _EDGE), 1),
        )

    line = " ".join("{},{}".format(*at(place, x)) for place, run, x in points if run["status"] == "published")
    dots = "".join(
        "<circle class='{}' cx='{}' cy='{}' r='3.5'><title>{}: {} ({})</title></circle>".format(
            run["status"], *at(place, x), escape(_when(run)), format(x, form), run["status"]
        )
        for place, run, x in points
    )
    span = f"{format(low, form)} to {format(high, form)}" if high > low else format(low, form)
    text = f"{escape(name)}: {format(points[-1][2], form)}"
    return (
        f"<figure><svg viewBox='0 0 {_WIDTH} {_HEIGHT}' role='img' aria-label='{text}, {span}'>"
        f"<polyline points='{line}'/>{dots}</svg>"
        f"<figcaption>{text} <small>({span})</small></figcaption></figure>\n"
    )


def _row(run: dict[str, Any]) -> str:
    value = "" if "value" not in run else f"{run['value']:.4f}"
    value += f" ± {run['error']:.4f}" if run.get("error") is not None else ""
    cells = [value, *(f"{run[name]:,}" if name in run else "" for name in ("users", "items", "pairs"))]
    cells += [f"{run['seconds'].get('total', 0):,.1f}", f"{run.get('peak_memory', 0) / 1e6:,.0f}"]
    numbers = "".join(f"<td>{escape(cell)}</td>" for cell in cells)
    return (
        f"<tr><td>{escape(_when(run))}</td><td class='status {run['status']}'>{run['status']}</td>{numbers}"
        f"<td class='why'>{escape('; '.join(map(str, run['reasons'])))}</td></tr>\n"
    )


def _when(run: dict[str, Any]) -> str:
    return str(run["started"])[:16].replace("T", " ")
