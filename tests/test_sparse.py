"""§3 against the naive truth: pattern, schedule, blocks."""

import re
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import scipy.sparse as sp

from mrfrec import MRF, MemoryPlanError, NumericalError, ParameterError
from mrfrec.core import pattern
from mrfrec.errors import MrfrecWarning

import naive
from conftest import random_matrix

Matrix = npt.NDArray[np.float64]


def fit(X: Matrix, **parameters: Any) -> Any:
    return MRF.paper(**{"dtype": "float64", **parameters}).fit(sp.csr_array(X))


def check(X: Matrix, threshold: float, l2: float = 1.0, **parameters: Any) -> tuple[Any, Any, Any]:
    """Weights, pattern and number of blocks are those of the naive fit."""
    model = fit(X, l2=l2, threshold=threshold, **parameters)
    B, A, n_blocks, count = naive.sparse(X, l2, threshold, **parameters)
    np.testing.assert_array_equal(model.pattern_.toarray(), A)
    assert model.n_blocks_ == n_blocks
    assert model.threshold_ == threshold
    np.testing.assert_allclose(model.weights_.toarray(), B, atol=1e-12)
    return model, A, count


@pytest.mark.parametrize("r", [0.0, 0.1, 1.0])
@pytest.mark.parametrize("alpha", [0.0, 0.75, 1.0])
@pytest.mark.parametrize("center", [True, False])
def test_sparse_equals_naive(binary: Matrix, r: float, alpha: float, center: bool) -> None:
    # A threshold in the middle of the magnitudes, whatever their scale.
    S = naive.moments(binary, alpha, center).S
    threshold = float(np.quantile(np.abs(S), 0.8))
    _, A, _ = check(binary, threshold, r=r, alpha=alpha, center=center)
    assert 0.1 < A.mean() < 0.4


@pytest.mark.parametrize("r", [0.0, 0.5])
def test_sparse_equals_naive_for_real_values(real_valued: Matrix, r: float) -> None:
    check(real_valued, 0.4, r=r)


@pytest.mark.parametrize("r", [0.0, 0.5])
def test_sparse_equals_naive_with_second_ridge_and_user_weight(r: float) -> None:
    check(random_matrix(3), 0.3, r=r, l2_flat=1.0, user_weight=1.3)
    check(random_matrix(3, real=True), 0.3, r=r, l2_flat=1.0, user_weight=1.3)


@pytest.mark.parametrize("r", [0.0, 0.5, 1.0])
def test_cap_that_bites_makes_the_pattern_asymmetric(binary: Matrix, r: float) -> None:
    _, A, _ = check(binary, 0.1, r=r, max_neighbors=6)
    assert A.sum(axis=0).max() == 6
    assert (A != A.T).any()


def test_cap_of_one_keeps_the_diagonal_alone(binary: Matrix) -> None:
    model, A, _ = check(binary, 0.1, max_neighbors=1)
    assert (np.eye(len(A), dtype=bool) == A).all()
    assert model.weights_.nnz == 0


def test_pairs_nobody_used_together_can_pass_the_threshold() -> None:
    X = np.zeros((40, 12))
    X[:20, 0] = X[20:, 1] = 1.0  # every user has one of these and nobody has both
    X[::7, 2:] = 1.0
    X[1, 3] = 1.0
    for r in (0.0, 0.5):
        _, A, _ = check(X, 0.5, r=r)
        assert A[0, 1]
        assert A[1, 0]


def test_pairs_nobody_used_together_are_found_when_few_items_are_touched() -> None:
    # Many items, short histories: rows are walked and not scanned, and S = −g·g must still be seen.
    rng = np.random.default_rng(0)
    X = np.zeros((60, 400))
    X[np.arange(60), rng.integers(2, 400, 60)] = 1.0
    X[:15, 0] = 1.0
    X[30:45, 1] = 1.0
    S = naive.moments(X).S
    assert abs(S[0, 1]) > 0.1
    _, A, _ = check(X, 0.1, r=0.5)
    assert A[0, 1]


def test_values_that_cancel_count_as_no_common_user() -> None:
    rng = np.random.default_rng(1)
    X = np.zeros((50, 300))
    X[np.arange(50), rng.integers(2, 300, 50)] = 1.0
    X[0, :2] = 1.0, 1.0
    X[1, :2] = 1.0, -1.0  # the two add up to nothing
    X[5:20, 0] = 2.0
    X[30:40, 1] = 2.0
    check(X, 0.05, r=0.5)


def test_several_estimates_are_averaged(binary: Matrix) -> None:
    _, _, count = check(binary, 0.2, r=0.5)
    assert count.max() >= 3


