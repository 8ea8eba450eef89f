"""A cluster of real processes: the same bits as one machine, whatever happens to the workers."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pytest
import scipy.sparse as sp
from distributed import Client, LocalCluster, wait

from mrfrec import MRF, ClusterError, MemoryPlanError, NumericalError, ParameterError
from mrfrec.core import blocks
from mrfrec.core.engine import WORDS
from mrfrec.engines import cluster as engine
from mrfrec.engines import cluster_worker
from mrfrec.engines.cluster import ClusterEngine, connected
from mrfrec.models import EASE, SLIM

from conftest import random_matrix

pytestmark = pytest.mark.slow  # processes of a cluster

SETTINGS: list[dict[str, Any]] = [
    {"sparsity": 0.1, "rank": 8},
    {"sparsity": 0.2, "r": 0.5, "rank": 0},
    {"threshold": 0.05, "rank": 0, "user_weight": 0.0, "dtype": "float64"},
]


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    folder = str(tmp_path_factory.mktemp("workers"))
    with (
        LocalCluster(
            n_workers=2, threads_per_worker=1, dashboard_address=":0", local_directory=folder
        ) as workers,
        Client(workers) as connection,
    ):
        yield connection


@pytest.fixture(scope="module")
def table() -> sp.csr_array:
    data = np.hstack([random_matrix(seed, users=400, items=60) for seed in (3, 4, 5)])
    return sp.csr_array(data)


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let small arrays be shared, in several pieces."""
    monkeypatch.setattr(engine, "_SHARED_FROM", 2000)
    monkeypatch.setattr(engine, "_PIECE", 10_000)


def assert_same(found: MRF, expected: MRF) -> None:
    for name in ("data", "indices", "indptr"):
        np.testing.assert_array_equal(getattr(found.weights_, name), getattr(expected.weights_, name))
    if expected._low_rank is not None:
        assert found._low_rank is not None
        np.testing.assert_array_equal(found._low_rank.vectors, expected._low_rank.vectors)


def files_of(client: Client) -> list[str]:
    """The files of shared arrays on all hosts."""
    found = client.run(
        lambda dask_worker: [str(p) for p in cluster_worker._folder_of(dask_worker).glob("mrfrec-*/*")]
    )
    return sorted({path for paths in found.values() for path in paths})


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
@pytest.mark.parametrize("shared", [False, True])
def test_a_cluster_gives_the_bits_of_one_machine(
    client: Client, table: sp.csr_array, settings: dict[str, Any], shared: bool, tmp_path: Path
) -> None:
    stages: dict[str, tuple[int, int]] = {}
    seen: list[list[str]] = []

    def progress(stage: str, done: int, total: int) -> None:
        stages[stage] = done, total
        if stage == WORDS["blocks"] and not seen:
            files = [str(path) for path in tmp_path.glob("mrfrec-*/*")] if shared else files_of(client)
            seen.extend([files] if files else [])

    found = MRF(**settings).fit(
        table, client=client, progress=progress, shared_path=tmp_path if shared else None
    )
    assert_same(found, MRF(**settings).fit(table))
    assert {WORDS["pattern"], WORDS["blocks"]} <= stages.keys()
    done, total = list(stages.values())[-1]
    assert done == total
    assert seen[0]  # the data was there, and is no longer
    assert files_of(client) == []
    assert list(tmp_path.iterdir()) == []


def test_a_dense_model_is_fitted_here(client: Client, table: sp.csr_array) -> None:
    assert np.array_equal(EASE().fit(table, client=client).weights_, EASE().fit(table).weights_)


@pytest.mark.slow
@pytest.mark.parametrize("stage", ["low rank", "pattern", "blocks"])
def test_a_worker_that_is_killed_costs_time_only(client: Client, table: sp.csr_array, stage: str) -> None:
    pids = client.run(os.getpid)
    killed: list[int] = []

    def kill(name: str, done: int, total: int) -> None:
        if name == WORDS[stage] and not killed:
            killed.append(next(iter(pids.values())))
            os.kill(killed[0], signal.SIGKILL)

    found = MRF(sparsity=0.1, rank=8).fit(table, client=client, progress=kill)
    assert killed
    assert_same(found, MRF(sparsity=0.1, rank=8).fit(table))
    try:
        client.wait_for_workers(2, timeout=20)
    except TimeoutError:  # Dask does not replace every worker that dies
        for count in (0, 2):
            client.cluster.scale(count)
        client.wait_for_workers(2, timeout=60)
    assert files_of(client) == []


