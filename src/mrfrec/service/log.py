"""Write the log to stderr through a queue and a thread.

The program that reads stderr may stop, and a pipe holds only 64 KB: then the service would wait for ever in
the middle of a request. With a queue, only the thread waits. While the queue is full, lines are dropped and
counted.
"""

import logging
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from io import FileIO
from logging.handlers import QueueHandler
from queue import Full, Queue
from threading import Thread

# Lines that wait. With --log-requests, a line may have 60,000 bytes.
_MOST = 2000
_SECONDS = 1.0  # time at the end to write the lines that wait


class LineQueue(QueueHandler):
    """Formats records and puts them into a queue; drops a record if the queue is full."""

    dropped = 0  # lines that this process has dropped

    def enqueue(self, record: logging.LogRecord) -> None:
        """Put the line of a record into the queue."""
        try:
            self.queue.put_nowait(record.getMessage())
        except Full:
            LineQueue.dropped += 1


@contextmanager
def lines_in_thread(names: Sequence[str], formatter: logging.Formatter) -> Iterator[None]:
    """Let a thread write the lines of these loggers. At the end they get their own handlers back."""
    lines: Queue[str | None] = Queue(_MOST)
    thread = Thread(target=_write, args=(lines,), name="log", daemon=True)
    thread.start()
    handler = LineQueue(lines)
    handler.setFormatter(formatter)
    own = {name: _exchange(name, [handler]) for name in names}
    try:
        yield
    finally:
        for name, handlers in own.items():
            _exchange(name, handlers)
        with suppress(Full):
            lines.put(None, timeout=_SECONDS)
        # The thread may wait for ever, but a daemon does not keep the process from ending.
        thread.join(_SECONDS)


def _exchange(name: str, handlers: Sequence[logging.Handler]) -> list[logging.Handler]:
    """Set the handlers of a logger and return its earlier handlers."""
    logger = logging.getLogger(name)
    before = logger.handlers[:]
    for handler in before:
        logger.removeHandler(handler)
    for handler in handlers:
        logger.addHandler(handler)
    return before


def _write(lines: "Queue[str | None]") -> None:
    """Write lines to the stderr of this process until None comes.

    This uses neither the buffer of `sys.stderr` nor the lock of a handler: at its end, Python would wait for
    the thread that holds them.
    """
    own = os.devnull if sys.__stderr__ is None else sys.__stderr__.fileno()
    with FileIO(own, "w", closefd=isinstance(own, str)) as stderr:
        while (line := lines.get()) is not None:
            rest = f"{line}\n".encode(errors="backslashreplace")
            # The program that reads stderr may have closed it.
            with suppress(OSError):
                while rest:
                    rest = rest[stderr.write(rest) :]
