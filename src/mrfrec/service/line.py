"""Who waits for an answer: a line of bounded length, served one at a time.

Answers take a millisecond of Python and numpy each. They are made in the thread of the event loop, which
would otherwise fight with them for the interpreter; between two answers the loop reads what has arrived, and
refuses what is too much.
"""

import asyncio
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


class FullError(Exception):
    """The line is full, or the time of a request ran out in it."""


class Line:
    """A bounded line of work."""

    def __init__(self, most: int, seconds: float) -> None:
        self.most, self.seconds, self.length = most, seconds, 0
        self._turn = asyncio.Lock()  # first come, first served

    @property
    def is_full(self) -> bool:
        """Whether the next one would be refused."""
        return self.length >= self.most

    async def do(self, work: Callable[[], T]) -> T:
        """Wait for one's turn, then do the work in this thread."""
        return await self._do(work, in_thread=False)

    async def do_apart(self, work: Callable[[], T]) -> T:
        """Wait for one's turn, then do the work in another thread: for work of more than milliseconds."""
        return await self._do(work, in_thread=True)

    async def _do(self, work: Callable[[], T], in_thread: bool) -> T:
        if self.is_full:
            raise FullError
        self.length += 1
        try:
            try:
                async with asyncio.timeout(self.seconds):
                    await self._turn.acquire()
            except TimeoutError:
                raise FullError from None
            try:
                if in_thread:
                    return await asyncio.to_thread(work)
                await asyncio.sleep(0)
                return work()
            finally:
                self._turn.release()
        finally:
            self.length -= 1
