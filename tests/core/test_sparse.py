"""§3 against the naive truth: pattern, schedule, blocks."""

import re
import warnings
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import scipy.sparse as sp

from mrfrec import MRF, MemoryPlanError, ParameterError
from mrfrec.core import pattern
from mrfrec.errors import MrfrecWarning

import naive
from kinds import field
from matrices import random_matrix

Matrix = npt.NDArray[np.float64]


def fit(X: Matrix, threshold: float | None = None, **parameters: Any) -> Any:
    """Fit with the sparsity that keeps what is above a threshold."""
    if threshold is not None:
        of_moments = {name: x for name, x in parameters.items() if name in ("alpha", "center", "user_weight")}
        parameters["sparsity"] = naive.share_above(naive.moments(X, **of_moments).S, threshold)
    return field(**{"dtype": "float64", **parameters}).fit(sp.csr_array(X))


def check(X: Matrix, threshold: float, l2: float = 1.0, **parameters: Any) -> tuple[Any, Any, Any]:
    """Weights, pattern and number of blocks are those of the naive fit."""
    model = fit(X, threshold, l2=l2, **parameters)
    B, A, n_blocks, count = naive.sparse(X, l2, model.threshold_, **parameters)
    np.testing.assert_array_equal(model.pattern_.toarray(), A)
    assert model.n_blocks_ == n_blocks
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


def never_together() -> Matrix:
    """Every user has one of the first two items, and nobody has both: S = −g·g passes the threshold."""
    X = np.zeros((40, 12))
    X[:20, 0] = X[20:, 1] = 1.0
    X[::7, 2:] = 1.0
    X[1, 3] = 1.0
    return X


def few_touched(*, cancel: bool = False) -> Matrix:
    """Many items and short histories: rows are walked and not scanned, and S = −g·g must still be seen.

    With `cancel`, the values of the users who have both of the first two items add up to nothing.
    """
    X = np.zeros((60, 400))
    X[np.arange(60), np.random.default_rng(0).integers(2, 400, 60)] = 1.0
    X[:15, 0] = X[30:45, 1] = 1.0
    if cancel:
        X[0, :2], X[1, :2] = (1.0, 1.0), (1.0, -1.0)
        X[5:20, 0] = X[30:40, 1] = 2.0
    return X


def copies(seed: int, *, real: bool = False) -> Matrix:
    """About three copies of each item, in any order."""
    X = random_matrix(seed, users=40, items=20, real=real)
    return X[:, np.random.default_rng(2).integers(0, 20, 60)]


def multiples() -> Matrix:
    """The same users with other values, who are not identical."""
    X = random_matrix(13, real=True)
    X[:, 20] = X[:, 21] * 2.0
    return X


CASES: dict[str, tuple[Matrix, float, dict[str, Any]]] = {
    "real values": (random_matrix(2, real=True), 0.4, {}),
    "user weights": (random_matrix(3), 0.3, {"user_weight": 1.3}),
    "user weights, real values": (random_matrix(3, real=True), 0.3, {"user_weight": 1.3}),
    "cap": (random_matrix(1), 0.1, {"max_neighbors": 6}),
    "cap, real values": (random_matrix(15, real=True), 0.05, {"max_neighbors": 7}),
    "cap of one": (random_matrix(1), 0.1, {"max_neighbors": 1}),
    "never together": (never_together(), 0.5, {}),
    "few touched": (few_touched(), 0.1, {}),
    "values that cancel": (few_touched(cancel=True), 0.05, {}),
    "copies": (copies(12), 0.3, {}),
    "copies, real values": (copies(12, real=True), 0.3, {}),
    "copies, cap": (copies(12), 0.3, {"max_neighbors": 9}),
    "multiples": (multiples(), 0.2, {}),
}


