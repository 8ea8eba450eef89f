"""The queue of the service: whose turn it is, who waits too long, and that much work keeps nobody waiting."""

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from mrfrec.service.problems import ProblemError
from mrfrec.service.queue import WorkQueue
from mrfrec.service.served import ServedModels

from servers import ASK, asking, eventually


def test_the_queue_answers_in_order_refuses_what_is_too_much_and_forgets_who_left() -> None:
    async def main() -> None:
        queue, done = WorkQueue(30, 5.0), []
        waiting = [asyncio.create_task(queue.run(lambda n=n: done.append(n) or n)) for n in range(30)]  # type: ignore[func-returns-value, misc]
        await asyncio.sleep(0)  # all are in the line
        waiting[3].cancel()
        with pytest.raises(ProblemError):
            await queue.run(lambda: done.append(99))
        found = await asyncio.gather(*waiting, return_exceptions=True)
        assert done == [n for n in range(30) if n != 3]
        assert [one for one in found if isinstance(one, int)] == done
        with pytest.raises(ZeroDivisionError):
            await queue.run(lambda: 1 // 0)
        assert await queue.run(lambda: 7) == 7

    asyncio.run(main())


def _work(seconds: float) -> None:
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


def test_the_loop_turns_every_2_milliseconds() -> None:
    async def turns(count: int, seconds: float) -> int:
        """Return how often the event loop got a turn while answers were made."""
        queue, others, over = WorkQueue(count, 5.0), 0, False

        async def other() -> None:
            nonlocal others
            while not over:
                others += 1
                await asyncio.sleep(0)

        beside = asyncio.create_task(other())
        await asyncio.gather(*(queue.run(lambda: _work(seconds)) for _ in range(count)))
        over = True
        await beside
        return others

    assert asyncio.run(turns(5, 0.03)) >= 5
    assert asyncio.run(turns(60, 0.0002)) >= 60 / 11  # up to ten in a row


@pytest.mark.parametrize("way", [WorkQueue.run, WorkQueue.run_in_thread])
def test_requests_that_wait_too_long_are_refused(way: Any) -> None:
    async def main() -> None:
        queue = WorkQueue(10, 0.05)
        first = asyncio.create_task(way(queue, lambda: time.sleep(0.2)))
        second = asyncio.create_task(way(queue, lambda: 1))
        await first
        with pytest.raises(ProblemError):
            await second

    asyncio.run(main())


def test_work_waits_for_no_thread_that_others_use() -> None:
    async def main() -> None:
        go_on = Event()
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
        other = asyncio.create_task(asyncio.to_thread(go_on.wait, 20))
        await asyncio.sleep(0)
        try:
            async with asyncio.timeout(5):
                assert await WorkQueue(1, 1.0).run_in_thread(lambda: 7) == 7
        finally:
            go_on.set()
            await other

    asyncio.run(main())


def test_two_of_many_reloads_are_made_and_lookups_are_answered_meanwhile(
    shop: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go_on = Event(), Event()
    inner = ServedModels.reload

    def waits(self: ServedModels, name: str) -> Any:
        begun.set()
        assert go_on.wait(20)
        return inner(self, name)

    monkeypatch.setattr(ServedModels, "reload", waits)
    with asking(shop, seconds=10.0) as client, ThreadPoolExecutor(24) as pool:
        try:
            replies = [pool.submit(client.post, "/v1/models/shop/reload") for _ in range(24)]
            assert begun.wait(20)
            eventually(lambda: sum(reply.done() for reply in replies) == 22)
            assert client.get("/v1/search?q=milk").status_code == 200
        finally:
            go_on.set()
        found = [reply.result() for reply in replies]
    assert sorted(reply.status_code for reply in found) == [200] * 2 + [503] * 22
    for reply in found:
        if reply.status_code == 503:
            assert reply.headers["retry-after"] == "1"
            assert reply.json()["detail"] == "models are being reloaded; try again."


@pytest.mark.parametrize(
    ("slow", "method", "path", "body"),
    [
        ("answers.recommend_to_user", "POST", "/v1/recommend", {"user": 4, "k": 40, "reasons": 30}),
        ("answers.search", "GET", "/v1/search?q=milk", None),
        ("page._rendered", "GET", "/item?item=milk", None),
    ],
)
def test_much_work_does_not_keep_others_waiting(
    slow: str, method: str, path: str, body: Any, shop: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go_on = Event(), Event()
    module, _, name = slow.partition(".")
    inner = getattr(import_module(f"mrfrec.service.{module}"), name)

    def waits(*given: Any) -> Any:
        begun.set()
        assert go_on.wait(20)
        return inner(*given)

    monkeypatch.setattr(f"mrfrec.service.{slow}", waits)
    with asking(shop) as client, ThreadPoolExecutor(1) as pool:
        try:
            large = pool.submit(client.request, method, path, json=body)
            assert begun.wait(20)
            assert client.post("/v1/recommend", json=ASK).status_code == 200
            assert not large.done()
        finally:
            go_on.set()
        assert large.result().status_code == 200
