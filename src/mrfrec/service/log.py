"""Lines of the log go to stderr through a queue and a thread.

Whoever reads stderr may stop, and a pipe holds 64 KB: the service would then wait in the middle of a request,
for ever. So only the thread waits. While the queue is full, lines are dropped and counted.
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

_MOST = 2000  # lines that wait; with --log-requests, a line may have 60,000 bytes
_SECONDS = 1.0  # to write what waits at the end


class LineQueue(QueueHandler):
    """Formats each record and puts it into a queue; drops it if the queue is full."""

    dropped = 0  # lines of this process

    def enqueue(self, record: logging.LogRecord) -> None:
        """Put a record, whose message is the finished line, into the queue."""
        try:
            self.queue.put_nowait(record.getMessage())
        except Full:
            LineQueue.dropped += 1


@contextmanager
def lines_in_thread(names: Sequence[str], formatter: logging.Formatter) -> Iterator[None]:
    """Let a thread write what these loggers say; at the end they have their own handlers again."""
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
        thread.join(_SECONDS)  # it may wait for ever, but does not keep the process from ending


def _exchange(name: str, handlers: Sequence[logging.Handler]) -> list[logging.Handler]:
    """Set the handlers of a logger; return those that it had."""
    logger = logging.getLogger(name)
    before = logger.handlers[:]
    for handler in before:
        logger.removeHandler(handler)
    for handler in handlers:
        logger.addHandler(handler)
    return before


def _write(lines: "Queue[str | None]") -> None:
    """Write lines to the stderr of this process until None comes.

    Neither the buffer of `sys.stderr` nor the lock of a handler is used: at its end, Python would wait for
    the thread that holds them.
    """
    own = os.devnull if sys.__stderr__ is None else sys.__stderr__.fileno()
    with FileIO(own, "w", closefd=isinstance(own, str)) as stderr:
        while (line := lines.get()) is not None:
            rest = f"{line}\n".encode(errors="backslashreplace")
            with suppress(OSError):  # whoever reads has closed it
                while rest:
                    rest = rest[stderr.write(rest) :]
