"""The seam between the core and the engine: pure functions that run anywhere and give the same bits."""

import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from mrfrec.core import fitting, statistics
from mrfrec.core.engine import Engine
from mrfrec.core.entries import FINE, Scratch, list_columns
from mrfrec.core.plan import Settings
from mrfrec.engines.local import LocalEngine

from conftest import random_matrix


def in_one_thread(function: Callable[[Any, Engine], Any], task: Any) -> Any:
    with LocalEngine(1) as engine:
        return function(task, engine)


class OtherProcess(LocalEngine):
    """Sends every large task to another process, as a cluster would, and counts them."""

    def __init__(self, pool: ProcessPoolExecutor) -> None:
        super().__init__(2)
        self.pool, self.sent = pool, 0

    def fold(
        self,
        name: str,
        function: Callable[[Any, Engine], Any],
        tasks: Sequence[Any],
        add: Callable[[Any, Any], None],
        costs: Sequence[int],
    ) -> None:
        for task in tasks:
            self.sent += 1
            add(task, self.pool.submit(in_one_thread, function, task).result(timeout=300))


@pytest.fixture(scope="module")
def pool() -> Iterator[ProcessPoolExecutor]:
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as workers:
        yield workers


@pytest.mark.slow
@pytest.mark.parametrize(("r", "user_weight"), [(0.0, 0.0), (0.5, 0.5)])
def test_batches_solved_in_another_process_give_the_same_bits(
    pool: ProcessPoolExecutor, r: float, user_weight: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mrfrec.core.plan._LEAST_BATCH", 100_000)
    monkeypatch.setattr("mrfrec.core.plan._BATCH_PER_INTERACTION", 0)
    X = sp.csr_array(random_matrix(31, users=300, items=200))
    settings = Settings(1.0, 0.75, 0.0, 0.0, user_weight, True, 0.2, None, 1000, r, False, "float32")
    with LocalEngine(2) as here, OtherProcess(pool) as elsewhere:
        B, C = (fitting.fit(X, settings, engine).weights for engine in (here, elsewhere))
    assert elsewhere.sent > 1
    for name in ("ptr", "items", "values"):
        np.testing.assert_array_equal(getattr(B, name), getattr(C, name))


def test_entries_of_a_range_of_items_are_the_same_from_another_process(pool: ProcessPoolExecutor) -> None:
    X = sp.csr_array(random_matrix(32, users=200, items=100))
    with LocalEngine(1) as engine:
        facts = statistics.moments(X, 0.0, engine).scaled(0.75, center=True)
    lengths = np.diff(X.indptr)[np.searchsorted(X.indptr, facts.X.begin, side="right") - 1].astype(np.uint32)
    threshold, no_limits = np.float32(0.1), np.empty(0, np.int64)
    arguments = (facts, 20, 60, threshold, Scratch(facts, FINE, 30), lengths, threshold, no_limits)
    there = pool.submit(list_columns, *arguments).result(timeout=300)
    here = list_columns(*arguments)
    assert here.counts.sum() > 100
    for name in ("ptr", "counts", "keys", "tied"):
        np.testing.assert_array_equal(getattr(here, name), getattr(there, name))
