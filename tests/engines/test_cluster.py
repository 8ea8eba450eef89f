"""A cluster of real processes: the same bits as one machine, whatever happens to the workers."""

import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import dask
import numpy as np
import polars as pl
import pytest
import scipy.sparse as sp
from distributed import Client, Future, LocalCluster

from mrfrec import (
    MRF,
    ClusterError,
    Interactions,
    MemoryPlanError,
    MrfrecError,
    NumericalError,
    ParameterError,
    read_item_features,
)
from mrfrec.core import blocks
from mrfrec.core.engine import STAGE_NAMES
from mrfrec.engines import cluster as engine
from mrfrec.engines.cluster import ClusterEngine, connected

from matrices import random_matrix

pytestmark = pytest.mark.slow  # processes of a cluster


@pytest.fixture(scope="module")
def table() -> sp.csr_array:
    data = np.hstack([random_matrix(seed, users=400, items=60) for seed in (3, 4, 5)])
    return sp.csr_array(data)


def assert_same(found: MRF, expected: MRF) -> None:
    for name in ("data", "indices", "indptr") if expected.is_sparse else ("data",):
        np.testing.assert_array_equal(getattr(found.weights_, name), getattr(expected.weights_, name))
    low, wanted = (getattr(model.fitted_.learned, "low_rank", None) for model in (found, expected))
    if wanted is not None:
        assert low is not None
        np.testing.assert_array_equal(low.vectors, wanted.vectors)


def assert_nothing_is_left(client: Client) -> None:
    """The workers hold no data and no tasks, or soon will not."""
    for _ in range(300):
        left = client.run(
            lambda dask_worker: [
                (task.key, task.state)
                for task in dask_worker.state.tasks.values()
                if task.state in ("memory", "ready", "executing", "waiting")
            ],
            on_error="ignore",
        )
        if not any(left.values()):
            return
        time.sleep(0.1)
    pytest.fail(str(left))


@pytest.mark.parametrize(
    "settings",
    [
        {"sparsity": 0.1, "rank": 8},
        {"threshold": 0.05, "rank": 0, "user_weight": 0.0, "dtype": "float64"},
        {"sparsity": 0.05, "rank": 0, "feature_weight": 1.0},
        {"sparsity": None, "rank": 0},  # fitted here
    ],
    ids=str,
)
def test_a_cluster_gives_the_bits_of_one_machine(
    client: Client, table: sp.csr_array, settings: dict[str, Any]
) -> None:
    stages: dict[str, tuple[int, int]] = {}

    def progress(stage: str, done: int, total: int) -> None:
        stages[stage] = done, total

    data, m = Interactions(table), table.shape[1] + 20
    if "feature_weight" in settings:
        tags = pl.DataFrame({"item": range(m), "tag": [f"{i % 31}|{i % 17}" for i in range(m)]})
        data = data.with_features(read_item_features(tags, columns={"tag": "list"}))
    found = MRF(**settings).fit(data, client=client, progress=progress)
    expected = MRF(**settings).fit(data)
    assert_same(found, expected)
    assert found.new_scale_ == expected.new_scale_
    assert {STAGE_NAMES["pattern"], STAGE_NAMES["blocks"]} <= stages.keys() or not found.is_sparse
    done, total = list(stages.values())[-1]
    assert done == total
    assert_nothing_is_left(client)


def test_a_cluster_measures_as_one_machine_does(client: Client) -> None:
    X = sp.csr_array(np.hstack([random_matrix(seed, users=600, items=60) for seed in (3, 4, 5)]))
    found, expected = (MRF(sparsity=0.1, rank=8).fit(X, client=on) for on in (client, None))
    assert found.measured_ is not None
    assert found.measured_ == expected.measured_
    assert_same(found, expected)


def test_threads_of_one_worker_give_the_bits_of_one_machine(table: sp.csr_array, tmp_path: Path) -> None:
    with (
        LocalCluster(
            n_workers=1, threads_per_worker=4, dashboard_address=":0", local_directory=str(tmp_path)
        ) as workers,
        Client(workers) as threads,
    ):
        found = MRF(sparsity=0.1, rank=8).fit(table, client=threads)
    assert_same(found, MRF(sparsity=0.1, rank=8).fit(table))


@pytest.mark.parametrize("stage", ["pattern", "blocks"])
def test_a_worker_that_is_killed_costs_time_only(client: Client, table: sp.csr_array, stage: str) -> None:
    pids = client.run(os.getpid)
    killed: list[int] = []

    def kill(name: str, done: int, total: int) -> None:
        if name == STAGE_NAMES[stage] and not killed:
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


