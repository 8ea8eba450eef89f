"""Who waits for an answer: a line of bounded length, served one at a time.

Answers take a millisecond of Python and numpy each. They are made in the thread of the event loop, which
would otherwise fight with them for the interpreter. Every 20 milliseconds the loop sends what was answered,
reads what has arrived, and refuses what is too much. Several answers in a row take a fifth less time than one
at a time, since what they need stays in the processor's cache; so do refusals.
"""

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

T = TypeVar("T")

_SLICE = 0.02  # seconds of answers in a row


class FullError(Exception):
    """The line is full, or the time of a request ran out in it."""


class LeftError(Exception):
    """The client has left."""


class Line:
    """A bounded line of work."""

    def __init__(self, most: int, seconds: float) -> None:
        self.most, self.seconds, self.length = most, seconds, 0
        self._waiting: deque[tuple[asyncio.Future[Any], Callable[[], Any], float]] = deque()
        self._is_working = False
        self._turn = asyncio.Lock()  # of work in other threads: first come, first served

    @property
    def is_full(self) -> bool:
        """Whether the next one would be refused."""
        return self.length >= self.most

    @property
    def answered(self) -> int:
        """How many have their answer, and will leave before the loop reads from connections again."""
        return self.length - len(self._waiting)

    async def do(self, work: Callable[[], T]) -> T:
        """Wait for one's turn, then do the work in this thread."""
        if self.is_full:
            raise FullError
        loop = asyncio.get_running_loop()
        done: asyncio.Future[T] = loop.create_future()
        self._waiting.append((done, work, time.monotonic() + self.seconds))
        if not self._is_working:
            self._is_working = True
            loop.call_soon(self._work, loop)
        self.length += 1
        try:
            return await done
        finally:
            self.length -= 1

    def _work(self, loop: asyncio.AbstractEventLoop) -> None:
        """Answer the first one, and as many as a slice of time allows."""
        end = time.monotonic() + _SLICE
        while self._waiting:
            done, work, latest = self._waiting.popleft()
            if done.done():  # nobody waits for it any more
                continue
            try:
                if time.monotonic() > latest:
                    raise FullError
                done.set_result(work())
            except Exception as error:
                done.set_exception(error)
            if time.monotonic() >= end:
                break
        self._is_working = bool(self._waiting)
        if self._waiting:
            loop.call_soon(self._work, loop)

    async def do_apart(
        self, *pieces: Callable[[], T], is_wanted: Callable[[], Awaitable[bool]] | None = None
    ) -> list[T]:
        """Wait for one's turn, then do the work in another thread: for work of more than milliseconds.

        Before each piece, `is_wanted` is asked whether to go on; if not, `LeftError` is raised.
        """
        if self.is_full:
            raise FullError
        self.length += 1
        try:
            async with asyncio.timeout(self.seconds):
                await self._turn.acquire()
        except TimeoutError:
            self.length -= 1
            raise FullError from None
        try:
            done = []
            for piece in pieces:
                if is_wanted is not None and not await is_wanted():
                    raise LeftError
                done.append(await asyncio.to_thread(piece))
            return done
        finally:
            self._turn.release()
            self.length -= 1
