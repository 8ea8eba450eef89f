"""The progress of a call: what is called to report it, and how the parts of a call make a whole."""

from collections.abc import Callable

Progress = Callable[[str, int, int], None]
"""Called as `progress(stage, done, total)`, always from the thread that made the call.

`stage` says in words what is being done. `done` of `total` units of the whole call are done; each unit takes
about the same time. A `total` of 0 means that it is not known. `done` never falls, and equals `total` in the
last report. `total` may change when the call learns how much there is to do.
"""

_STEPS = 10_000  # units of a call that consists of several parts


def part_of(progress: Progress | None, start: float, stop: float, name: str = "") -> Progress | None:
    """Return a callback for a part of a call, which takes the whole from the share `start` to `stop`.

    `name` is put before the stages of the part.
    """
    if progress is None:
        return None
    reached = round(start * _STEPS)

    def report(stage: str, done: int, total: int) -> None:
        nonlocal reached
        words = name + stage if total else f"{name}{stage} ({done:,})"
        share = min(done / total, 1.0) if total else 0.0
        # Rounded down: what is not done yet does not look done.
        reached = max(reached, int((start + (stop - start) * share) * _STEPS + 1e-6))
        progress(words, reached, _STEPS)

    return report
