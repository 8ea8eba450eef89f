"""Progress bars, for `progress=True` and for the command line."""

import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from mrfrec.core.engine import Progress
from mrfrec.errors import ParameterError


def showing(progress: Progress | bool | None) -> AbstractContextManager[Progress | None]:
    """Return a context manager that gives the callback for a parameter `progress`.

    A function is returned as it is. True gives bars on stderr in a terminal, one line that is updated in a
    notebook, and None elsewhere.
    """
    if progress is True and sys.stderr.isatty():
        return _bars_in_terminal()
    if progress is True and type(sys.stderr).__module__.startswith("ipykernel"):  # a notebook
        return nullcontext(_line_in_notebook())
    if isinstance(progress, bool):
        return nullcontext()
    if progress is not None and not callable(progress):
        raise ParameterError("progress", "a function of (stage, done, total), True or None", progress)
    return nullcontext(progress)


@contextmanager
def _bars_in_terminal() -> Iterator[Progress]:
    """Draw one bar per call, below anything that is written to stderr meanwhile."""
    from rich import progress as rich
    from rich.console import Console

    text = rich.TextColumn("{task.description}", markup=False)
    columns = (text, rich.BarColumn(), rich.TaskProgressColumn(), rich.TimeElapsedColumn())
    # With redirect_stdout, results would be written to stderr with the bars.
    settings: dict[str, Any] = {"console": Console(stderr=True), "transient": True, "redirect_stdout": False}
    with rich.Progress(*columns, rich.TimeRemainingColumn(), **settings) as bars:
        before, was_over = 0, True

        def show(stage: str, done: int, total: int) -> None:
            nonlocal before, was_over
            is_over = 0 < total <= done
            # A new call has begun if less is done than before, or if anything but the end follows the end.
            if not bars.tasks or (not is_over if was_over else done < before):
                bars.add_task(stage)
            before, was_over = done, is_over
            task = bars.tasks[-1]
            if total:  # The total may grow; the bar must not move back.
                bars.update(task.id, description=stage, total=1, completed=max(done / total, task.completed))
            else:
                bars.update(task.id, description=f"{stage} ({done:,})", total=None)

        yield show


def _line_in_notebook() -> Progress:
    """Return a callback that shows one line and updates it, so that a notebook keeps only the last one.

    In a notebook, the bars of rich would need ipywidgets.
    """
    from IPython.display import display

    line: Any = None
    last = ""

    def show(stage: str, done: int, total: int) -> None:
        nonlocal line, last
        text = f"{done / total:4.0%}  {stage}" if total else f"{stage} ({done:,})"
        if line is None:
            line = display({"text/plain": text}, raw=True, display_id=True)  # type: ignore[no-untyped-call]
        elif text != last:
            line.update({"text/plain": text}, raw=True)
        last = text

    return show
