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

_LINES = 0.5  # seconds between two states of a plain line
_EARLY = 0.01  # share of the work below which the time left is a guess


class Clock:
    """The share of one call that is done, which never falls, and the time it has left."""

    def __init__(self, now: float) -> None:
        self.share, self.is_over = 0.0, False
        self._done = 0
        self._reports = deque([(now, 0.0)])  # times and shares, since the middle of the time so far
        self._start = now
        self._ends: float | None = None  # when the call is expected to end

    def begins_again(self, done: int, total: int) -> bool:
        """Return whether a report is of another call; saying twice that one has ended is none."""
        return done < self._done if not self.is_over else not 0 < total <= done

    def report(self, done: int, total: int, now: float) -> None:
        self._done, self.is_over = done, 0 < total <= done
        if total:
            self.share = max(self.share, min(done / total, 1.0))
        if done > _EARLY * total > 0:
            share = done / total
            self._ends = now + (1 - share) / self._speed(share, now)
            self._reports.append((now, share))

    def _speed(self, share: float, now: float) -> float:
        """Return the share per second in the second half of the time so far: parts differ in their speed."""
        reports, middle = self._reports, (self._start + now) / 2
        while len(reports) > 1 and reports[1][0] <= middle:
            reports.popleft()
        then, before = reports[0]
        if before >= share:  # there is more to do than it seemed
            then, before = self._start, 0.0
        return (share - before) / max(now - then, 1e-9)

    def left(self, now: float) -> str:
        """Return the time left, such as 0:01:10, "" if that is not known."""
        if self._ends is None or self.is_over:
            return ""
        if now > self._ends:  # it takes longer than it seemed: go by the mean speed
            self._ends = now + (now - self._start) * (1 - self.share) / self.share
        return f"{timedelta(seconds=round(self._ends - now))} left"


def showing(progress: "Progress | bool | None") -> AbstractContextManager[Progress | None]:
    """Return a context with a callback: the one that was given, one that draws a bar on stderr if True.

    True is as None where nobody can see a bar: stderr is neither a terminal nor a notebook.
    """
    if progress is True and sys.stderr.isatty():
        return _bars()
    if progress is True and type(sys.stderr).__module__.startswith("ipykernel"):  # a notebook
        return _line()
    if isinstance(progress, bool):
        return nullcontext()
    if progress is not None and not callable(progress):
        raise ParameterError("progress", "a function of (stage, done, total), True or None", progress)
    return nullcontext(progress)


@contextmanager
def _bars() -> Iterator[Progress]:
    """Draw a bar for each call, one after the other, below what is written to stderr meanwhile."""
    from rich.console import Console
    from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bars
    from rich.text import Text

    class Left(TextColumn):
        """The time left, which also runs between two reports."""

        def render(self, task: Any) -> Any:
            return Text(task.fields["clock"].left(time.monotonic()))

    text, percent = TextColumn("{task.description}"), TaskProgressColumn(show_speed=False)
    columns = (text, BarColumn(), percent, TimeElapsedColumn(), Left(""))
    # redirect_stdout would send results to stderr, where the bars are.
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
def _line() -> Iterator[Progress]:
    """Write one line for each call, again and again: for notebooks."""
    clock: Clock | None = None
    written, width = 0.0, 0

    def show(stage: str, done: int, total: int) -> None:
        nonlocal clock, written, width
        now = time.monotonic()
        if clock is None or clock.begins_again(done, total):
            clock, written = Clock(now), 0.0
        clock.report(done, total, now)
        if now - written < _LINES and not clock.is_over:
            return
        known = f"{clock.share:4.0%}  {stage}" if total else f"{stage} ({done:,})"
        text = "  ".join(part for part in (known, clock.left(now)) if part)
        sys.stderr.write("\r" + text.ljust(width) + ("\n" if clock.is_over else ""))
        sys.stderr.flush()
        written, width = now, 0 if clock.is_over else len(text)

    try:
        yield show
    finally:
        if width:  # interrupted
            sys.stderr.write("\n")