def test_a_host_without_the_data_gets_it_again(client: Client, table: sp.csr_array) -> None:
    lost: list[list[str]] = []

    def lose(stage: str, done: int, total: int) -> None:
        if stage == WORDS["blocks"] and not lost:
            lost.append(files_of(client))
            client.run(cluster_worker.drop_arrays, "", (), on_error="ignore")
            assert files_of(client) == []

    found = MRF(sparsity=0.1, r=0.5, rank=0).fit(table, client=client, progress=lose)
    assert lost[0]
    assert_same(found, MRF(sparsity=0.1, r=0.5, rank=0).fit(table))


def test_an_interrupt_frees_everything(client: Client, table: sp.csr_array) -> None:
    def interrupt(stage: str, done: int, total: int) -> None:
        if stage == WORDS["pattern"]:
            raise KeyboardInterrupt

    model = MRF(sparsity=0.1, rank=0)
    with pytest.raises(KeyboardInterrupt):
        model.fit(table, client=client, progress=interrupt)
    assert not hasattr(model, "weights_")
    assert files_of(client) == []
    for _ in range(300):
        left = client.run(
            lambda dask_worker: [
                (task.key, task.state)
                for task in dask_worker.state.tasks.values()
                if task.state in ("memory", "ready", "executing", "waiting")
            ]
        )
        if not any(left.values()):
            break
        time.sleep(0.1)
    assert not any(left.values()), left


def test_a_task_that_fails_is_named(client: Client) -> None:
    with ClusterEngine(client) as workers, workers.stage("things", 3):
        assert workers.map("thing", partial(divide, 12), [1, 2, 3]) == [12, 6, 4]
        with pytest.raises(ClusterError, match=r"^the task thing 2 of 3 failed: ZeroDivisionError"):
            workers.map("thing", partial(divide, 12), [1, 0, 3])


@pytest.mark.slow
def test_a_task_that_kills_its_workers_is_named() -> None:
    with (
        connected("local:1") as lone,
        ClusterEngine(lone) as workers,
        workers.stage("things", 1),
        pytest.raises(ClusterError, match=r"^the task thing 1 of 1 took \d workers with it, the last"),
    ):
        workers.map("thing", vanish, [1])


def divide(a: int, b: int) -> float:
    return a / b


def vanish(_: int) -> None:
    os._exit(1)


def test_errors_of_the_core_keep_their_words(client: Client) -> None:
    twins = sp.csr_array(np.repeat(random_matrix(3), 2, axis=1))
    with pytest.raises(NumericalError, match="is not positive definite in float32"):
        MRF(l2=0.0, sparsity=0.3, rank=0).fit(twins, client=client)


def test_tasks_fit_the_smallest_worker_or_are_refused(
    client: Client, table: sp.csr_array, monkeypatch: pytest.MonkeyPatch
) -> None:
    ranges: list[list[tuple[int, int]]] = []

    def noted(*given: Any) -> list[tuple[int, int]]:
        ranges.append(original(*given))
        return ranges[-1]

    original = blocks.batches
    monkeypatch.setattr(blocks, "batches", noted)
    model, real = MRF(sparsity=0.1, rank=0), ClusterEngine._workers
    expected = MRF(sparsity=0.1, rank=0).fit(table)
    assert_same(model.fit(table, client=client), expected)
    monkeypatch.setattr(ClusterEngine, "task_memory", 40_000)
    assert_same(model.fit(table, client=client), expected)
    counts = [len(r) for r in ranges]
    assert counts[:2] == [1, 2]  # here one batch, there one for each thread
    assert counts[2] > 2
    monkeypatch.setattr(ClusterEngine, "task_memory", 4000)
    with pytest.raises(MemoryPlanError, match=r"\(blocks\) and 4\.0 KB is what the smallest worker has"):
        model.fit(table, client=client)
    few = {"memory_limit": 100_000}
    monkeypatch.setattr(ClusterEngine, "_workers", lambda self: {a: w | few for a, w in real(self).items()})
    with pytest.raises(MemoryPlanError, match=r"data on each worker\) and 70\.0 KB is what the worker"):
        model.fit(table, client=client)