@pytest.mark.parametrize("r", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("real", [False, True])
def test_many_identical_items_equal_naive(r: float, real: bool) -> None:
    rng = np.random.default_rng(2)
    X = random_matrix(12, users=40, items=20, real=real)
    X = X[:, rng.integers(0, 20, 60)]  # about three copies of each, in any order
    check(X, 0.3, r=r)
    check(X, 0.3, r=r, max_neighbors=9, l2_flat=0.5)


def test_same_users_with_other_values_are_not_identical() -> None:
    X = random_matrix(13, real=True)
    X[:, 20] = X[:, 21] * 2.0
    check(X, 0.2, r=0.5)


def test_identical_items_without_ridge_are_refused(binary: Matrix) -> None:
    with pytest.raises(NumericalError, match=r"block of item .* raise l2"):
        fit(binary, l2=0.0, threshold=0.2)


def test_zero_variance_items_get_no_weights(binary: Matrix) -> None:
    model = fit(binary, l2=1.0, threshold=0.0, max_neighbors=45)
    B = model.weights_.toarray()
    for item in (5, 7):
        assert not B[item].any()
        assert not B[:, item].any()
        assert model.pattern_.toarray()[:, item].sum() == 1


def test_float32_is_close_to_float64(binary: Matrix) -> None:
    single, double = (fit(binary, l2=1.0, threshold=0.2, r=0.5, dtype=d) for d in ("float32", "float64"))
    assert single.weights_.dtype == np.float32
    np.testing.assert_allclose(single.weights_.toarray(), double.weights_.toarray(), atol=2e-6)


@pytest.mark.parametrize("r", [0.0, 0.5])
def test_batches_and_threads_do_not_change_a_bit(r: float, monkeypatch: pytest.MonkeyPatch) -> None:
    X = random_matrix(14, users=300, items=150)
    reference = fit(X, l2=1.0, threshold=0.1, r=r, threads=1, dtype="float32")
    # Budgets down to one block at a time; entries by columns, by pairs, and by columns after too many pairs.
    for batch, pairs, threads in ((10**9, 0, 2), (20_000, 10**9, 3), (1, 10**4, 2), (1, 0, 1)):
        monkeypatch.setattr("mrfrec.core.plan._LEAST_BATCH", batch)
        monkeypatch.setattr("mrfrec.core.plan._BATCH_PER_INTERACTION", 0)
        monkeypatch.setattr(pattern, "_MOST_PAIRS", pairs)
        model = fit(X, l2=1.0, threshold=0.1, r=r, threads=threads, dtype="float32")
        np.testing.assert_array_equal(model.weights_.toarray(), reference.weights_.toarray())
        np.testing.assert_array_equal(model.pattern_.toarray(), reference.pattern_.toarray())


@pytest.mark.parametrize("real", [False, True])
def test_columns_with_a_cap_that_bites_equal_naive(real: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pattern, "_MOST_PAIRS", 0)
    check(random_matrix(15, real=real), 0.05, r=0.5, max_neighbors=7)


# ── sparsity ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("sparsity", "alpha"), [(0.01, 0.0), (0.3, 0.75)])
def test_sparsity_lands_within_two_percent(sparsity: float, alpha: float) -> None:
    X = random_matrix(16, users=400, items=450, real=True)
    X = X[:, X.std(axis=0) > 0]
    model = fit(X, l2=1.0, alpha=alpha, sparsity=sparsity, max_neighbors=X.shape[1], r=1.0)
    density = model.pattern_.nnz / X.shape[1] ** 2
    assert abs(density / sparsity - 1) < 0.02
    A = naive.pattern(naive.moments(X, alpha).S, model.threshold_, X.shape[1])
    np.testing.assert_array_equal(model.pattern_.toarray(), A)


def test_sparsity_counts_entries_before_the_cap() -> None:
    X = random_matrix(17, users=400, items=300, real=True)
    free = fit(X, l2=1.0, sparsity=0.2, max_neighbors=300)
    capped = fit(X, l2=1.0, sparsity=0.2, max_neighbors=30)
    assert capped.threshold_ == free.threshold_
    assert np.diff(capped.pattern_.indptr).max() == 30


def one_with_everything(items: int = 50) -> Matrix:
    """Short histories and one user who has nearly all items, so that most pairs tie."""
    rng = np.random.default_rng(21)
    X = np.zeros((2 * items, items))
    for _ in range(2):
        X[np.arange(2 * items), rng.integers(0, items, 2 * items)] = 1.0
    X[0, 3:] = 1.0
    return X


TIED = {
    "binary": random_matrix(22),
    "real": random_matrix(23, real=True),
    "giant": one_with_everything(),
    "copies": random_matrix(24)[:, np.random.default_rng(0).integers(0, 20, 60)],
    "all tie": np.vstack([np.ones((1, 30)), np.zeros((3, 30))]),
    "no entries": np.ones((4, 30)),
    "tiny": np.array([[1.0, 1, 0], [1, 0, 1], [0, 1, 1], [1, 0, 0], [0, 1, 0]]),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", TIED)
def test_sparsity_equals_naive_whatever_ties(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    X, max_neighbors = TIED[name], 6 if name in ("binary", "giant") else 1000
    m = X.shape[1]
    S = naive.moments(X).S
    for sparsity in (1 / m, 1.4 / m, 0.34, 0.7):
        A = naive.pattern_of_share(S, sparsity, max_neighbors)
        # By pairs, by columns, and first counted.
        for pairs, few in ((10**9, 10**9), (0, 10**9), (0, 0)):
            monkeypatch.setattr(pattern, "_MOST_PAIRS", pairs)
            monkeypatch.setattr(pattern, "_FEW_ENTRIES", few)
            model = fit(X, l2=1.0, sparsity=sparsity, max_neighbors=max_neighbors)
            np.testing.assert_array_equal(model.pattern_.toarray(), A)
            kept = np.abs(S[A & ~np.eye(m, dtype=bool)]).astype(np.float32)
            assert (kept > model.threshold_).all()


def test_ties_do_not_change_the_share() -> None:
    X = one_with_everything(300)
    for sparsity in (0.01, 0.02, 0.1):
        model = fit(X, l2=1.0, sparsity=sparsity)
        assert abs(model.pattern_.nnz / 300**2 / sparsity - 1) <= 0.01


@pytest.mark.parametrize(("items", "sparsity"), [(3, 0.34), (300, 0.003335), (300, 1 / 300)])
def test_few_wanted_entries_are_found_in_a_bounded_number_of_passes(items: int, sparsity: float) -> None:
    X = random_matrix(26, users=50, items=items + 20, real=True)[:, 20:]
    model = fit(X, l2=1.0, sparsity=sparsity)
    assert model.pattern_.nnz == max(round(sparsity * items**2), items)


def test_least_sparsity_that_a_message_names_is_accepted() -> None:
    for items in (3, 45, 1023):
        X = random_matrix(27, users=20, items=items + 20)[:, 20:]
        with pytest.raises(ParameterError, match="at least 1/items") as refusal:
            fit(X, l2=1.0, sparsity=0.5 / items)
        least = re.search(r"1/items, (\S+) for", str(refusal.value))
        assert least is not None
        fit(X, l2=1.0, sparsity=float(least[1]))


@pytest.mark.parametrize("factor", [0.0, 20.0])
def test_misleading_sample_costs_passes_but_not_the_density(
    factor: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    X = random_matrix(18, users=400, items=600, real=True)
    honest, begin, passes = pattern._Search.sample, pattern._Search.next_pass, []

    def misleading(*arguments: Any) -> Any:
        found = honest(*arguments)
        found.above_edge = found.above_edge * factor
        return found

    def counted(*arguments: Any) -> Any:
        passes.append(1)
        return begin(*arguments)

    monkeypatch.setattr(pattern._Search, "sample", misleading)
    monkeypatch.setattr(pattern._Search, "next_pass", counted)
    model = fit(X, l2=1.0, sparsity=0.05, max_neighbors=600)
    assert len(passes) <= 5
    assert len(passes) > 1 or factor < 1
    assert abs(model.pattern_.nnz / 600**2 / 0.05 - 1) < 0.01


def test_pattern_that_outgrows_its_forecast_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    X = (np.random.default_rng(20).random((600, 3000)) < 0.1).astype(np.float64)
    honest = pattern._Search.sample

    def blind(*arguments: Any) -> Any:
        found = honest(*arguments)
        found.above_edge = found.above_edge * 1e-3
        return found

    monkeypatch.setattr(pattern._Search, "sample", blind)
    with pytest.raises(MemoryPlanError, match="larger threshold"):
        fit(X, l2=1.0, threshold=0.001, max_neighbors=1500, memory_limit="80MB", threads=1)


@pytest.mark.filterwarnings("ignore:one user has")
def test_cap_bites_within_the_limit_where_all_pairs_would_not_fit() -> None:
    # One user with 3000 items nobody else has: 4.5 million pairs of magnitude 1.
    X = sp.lil_array((100, 20_000))
    X[0, 5000:8000] = 1.0
    X[np.arange(1, 100), np.arange(1, 100)] = 1.0
    free = MRF.paper(l2=1.0, threshold=0.3, max_neighbors=10, threads=1).fit(X)
    needed = free.memory_plan_["pattern"]
    tight = MRF.paper(
        l2=1.0, threshold=0.3, max_neighbors=10, threads=1, memory_limit=needed - 90_000_000
    ).fit(X)
    np.testing.assert_array_equal(tight.weights_.data, free.weights_.data)
    assert tight.memory_plan_["pattern"] <= needed - 90_000_000


def test_one_user_with_everything_is_mentioned() -> None:
    X = sp.random_array((300, 1200), density=0.01, rng=np.random.default_rng(0), format="lil")
    X[0] = 1
    with pytest.warns(MrfrecWarning, match=r"one user has 1,200 items, and so \d\d% of .*max_history=1000"):
        MRF.paper(sparsity=0.01, max_neighbors=20).fit(X.tocsr() != 0)
    MRF.paper(sparsity=0.01, max_neighbors=20).fit(X.tocsr()[1:] != 0)  # no warning, or this fails
