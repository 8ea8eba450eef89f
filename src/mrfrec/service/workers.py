"""Worker processes: started, replaced when they die, told to stop or to reload."""

import logging
import os
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing import connection, get_context
from typing import Any

from mrfrec.errors import ServiceError

SECONDS_TO_STOP = 10  # for what is under way when the service is told to stop
_QUICK = 10.0  # seconds: a worker that dies earlier has not started well
_MOST_QUICK_DEATHS = 5  # in a row, of each worker, before we give up
_PAUSES = (0.25, 0.5, 1.0, 2.0, 4.0, 10.0)  # seconds before the next start, by quick deaths in a row
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

_log = logging.getLogger("mrfrec.service")


@dataclass
class _Place:
    """A place for a worker, which may be vacant for a while."""

    work: Callable[[], None]
    process: Any = None
    started: float = 0.0
    start_at: float = 0.0
    quick_deaths: int = 0


class Workers:
    """Processes that run functions, which must be importable by name, until this one is told to stop."""

    def __init__(
        self, work: Sequence[Callable[[], None]], leave: Callable[[], None] | None = None,
        seconds: float = SECONDS_TO_STOP,
    ) -> None:  # fmt: skip
        """Prepare to run each of `work` in a process; `leave` is called before they are told to stop.

        After `seconds`, and some more, they are killed.
        """
        self._leave, self._seconds = leave, seconds
        self._places = [_Place(each) for each in work]
        self._context = get_context("spawn")  # forked, they would share locks and threads

    def run(self) -> None:
        """Keep the workers running until SIGTERM or SIGINT; pass SIGHUP on to them.

        Raises a `ServiceError` if they die one after another as soon as they start.
        """
        told, tell = os.pipe()
        os.set_blocking(tell, False)
        handlers = {
            each: signal.signal(each, lambda number, _: os.write(tell, bytes([number]))) for each in _SIGNALS
        }
        try:
            self._keep(told)
        finally:
            self._stop()
            for each, handler in handlers.items():
                signal.signal(each, handler)
            os.close(told)
            os.close(tell)

    def _keep(self, told: int) -> None:
        while True:
            now = time.monotonic()
            for place in self._places:
                if place.process is None and place.start_at <= now:
                    self._start(place)
            living = {place.process.sentinel: place for place in self._places if place.process is not None}
            pauses = [place.start_at - now for place in self._places if place.process is None]
            for ready in connection.wait([told, *living], max(0.0, min(pauses)) if pauses else None):
                if ready != told:
                    self._bury(living[ready])
                    continue
                for number in os.read(told, 100):
                    if number != signal.SIGHUP:
                        return
                    self._tell(signal.SIGHUP)

    def _start(self, place: _Place) -> None:
        # A reload that is asked for while the worker starts waits until it can be done.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})
        try:
            place.process = self._context.Process(target=place.work, daemon=False)
            place.process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        place.started = time.monotonic()
        _log.info("worker %d started", place.process.pid)

    def _bury(self, place: _Place) -> None:
        """Say that a worker has died, and when its successor starts; raise if that is hopeless."""
        place.process.join()
        pid, code = place.process.pid, place.process.exitcode
        place.process.close()
        place.process = None
        now = time.monotonic()
        place.quick_deaths = place.quick_deaths + 1 if now - place.started < _QUICK else 0
        how = f"was killed by signal {-code}" if code < 0 else f"ended with code {code}"
        if all(
            each.quick_deaths >= _MOST_QUICK_DEATHS and (each.process is None or now - each.started < _QUICK)
            for each in self._places
        ):
            raise ServiceError(
                f"no worker stays alive for {_QUICK:g} s: the last one {how}. The messages above say why."
            )
        pause = _PAUSES[min(place.quick_deaths, len(_PAUSES) - 1)]
        place.start_at = now + pause
        _log.error("worker %d %s; another starts in %g s", pid, how, pause)

    def _tell(self, number: int) -> None:
        for place in self._places:
            if place.process is not None and place.process.is_alive():
                os.kill(place.process.pid, number)

    def _stop(self) -> None:
        if self._leave is not None:
            self._leave()
        self._tell(signal.SIGTERM)
        end = time.monotonic() + self._seconds + 2
        for place in self._places:
            if place.process is not None:
                place.process.join(max(0.0, end - time.monotonic()))
                if place.process.is_alive():
                    _log.error("worker %d did not stop in time; killed", place.process.pid)
                    place.process.kill()
                    place.process.join()
                place.process.close()
                place.process = None