def test_workers_with_other_versions_are_named(
    client: Client, table: sp.csr_array, monkeypatch: pytest.MonkeyPatch
) -> None:
    versions = client.get_versions(packages=["mrfrec", "numpy", "numba", "scipy"])
    first, second = versions["workers"]
    versions["workers"][first]["packages"]["mrfrec"] = None
    versions["workers"][second]["packages"]["numba"] = "0.1"
    monkeypatch.setattr(client, "get_versions", lambda packages: versions)
    with pytest.raises(ClusterError, match=r"tcp://.* has mrfrec not installed, this .*; tcp.* numba 0\.1"):
        MRF(sparsity=0.1).fit(table, client=client)


def test_bad_clients_are_refused(
    client: Client, table: sp.csr_array, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ParameterError, match=r"client must be a distributed\.Client, or None; got 3"):
        MRF().fit(table, client=3)
    with pytest.raises(ParameterError, match="client must be None: SLIM is fitted on this machine"):
        SLIM().fit(table, client=client)
    with pytest.raises(ParameterError, match='device must be "cpu" with a client'):
        MRF(device="cuda").fit(table, client=client)
    with pytest.raises(ParameterError, match="shared_path must be None without a client"):
        MRF().fit(table, shared_path=tmp_path)
    with pytest.raises(ParameterError, match=r"shared_path must be a folder in which files can be created"):
        MRF().fit(table, client=client, shared_path="/proc")
    monkeypatch.setattr(engine, "_CONNECT", 0.5)
    for text in ("local:x", "local:0", "somewhere"):
        with pytest.raises(ParameterError, match="cluster must be an address"), connected(text):
            pass
    with (
        pytest.raises(ClusterError, match=r"no scheduler answers at tcp://127\.0\.0\.1:9"),
        connected("tcp://127.0.0.1:9"),
    ):
        pass


def test_tasks_that_are_cancelled_while_they_are_awaited_are_sent_again(
    client: Client, table: sp.csr_array, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dask cancels them when the connection to the scheduler breaks."""
    cancelled: list[Any] = []

    def cancel_and_wait(futures: list[Any], **options: Any) -> Any:
        if not cancelled:
            cancelled.extend(futures)
            client.cancel(futures)
        return wait(futures, **options)

    monkeypatch.setattr("distributed.wait", cancel_and_wait)
    assert_same(MRF(**SETTINGS[0]).fit(table, client=client), MRF(**SETTINGS[0]).fit(table))
    assert cancelled


@pytest.mark.slow
def test_a_scheduler_that_goes_away_ends_the_fit_with_one_error(
    table: sp.csr_array, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "_PATIENCE", 3.0)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"tcp://127.0.0.1:{free.getsockname()[1]}"
    at = address.rsplit(":", 1)[1]
    scheduler = subprocess.Popen(
        [sys.executable, "-m", "distributed.cli.dask_scheduler", "--host", "127.0.0.1", "--port", at,
         "--no-dashboard"], stderr=subprocess.DEVNULL,
    )  # fmt: skip
    worker = subprocess.Popen(
        [sys.executable, "-m", "distributed.cli.dask_worker", address, "--no-nanny", "--no-dashboard",
         "--local-directory", str(tmp_path), "--death-timeout", "20"], stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        began: list[float] = []

        def kill(stage: str, done: int, total: int) -> None:
            if stage == WORDS["blocks"] and not began:
                scheduler.kill()
                began.append(time.monotonic())

        quick = dask.config.set({"distributed.comm.timeouts.connect": "2s"})
        with quick, Client(address, timeout="60s") as lone:
            lone.wait_for_workers(1, timeout=60)
            with pytest.raises(ClusterError, match=rf"^the scheduler at {address} does not answer any more"):
                MRF(sparsity=0.1, rank=0).fit(table, client=lone, progress=kill)
            assert time.monotonic() - began[0] < 30
    finally:
        for process in (scheduler, worker):
            process.kill()
            process.wait()
