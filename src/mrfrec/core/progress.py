"""The progress of a call: what is called to report it, and how the parts of a call make a whole."""

from collections.abc import Callable

Progress = Callable[[str, int, int], None]
"""Called as `progress(stage, done, total)`, always from the thread that made the call.

`stage` says in words what is being done. `done` of `total` is how much of the whole call is done, in units
that take about the same time each; 0 as the total says that it is not known. `done` never falls, and the last
report has all of it done. `total` may change when the call learns how much there is to do.
"""

_STEPS = 10_000  # of a call that is made of several


def part_of(progress: Progress | None, start: float, stop: float, name: str = "") -> Progress | None:
    """Return what reports the progress of a part of a call, from one share of the whole to another."""
    if progress is None:
        return None
    reached = round(start * _STEPS)

    def report(stage: str, done: int, total: int) -> None:
        nonlocal reached
        words = name + stage if total else f"{name}{stage} ({done:,})"
        share = min(done / total, 1.0) if total else 0.0
        reached = max(reached, round((start + (stop - start) * share) * _STEPS))
        progress(words, reached, _STEPS)

    return report
