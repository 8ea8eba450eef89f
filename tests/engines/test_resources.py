"""Memory figures, and threads that hand over results and errors."""

import os
import threading
import time
from pathlib import Path

import pytest

from mrfrec import MemoryPlanError, ParameterError
from mrfrec.core.engine import Budget, human_bytes
from mrfrec.engines import machine
from mrfrec.engines.local import LocalEngine
from mrfrec.engines.machine import memory_budget, parse_bytes


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("8GB", 8 * 10**9),
        ("512 MiB", 512 * 2**20),
        ("1.5kb", 1500),
        ("100B", 100),
        ("2 TiB", 2 * 2**40),
        ("8G", 8 * 10**9),
        (12, 12),
        (8e9, 8 * 10**9),
    ],
)
def test_sizes_are_read(text: str | int, count: int) -> None:
    assert parse_bytes(text) == count


@pytest.mark.parametrize("text", ["", "8", "GB", "-1GB", "8 giga", "0GB", 0, None, 1.5, True])
def test_other_sizes_are_refused(text: object) -> None:
    with pytest.raises(ParameterError, match="memory_limit"):
        parse_bytes(text)  # type: ignore[arg-type]


def test_sizes_are_written_for_people() -> None:
    assert [human_bytes(n) for n in (5, 1500, 6_770_000_000, 5e15)] == [
        "5 bytes",
        "1.5 KB",
        "6.8 GB",
        "5000.0 TB",
    ]


def test_the_machine_offers_some_of_what_is_built_in() -> None:
    built_in = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert built_in // 1000 < machine._machine_memory() < built_in


@pytest.mark.parametrize(
    ("of_machine", "of_containers", "least"), [(9, [], 9), (9, [6, 7], 6), (5, [8], 5), (9, [-2], 0)]
)
def test_the_narrowest_limit_is_what_is_available(
    of_machine: int, of_containers: list[int], least: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "_machine_memory", lambda: of_machine)
    monkeypatch.setattr(machine, "_container_memory", lambda *_: iter(of_containers))
    assert machine.available_memory() == least
    assert memory_budget(None).limit == least


def test_threads_are_as_many_as_cores_the_process_may_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {1, 5, 6}, raising=False)
    assert machine.usable_threads() == 3
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    assert machine.usable_threads() == 4


def test_container_limits_count_with_cache_as_free(tmp_path: Path) -> None:
    membership = tmp_path / "cgroup"
    membership.write_text("0::/outer/inner\n")
    for path, limit, used in (("outer", "1000", "300"), ("outer/inner", "max", "100")):
        folder = tmp_path / path
        folder.mkdir()
        (folder / "memory.max").write_text(limit)
        (folder / "memory.current").write_text(used)
        (folder / "memory.stat").write_text("anon 5\ninactive_file 50\n")
    assert list(machine._container_memory(tmp_path, membership)) == [1000 - (300 - 50)]


def test_limits_of_containers_in_groups_of_version_1_count(tmp_path: Path) -> None:
    membership = tmp_path / "membership"
    membership.write_text("9:cpu,cpuacct:/outer\n4:memory:/outer\n0::/\n")
    for path, limit, used in (("memory", 2**63 - 4096, 500), ("memory/outer", 1000, 300)):
        folder = tmp_path / path
        folder.mkdir()
        (folder / "memory.limit_in_bytes").write_text(f"{limit}\n")
        (folder / "memory.usage_in_bytes").write_text(f"{used}\n")
        (folder / "memory.stat").write_text("inactive_file 7\ntotal_inactive_file 50\n")
    left = sorted(machine._container_memory(tmp_path, membership))
    assert left == [1000 - (300 - 50), 2**63 - 4096 - 450]


def test_no_containers_no_limits(tmp_path: Path) -> None:
    assert list(machine._container_memory(tmp_path, tmp_path / "absent")) == []


def test_plan_refuses_with_what_is_needed_what_there_is_and_what_to_do() -> None:
    plan = memory_budget(1000)
    plan.require("small", 900, "")
    with pytest.raises(
        MemoryPlanError, match=r"needs about 2\.0 KB \(large\).* and 1\.0 KB is what memory_limit .* Less"
    ):
        plan.require("large", 2000, "Less.")
    assert plan.stages == {"small": 900, "large": 2000}


def test_what_is_in_use_is_said_beside_what_is_needed() -> None:
    plan = Budget(1000, in_use=5000)
    with pytest.raises(MemoryPlanError, match=r"needs about 2\.0 KB \(large\) more than the 5\.0 KB in use"):
        plan.require("large", 2000, "Less.")
    before = machine.memory_in_use()
    block = bytearray(os.urandom(50_000_000))
    assert 45_000_000 < memory_budget(None).in_use - before < 80_000_000
    assert memory_budget(1000).in_use > len(block)


def test_results_come_in_the_order_of_the_tasks() -> None:
    def late(task: int) -> int:
        time.sleep(0.001 * (10 - task))
        return task

    with LocalEngine(3) as workers, workers.stage("stage", 10):
        assert workers.run(late, range(10)) == list(range(10))


def test_each_thread_makes_its_scratch_once() -> None:
    made: list[int] = []

    def scratch() -> int:
        made.append(threading.get_ident())
        return threading.get_ident()

    with LocalEngine(2) as workers, workers.stage("stage", 0):
        owners = workers.run(lambda t, space: (threading.get_ident(), space), range(50), scratch=scratch)
    assert len(made) <= 2
    assert all(ident == space for ident, space in owners)


def test_an_error_in_a_task_is_raised_and_stops_the_others() -> None:
    started: list[int] = []

    def work(task: int) -> None:
        started.append(task)
        if task == 3:
            raise ValueError("task 3")
        time.sleep(0.002)

    with LocalEngine(2) as workers, pytest.raises(ValueError, match="task 3"):
        workers.run(work, range(1000))
    assert len(started) < 1000
