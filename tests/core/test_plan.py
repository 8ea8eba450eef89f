"""Plans of memory: what they depend on, what they allow, and that fits keep to them."""

import re
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from mrfrec import MRF, Interactions, MemoryPlanError
from mrfrec.engines.local import LocalEngine


def data(users: int = 2_000, items: int = 3_000, pairs: int = 60_000) -> Any:
    rng = np.random.default_rng(0)
    where = rng.integers(0, users, pairs), (items * rng.random(pairs) ** 2).astype(np.int64)
    X = sp.csr_array((np.ones(pairs, np.float32), where), shape=(users, items))
    X.data[:] = 1
    return X


@pytest.mark.slow
@pytest.mark.parametrize(
    ("parameters", "items"), [({}, 1_000), ({"sparsity": 0.02}, 3_000), ({"memory_limit": "70MB"}, 3_000)]
)
def test_plan_and_weights_do_not_depend_on_the_number_of_threads(
    parameters: dict[str, Any], items: int
) -> None:
    X = data(items=items)
    one, many = (MRF.paper(**parameters, threads=threads).fit(X) for threads in (1, 64))
    assert one.memory_plan_ == many.memory_plan_
    assert (one.plan_.kind, one.plan_.sparsity) == (many.plan_.kind, many.plan_.sparsity)
    B, C = (sp.csr_array(model.weights_) for model in (one, many))
    np.testing.assert_array_equal(B.data, C.data)


@pytest.mark.slow
@pytest.mark.parametrize("limit", [35, 45, 60, 75, 85])
@pytest.mark.parametrize("parameters", [{}, {"sparsity": None}, {"sparsity": 0.5}, {"r": 0.5}])
def test_choices_and_advice_within_a_limit_are_not_refused(limit: int, parameters: dict[str, Any]) -> None:
    X, allowed = data(), f"{limit}MB"
    message = ""
    try:
        model = MRF.paper(**parameters, memory_limit=allowed).fit(X)
    except MemoryPlanError as error:
        message = str(error)
    if "more memory" in message:  # indeed, not even the least is possible
        with pytest.raises(MemoryPlanError):
            MRF.paper(sparsity=1.5 / X.shape[1], memory_limit=allowed).fit(X)
        return
    if message:
        advice = re.search(r"(?:sparsity=|is about )([\d.e-]+\d)", message)
        assert advice is not None, message
        model = MRF.paper(sparsity=float(advice[1]), memory_limit=allowed).fit(X)
    assert max(model.memory_plan_.values()) <= model.plan_.needed <= limit * 10**6


def test_a_refusal_names_the_model_that_needs_least() -> None:
    X, refused = data(600, 50, 9_000), {}
    for sparsity in ("dense", "auto"):
        with pytest.raises(MemoryPlanError) as caught:
            MRF(sparsity=sparsity, memory_limit="1MB").planned(X)
        refused[sparsity] = caught.value
    assert "(dense)" in str(refused["auto"])
    assert refused["auto"].needed == refused["dense"].needed
    assert MRF(memory_limit=refused["auto"].needed).planned(X).kind == "dense"


def test_what_is_kept_for_further_fits_is_counted_and_dropped_where_it_stands_in_the_way() -> None:
    interactions, reuse = Interactions(data()), {}  # type: ignore[var-annotated]
    alone = MRF.paper(sparsity=0.02).fit(interactions)
    for alpha in (0.25, 0.5, 0.75):
        shared = MRF.paper(sparsity=0.02, alpha=alpha).fit(interactions, reuse=reuse)
    assert max(shared.memory_plan_.values()) > max(alone.memory_plan_.values())
    tight = MRF.paper(sparsity=0.02, alpha=1.0, memory_limit=max(alone.memory_plan_.values()) + 1_000_000)
    tight.fit(interactions, reuse=reuse)
    assert max(tight.memory_plan_.values()) <= max(alone.memory_plan_.values()) + 1_000_000


def test_no_more_threads_run_than_the_scratch_space_has_room_for() -> None:
    made: list[int] = []
    with LocalEngine(8) as engine:
        engine.scratch = 250
        engine.run(lambda *_: None, range(200), scratch=lambda: made.append(1), scratch_bytes=100)
    assert len(made) <= 2  # each thread makes one