@pytest.mark.parametrize("r", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("name", CASES)
def test_sparse_equals_naive_for(name: str, r: float, monkeypatch: pytest.MonkeyPatch) -> None:
    X, threshold, parameters = CASES[name]
    model, A, count = check(X, threshold, r=r, **parameters)
    monkeypatch.setattr(pattern, "_MOST_PAIRS", 0)
    by_columns = fit(X, threshold, l2=1.0, r=r, **parameters)
    np.testing.assert_array_equal(by_columns.pattern_.toarray(), A)
    np.testing.assert_array_equal(by_columns.weights_.toarray(), model.weights_.toarray())
    assert by_columns.n_blocks_ == model.n_blocks_
    if "cap" in name:  # bites, and makes the pattern asymmetric
        most = parameters["max_neighbors"]
        assert A.sum(axis=0).max() == most
        assert (A != A.T).any() == (most > 1)
    if name in ("never together", "few touched"):
        assert A[0, 1]
    if name == "user weights" and r == 0.5:  # several estimates are averaged
        assert count.max() >= 3


def test_float32_is_close_to_float64(binary: Matrix) -> None:
    single, double = (fit(binary, l2=1.0, sparsity=0.2, r=0.5, dtype=d) for d in ("float32", "float64"))
    assert single.weights_.dtype == np.float32
    np.testing.assert_allclose(single.weights_.toarray(), double.weights_.toarray(), atol=2e-6)


@pytest.mark.parametrize("r", [0.0, 0.5])
def test_batches_and_threads_do_not_change_a_bit(r: float, monkeypatch: pytest.MonkeyPatch) -> None:
    X = random_matrix(14, users=300, items=150)
    reference = fit(X, l2=1.0, sparsity=0.4, r=r, threads=1, dtype="float32")
    # Budgets down to one block at a time; entries by columns, by pairs, and by columns after too many pairs.
    for batch, pairs, threads in ((10**9, 0, 2), (20_000, 10**9, 3), (1, 10**4, 2), (1, 0, 1)):
        monkeypatch.setattr("mrfrec.core.plan._LEAST_BATCH", batch)
        monkeypatch.setattr("mrfrec.core.plan._BATCH_PER_INTERACTION", 0)
        monkeypatch.setattr(pattern, "_MOST_PAIRS", pairs)
        model = fit(X, l2=1.0, sparsity=0.4, r=r, threads=threads, dtype="float32")
        np.testing.assert_array_equal(model.weights_.toarray(), reference.weights_.toarray())
        np.testing.assert_array_equal(model.pattern_.toarray(), reference.pattern_.toarray())


# ── sparsity ──────────────────────────────────────────────────────────────────────────────────────


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


@pytest.mark.parametrize(
    ("X", "sparsity", "alpha"),
    [
        (random_matrix(16, users=400, items=450, real=True), 0.01, 0.0),
        (random_matrix(16, users=400, items=450, real=True), 0.3, 0.75),
        (random_matrix(26, users=50, items=23, real=True)[:, 20:], 0.34, 0.75),  # few wanted entries
        (random_matrix(26, users=50, items=320, real=True)[:, 20:], 0.003335, 0.75),
        (random_matrix(26, users=50, items=320, real=True)[:, 20:], 1 / 300, 0.75),
        *((one_with_everything(300), sparsity, 0.75) for sparsity in (0.01, 0.02, 0.1)),  # most tie
    ],
)
def test_sparsity_is_the_share_that_is_kept(X: Matrix, sparsity: float, alpha: float) -> None:
    X = X[:, X.std(axis=0) > 0]
    m = X.shape[1]
    model = fit(X, l2=1.0, alpha=alpha, sparsity=sparsity, max_neighbors=m, r=1.0)
    assert model.pattern_.nnz == pytest.approx(max(sparsity * m * m, m), rel=0.01, abs=0.5)
    if len(X) == 400:  # nothing ties
        A = naive.pattern(naive.moments(X, alpha).S, model.threshold_, m)
        np.testing.assert_array_equal(model.pattern_.toarray(), A)


def test_least_sparsity_that_a_message_names_is_accepted() -> None:
    for items in (3, 45, 1023):
        X = random_matrix(27, users=20, items=items + 20)[:, 20:]
        with pytest.raises(ParameterError, match="at least 1/items") as refusal:
            fit(X, l2=1.0, sparsity=0.5 / items)
        least = re.search(r"1/items, (\S+) for", str(refusal.value))
        assert least is not None
        fit(X, l2=1.0, sparsity=float(least[1]))


def mislead(monkeypatch: pytest.MonkeyPatch, factor: float) -> None:
    """Let the sample count so many times the entries there are."""
    honest = pattern._PatternSearch.sample

    def misleading(*arguments: Any) -> Any:
        found = honest(*arguments)
        found.above_edge = found.above_edge * factor
        return found

    monkeypatch.setattr(pattern._PatternSearch, "sample", misleading)


@pytest.mark.parametrize("factor", [0.0, 20.0])
def test_misleading_sample_costs_passes_but_not_the_density(
    factor: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    X = random_matrix(18, users=400, items=600, real=True)
    begin, passes = pattern._PatternSearch.next_pass, []
    monkeypatch.setattr(pattern._PatternSearch, "next_pass", lambda search: passes.append(1) or begin(search))  # type: ignore[func-returns-value]
    mislead(monkeypatch, factor)
    model = fit(X, l2=1.0, sparsity=0.05, max_neighbors=600)
    assert len(passes) <= 5
    assert len(passes) > 1 or factor < 1
    assert abs(model.pattern_.nnz / 600**2 / 0.05 - 1) < 0.01


def test_pattern_that_outgrows_its_forecast_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    X = (np.random.default_rng(20).random((600, 3000)) < 0.1).astype(np.float64)
    mislead(monkeypatch, 1e-3)
    with pytest.raises(MemoryPlanError, match="smaller sparsity"):
        fit(X, l2=1.0, sparsity=0.005, max_neighbors=1500, memory_limit="80MB", threads=1)


@pytest.mark.filterwarnings("ignore:one user has")
def test_cap_bites_within_the_limit_where_all_pairs_would_not_fit() -> None:
    # One user with 3000 items nobody else has: 4.5 million pairs of magnitude 1.
    X = sp.lil_array((100, 20_000))
    X[0, 5000:8000] = 1.0
    X[np.arange(1, 100), np.arange(1, 100)] = 1.0
    settings: dict[str, Any] = {"l2": 1.0, "sparsity": (3000 / 20_000) ** 2, "max_neighbors": 10}
    free = field(**settings, threads=1).fit(X)
    needed = free.memory_plan_["pattern"]
    tight = field(**settings, threads=1, memory_limit=needed - 90_000_000).fit(X)
    np.testing.assert_array_equal(tight.weights_.data, free.weights_.data)
    assert tight.memory_plan_["pattern"] <= needed - 90_000_000


def test_one_user_with_everything_is_mentioned() -> None:
    X = sp.random_array((300, 1200), density=0.01, rng=np.random.default_rng(0), format="lil")
    X[0] = 1
    lengths = np.diff(X.tocsr().indptr) ** 2
    times = lengths.sum() / lengths[1:].sum()
    said = rf"1,200 items, and so \d\d% of .* {times:.1f} times as long .*max_history=1000"
    steps: list[str] = []
    with pytest.warns(MrfrecWarning, match=said):
        MRF.paper(sparsity=0.01, max_neighbors=20).fit(X.tocsr() != 0)
    # The warning comes before the work.
    model = MRF.paper(sparsity=0.01, max_neighbors=20)
    with warnings.catch_warnings():
        warnings.simplefilter("error", MrfrecWarning)
        with pytest.raises(MrfrecWarning, match="one user has"):
            model.fit(X.tocsr() != 0, progress=lambda step, *_: steps.append(step))
    assert not steps
    MRF.paper(sparsity=0.01, max_neighbors=20).fit(X.tocsr()[1:] != 0)  # no warning, or this fails
