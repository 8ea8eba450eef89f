"""Bounded queues for the work of requests, which is done one piece at a time.

A usual answer takes a millisecond of Python and numpy. The thread of the event loop makes it, because another
thread would fight with the loop for the interpreter. Every 2 milliseconds the loop gets a turn: it sends
answers, reads requests, and refuses requests if the queue is full. If the turn of the loop was long, as in a
flood of requests, answers get twice that time, at most 50 milliseconds: up to this limit, answers have two
thirds of all time. Another thread does work that takes more than some milliseconds. Every queue has a thread
of its own, so that no kind of work waits for another kind.
"""

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, TypeVar

from mrfrec.service.problems import TOO_MANY, busy

T = TypeVar("T")

# Seconds of processor time for answers in a row.
_SLICE, _LONGEST_SLICE = 0.002, 0.05


class WorkQueue:
    """A bounded queue of work. It refuses requests when it has no room or no time for them."""

    def __init__(self, most: int, seconds: float, refusal: str = TOO_MANY) -> None:
        """Let at most `most` requests wait, at most `seconds`; refuse any more with the text `refusal`."""
        self._most = most
        self._seconds = seconds
        self._refusal = refusal
        self._length = 0
        self._waiting: deque[tuple[asyncio.Future[Any], Callable[[], Any], float]] = deque()
        self._is_working = False
        self._ended = 0.0  # when the last slice of time ended
        # Work in the other thread is done in the order in which it comes.
        self._turn = asyncio.Lock()
        # The thread starts with the first work.
        self._thread = ThreadPoolExecutor(1)

    async def run(self, work: Callable[[], T]) -> T:
        """Wait for a turn, then do the work in this thread."""
        self._enter()
        loop = asyncio.get_running_loop()
        done: asyncio.Future[T] = loop.create_future()
        self._waiting.append((done, work, time.monotonic() + self._seconds))
        if not self._is_working:
            self._is_working = True
            self._ended = time.thread_time()
            loop.call_soon(self._work, loop)
        try:
            return await done
        finally:
            self._length -= 1

    def _enter(self) -> None:
        if self._length >= self._most:
            raise busy(self._refusal)
        self._length += 1

    def _work(self, loop: asyncio.AbstractEventLoop) -> None:
        """Do the work of the first request, and of more requests while a slice of time lasts."""
        start = time.thread_time()
        end = start + min(max(_SLICE, 2 * (start - self._ended)), _LONGEST_SLICE)
        while self._waiting:
            done, work, latest = self._waiting.popleft()
            # A cancelled request needs no answer.
            if done.done():
                continue
            try:
                if time.monotonic() > latest:
                    raise busy(self._refusal)
                done.set_result(work())
            except Exception as error:
                done.set_exception(error)
            if time.thread_time() >= end:
                break
        self._is_working = bool(self._waiting)
        self._ended = time.thread_time()
        if self._waiting:
            loop.call_soon(self._work, loop)

    async def run_in_thread(self, work: Callable[..., T], *arguments: Any) -> T:
        """Wait for a turn, then do the work in the other thread: for work of more than milliseconds."""
        async with self.turn() as run:
            result: T = await run(work, *arguments)
            return result

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[Callable[..., Awaitable[Any]]]:
        """Wait for a turn and keep it until the block ends; yield a function that runs work in the thread."""
        self._enter()
        try:
            try:
                async with asyncio.timeout(self._seconds):
                    await self._turn.acquire()
            except TimeoutError:
                raise busy(self._refusal) from None
            try:
                yield partial(asyncio.get_running_loop().run_in_executor, self._thread)
            finally:
                self._turn.release()
        finally:
            self._length -= 1
