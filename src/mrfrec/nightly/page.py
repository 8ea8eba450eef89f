"""The page of a nightly job: the last run, and a table of the last runs."""

from collections.abc import Sequence
from datetime import UTC, datetime
from html import escape
from typing import Any

Run = dict[str, Any]

_SHOWN = 30  # runs
_STYLE = """
:root { color-scheme: light dark; --bad: #b34700; }
@media (prefers-color-scheme: dark) { :root { --bad: #ff9e4a; } }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 72rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.4rem; } .bad, .why { color: var(--bad); } li, .why { overflow-wrap: anywhere; }
.scroll { overflow-x: auto; } table { border-collapse: collapse; font-size: .9rem; }
th, td { text-align: right; padding: .3rem .6rem; border-bottom: 1px solid #8884; vertical-align: top; }
td.why { text-align: left; min-width: 14rem; }
"""


def page(title: str, runs: Sequence[Run]) -> str:
    """Return the page of these runs, the latest last: one file without scripts."""
    at_work = runs[-1] if runs[-1]["status"] == "started" else None
    last = runs[-2] if at_work and len(runs) > 1 else runs[-1]
    reasons = "".join(f"<li>{escape(reason)}</li>" for reason in last["reasons"])
    status = f"<span class='{_mark(last)}'>{escape(last['status'])}</span>"
    parts = [
        f"<h1>{escape(title)}: {status} {_when(last)} UTC</h1>",
        f"<ul class='why'>{reasons}</ul>" if reasons else "",
        f"<p>A run started at {_when(at_work)} UTC and has not ended. If it is no longer at work, it was "
        "killed.</p>" if at_work else "",
        _table(runs[-_SHOWN:]),
    ]  # fmt: skip
    return (
        f"<!doctype html>\n<html lang='en'>\n<meta charset='utf-8'>\n"
        f"<meta name='viewport' content='width=device-width'>\n<title>{escape(title)}: nightly</title>\n"
        f"<style>{_STYLE}</style>\n" + "\n".join(part for part in parts if part) + "\n</html>"
    )


def _table(runs: Sequence[Run]) -> str:
    names = ("run (UTC)", "result", "why", "metric", "users", "items", "pairs", "seconds", "peak MB")
    rows = ""
    for run in reversed(runs):
        value = "" if "value" not in run else f"{run['value']:.4f}"
        value += f" ± {run['error']:.4f}" if run.get("error") is not None else ""
        counts = [f"{run[name]:,}" if name in run else "" for name in ("users", "items", "pairs")]
        seconds = f"{run['seconds']['total']:,.1f}" if "total" in run["seconds"] else ""
        memory = f"{run['peak_memory'] / 1e6:,.0f}" if "peak_memory" in run else ""
        numbers = "".join(f"<td>{cell}</td>" for cell in (value, *counts, seconds, memory))
        result = f"<td>{escape(run['status'])}</td><td class='why'>{escape('; '.join(run['reasons']))}</td>"
        rows += f"<tr><td>{_when(run)}</td>{result}{numbers}</tr>\n"
    head = "".join(f"<th scope='col'>{name}</th>" for name in names)
    return (
        "<div class='scroll' tabindex='0' role='region' aria-label='runs'><table>\n"
        f"<thead><tr>{head}</tr></thead>\n<tbody>{rows}</tbody>\n</table></div>"
    )


def _mark(run: Run) -> str:
    return "bad" if run["status"] in ("refused", "failed", "killed") else "good"


def _when(run: Run) -> str:
    return f"{datetime.fromisoformat(run['started']).astimezone(UTC):%Y-%m-%d %H:%M}"
