"""Bars that show how far a call is and how long it will take: `progress=True`, and the command line."""

import sys
import time
from collections import deque
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import timedelta
from typing import Any

from mrfrec.core.progress import Progress
from mrfrec.errors import ParameterError

_SECONDS_BETWEEN_LINES = 0.5
_LEAST_SHARE = 0.01  # of the work; before it is done, the time left would be a guess


class Clock:
    """The share of one call that is done, which never falls, and the time it has left."""

    def __init__(self, now: float) -> None:
        self.share = 0.0
        self.is_over = False
        self._done = 0
        self._reports = deque([(now, 0.0)])  # times and shares, since the middle of the time so far
        self._start = now
        self._expected_end: float | None = None

    def begins_again(self, done: int, total: int) -> bool:
        """Return whether a report is the first of another call.

        It is if less is done than before; or after the end, unless it says once more that all is done.
        """
        return done < self._done if not self.is_over else not 0 < total <= done

    def report(self, done: int, total: int, now: float) -> None:
        self._done = done
        self.is_over = 0 < total <= done
        if total:
            self.share = max(self.share, min(done / total, 1.0))
        if done > _LEAST_SHARE * total > 0:
            share = done / total
            self._expected_end = now + (1 - share) / self._speed(share, now)
            self._reports.append((now, share))

    def _speed(self, share: float, now: float) -> float:
        """Return the share per second in the second half of the time so far, since parts differ in speed."""
        reports = self._reports
        middle = (self._start + now) / 2
        while len(reports) > 1 and reports[1][0] <= middle:
            reports.popleft()
        then, before = reports[0]
        if before >= share:  # there is more to do than expected
            then, before = self._start, 0.0
        return (share - before) / max(now - then, 1e-9)

    def left(self, now: float) -> str:
        """Return the time left, such as "0:01:10 left", or "" if it is not known."""
        if self._expected_end is None or self.is_over:
            return ""
        if now > self._expected_end:  # it takes longer than expected: go by the mean speed
            self._expected_end = now + (now - self._start) * (1 - self.share) / self.share
        return f"{timedelta(seconds=round(self._expected_end - now))} left"


def showing(progress: "Progress | bool | None") -> AbstractContextManager[Progress | None]:
    """Return a context with the callback of a parameter `progress`: the function itself, or bars for True.

    Bars are drawn on stderr, or as one line in a notebook. True counts as None where there is neither.
    """
    if progress is True and sys.stderr.isatty():
        return _bars_in_terminal()
    if progress is True and type(sys.stderr).__module__.startswith("ipykernel"):  # a notebook
        return _line_in_notebook()
    if isinstance(progress, bool):
        return nullcontext()
    if progress is not None and not callable(progress):
        raise ParameterError("progress", "a function of (stage, done, total), True or None", progress)
    return nullcontext(progress)


@contextmanager
def _bars_in_terminal() -> Iterator[Progress]:
    """Draw a bar for each call, one after the other, below what is written to stderr meanwhile."""
    from rich.console import Console
    from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bars
    from rich.text import Text

    class TimeLeft(TextColumn):
        """A column with the time left, which also counts down between two reports."""

        def render(self, task: Any) -> Any:
            return Text(task.fields["clock"].left(time.monotonic()))

    text = TextColumn("{task.description}")
    percent = TaskProgressColumn(show_speed=False)
    columns = (text, BarColumn(), percent, TimeElapsedColumn(), TimeLeft(""))
    # With redirect_stdout, results would go to stderr, where the bars are.
    with Bars(*columns, console=Console(stderr=True), transient=True, redirect_stdout=False) as bars:
        clock: Clock | None = None

        def show(stage: str, done: int, total: int) -> None:
            nonlocal clock
            now = time.monotonic()
            if clock is None or clock.begins_again(done, total):
                clock = Clock(now)
                bars.add_task(stage, total=1.0, clock=clock)
            clock.report(done, total, now)
            task = bars.tasks[-1].id
            known = total > 0 or clock.share > 0
            words = stage if known else f"{stage} ({done:,})"
            bars.update(task, description=words, completed=clock.share, total=1.0 if known else None)

        yield show


@contextmanager
def _line_in_notebook() -> Iterator[Progress]:
    """Show one line and replace it, so that a notebook keeps the last one alone."""
    from IPython.display import display

    clock: Clock | None = None
    written = 0.0  # the time of the last line
    shown: Any = None  # by the notebook
    last = ""

    def write(text: str) -> None:
        nonlocal shown
        if shown is None:
            shown = display({"text/plain": text}, raw=True, display_id=True)  # type: ignore[no-untyped-call]
        else:
            shown.update({"text/plain": text}, raw=True)

    def show(stage: str, done: int, total: int) -> None:
        nonlocal clock, written, last
        now = time.monotonic()
        if clock is None or clock.begins_again(done, total):
            clock = Clock(now)
        clock.report(done, total, now)
        known = f"{clock.share:4.0%}  {stage}" if total else f"{stage} ({done:,})"
        last = "  ".join(part for part in (known, clock.left(now)) if part)
        if now - written >= _SECONDS_BETWEEN_LINES:
            write(last)
            written = now

    try:
        yield show
    finally:
        if last:
            write(last)