def test_data_that_all_workers_have_lost_is_sent_again(client: Client, table: sp.csr_array) -> None:
    """Dask cancels tasks whose data is gone, and all of them when the connection to the scheduler breaks."""
    lost: list[Any] = []

    def lose(stage: str, done: int, total: int) -> None:
        if stage == STAGE_NAMES["blocks"] and not lost:
            lost.extend(client.futures)
            client.cancel([Future(key, client) for key in lost])

    found = MRF(sparsity=0.1, r=0.5, rank=0).fit(table, client=client, progress=lose)
    assert lost
    assert_same(found, MRF(sparsity=0.1, r=0.5, rank=0).fit(table))


def test_an_interrupt_frees_everything(client: Client, table: sp.csr_array) -> None:
    def interrupt(stage: str, done: int, total: int) -> None:
        if stage == STAGE_NAMES["pattern"]:
            raise KeyboardInterrupt

    model = MRF(sparsity=0.1, rank=0)
    with pytest.raises(KeyboardInterrupt):
        model.fit(table, client=client, progress=interrupt)
    assert not hasattr(model, "weights_")
    assert_nothing_is_left(client)


def test_a_task_that_fails_is_named(client: Client) -> None:
    with ClusterEngine(client) as workers, workers.stage("things", 3):
        found: list[float] = []
        workers.fold("thing", partial(divide, 12), [1, 2, 3], lambda _, x: found.append(x), [1, 1, 1])
        assert found == [12, 6, 4]
        with pytest.raises(ClusterError, match=r"^the task thing 2 of 3 failed: ZeroDivisionError"):
            workers.fold("thing", partial(divide, 12), [1, 0, 3], lambda *_: None, [1, 1, 1])


def test_a_task_that_kills_its_workers_ends_in_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "_PATIENCE", 3.0)  # after some deaths, Dask starts no more workers
    with (
        connected("local:1") as lone,
        ClusterEngine(lone) as workers,
        workers.stage("things", 1),
        pytest.raises(ClusterError, match=r"with their workers.*run out of memory|no workers that run"),
    ):
        workers.fold("thing", vanish, [1], lambda *_: None, [1])


def divide(a: int, b: int, _: object) -> float:
    return a / b


def vanish(*_: object) -> None:
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
    for worker in versions["workers"].values():
        worker["packages"]["numba"] = "0.1"
    monkeypatch.setattr(client, "get_versions", lambda packages: versions)
    with pytest.raises(ClusterError, match=r"tcp://.* has numba 0\.1, this machine"):
        MRF(sparsity=0.1).fit(table, client=client)


def test_bad_clients_are_refused(
    client: Client, table: sp.csr_array, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ParameterError, match=r"client must be a distributed\.Client .* got 3"):
        MRF().fit(table, client=3)
    with pytest.raises(ParameterError, match='device must be "cpu" with a client'):
        MRF(device="cuda").fit(table, client=client)
    monkeypatch.setattr(engine, "_CONNECT_SECONDS", 0.5)
    for text, message in (
        ("local:x", "cluster must be an address"),
        ("local:0", "cluster must be an address"),
        ("tcp://127.0.0.1:9", r"no scheduler answers at tcp://127\.0\.0\.1:9"),
        ("tls://127.0.0.1:9", r"no scheduler answers at tls://127\.0\.0\.1:9: TLS expects"),  # certificates
    ):
        with pytest.raises(MrfrecError, match=message), connected(text):
            pass


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
            if stage == STAGE_NAMES["blocks"] and not began:
                scheduler.kill()
                began.append(time.monotonic())

        end = time.monotonic() + 60
        while time.monotonic() < end:
            with suppress(OSError), socket.create_connection(("127.0.0.1", int(at)), 1):
                break
            time.sleep(0.1)
        quick = dask.config.set({"distributed.comm.timeouts.connect": "2s"})
        with quick, Client(address, timeout="10s") as lone:  # which it takes to look for it again, too
            lone.wait_for_workers(1, timeout=60)
            with pytest.raises(ClusterError, match=rf"^the cluster at {address} has had no scheduler"):
                MRF(sparsity=0.1, rank=0).fit(table, client=lone, progress=kill)
            assert time.monotonic() - began[0] < 90
    finally:
        for process in (scheduler, worker):
            process.kill()
            process.wait()
