"""Queues of bounded length for the work that requests ask for, which is done one piece at a time.

A usual answer takes a millisecond of Python and numpy. It is made in the thread of the event loop, with which
another thread would fight for the interpreter. Every 2 milliseconds the loop has a turn: it sends answers,
reads requests, and refuses those for which there is no room. After a long turn of the loop, as in a flood of
requests, answers get twice the time of that turn, at most 50 milliseconds: two thirds of all time, up to this
limit. Work that takes more than some milliseconds is done in another thread. Each queue has its own, so that
no kind of work waits for a thread that another kind uses.
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

_SLICE, _LONGEST_SLICE = 0.002, 0.05  # seconds of answers in a row, on the processor


class WorkQueue:
    """A bounded queue of work. Requests for which it has no room, or no time, are refused."""

    def __init__(self, most: int, seconds: float, refusal: str = TOO_MANY) -> None:
        """Let at most `most` requests wait, each for at most `seconds`; tell others the `refusal`."""
        self._most = most
        self._seconds = seconds
        self._refusal = refusal
        self._length = 0
        self._waiting: deque[tuple[asyncio.Future[Any], Callable[[], Any], float]] = deque()
        self._is_working = False
        self._ended = 0.0  # when the last slice of time ended
        self._turn = asyncio.Lock()  # of work in the other thread: first come, first served
        self._thread = ThreadPoolExecutor(1)  # started with the first work

    async def run(self, work: Callable[[], T]) -> T:
        """Wait for one's turn, then do the work in this thread."""
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
        """Do the work of the first request, and of as many more as a slice of time allows."""
        start = time.thread_time()
        end = start + min(max(_SLICE, 2 * (start - self._ended)), _LONGEST_SLICE)
        while self._waiting:
            done, work, latest = self._waiting.popleft()
            if done.done():  # the request was cancelled
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
        """Wait for one's turn, then do the work in another thread: for work of more than milliseconds."""
        async with self.turn() as run:
            result: T = await run(work, *arguments)
            return result

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[Callable[..., Awaitable[Any]]]:
        """Wait for one's turn and keep it until the block ends; yield what runs work in the thread."""
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
