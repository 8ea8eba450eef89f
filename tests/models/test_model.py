"""The estimator: parameters, inputs, errors, scores, progress, memory."""

import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, get_args, get_type_hints

import numpy as np
import numpy.typing as npt
import pytest
import scipy.sparse as sp

import mrfrec
from mrfrec import MRF, DataError, Interactions, MemoryPlanError, NotFittedError, ParameterError, load
from mrfrec.data.catalogue import DataSize
from mrfrec.models import EASE, Popularity
from mrfrec.models.mrf.measuring import AXES
from mrfrec.models.mrf.parameters import RULES, is_measured

import naive
from kinds import field
from matrices import random_matrix

Matrix = npt.NDArray[np.float64]


# ── parameters ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"l2": -1.0}, r'l2 must be a finite number, 0 or more, or "auto"; got -1\.0'),
        ({"l2": "6"}, "l2 must be .*; got '6'"),
        ({"alpha": 1.5}, r"alpha must be between 0 and 1; got 1\.5"),
        ({"sparsity": 0.0}, r"sparsity must be .*; got 0\.0"),
        ({"sparsity": 0.1, "r": 1.01}, r"r must be between 0 and 1; got 1\.01"),
        ({"sparsity": None, "r": 0.5}, r"r must be 0 for a dense model; got 0\.5"),
        ({"sparsity": 0.1, "mean_constraint": True}, "mean_constraint must be False"),
        ({"max_neighbors": 0}, "max_neighbors must be a whole number, 1 or more; got 0"),
        ({"max_neighbors": 10**400}, "max_neighbors must be a whole number below"),
        ({"threads": 0}, "threads must be a whole number, 1 or more, or -1 for all cores; got 0"),
        ({"offset": "yes"}, "offset must be True or False; got 'yes'"),
        ({"dtype": "float16"}, '"float32" or "float64"; got \'float16\''),
        ({"memory_limit": "lots"}, "memory_limit must be"),
        ({"memory_limit": "9" * 400 + "GB"}, "memory_limit must be"),
    ],
)
def test_bad_parameter_is_named_with_its_rule_and_value(parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(ParameterError, match=message):
        MRF.paper(**parameters)


def test_every_parameter_has_a_rule_that_allows_the_words_of_its_signature() -> None:
    hints = get_type_hints(MRF.__init__)
    assert [*RULES] == [*MRF.defaults()]
    for name, rule in RULES.items():
        kinds = get_args(hints[name]) or (hints[name],)
        words = {word for kind in kinds for word in get_args(kind) if name != "dtype"}
        assert {*rule.words} == words | ({None} if type(None) in kinds else set()), name


def test_parameters_that_are_auto_start_at_a_value_that_measuring_tries() -> None:
    measured = [name for name in RULES if is_measured(name)]
    assert {*measured} == {*AXES}
    assert all("auto" in RULES[name].words for name in measured)
    assert all(RULES[name].start in AXES[name] for name in measured if name != "l2")


def test_sparsity_below_the_diagonal_is_refused_with_the_least_possible(binary: Matrix) -> None:
    with pytest.raises(ParameterError, match=r"at least 1/items, 0\.0223 for"):
        MRF.paper(l2=1.0, sparsity=0.01).fit(sp.csr_array(binary))


# ── data ──────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("X", "message"),
    [
        (np.eye(3), r"must be a scipy\.sparse matrix of users × items; got ndarray.*csr_array"),
        ([[1, 0]], "a path, a list of paths, .* got list"),
        (None, "got NoneType"),
        (sp.csr_array((5, 4)), "at least one interaction; got 5 users × 4 items with none"),
        (sp.csr_array((0, 4)), "at least one interaction; got 0 users × 4 items"),
        (sp.csr_array(np.zeros((2, 0))), "at least one interaction"),
        (sp.csr_array(np.array([[1j, 0]])), "real numbers or booleans; got complex128"),
        (sp.coo_array(np.ones(4)), "two dimensions"),
        (sp.csr_array((np.zeros(2), ([0, 1], [0, 1])), shape=(2, 2)), "at least one interaction"),
    ],
)
def test_bad_matrix_is_refused(X: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        MRF.paper(l2=1.0).fit(X)


@pytest.mark.parametrize("value", [1e200, -1e39, 1e-50, np.nan, np.inf])
def test_values_that_are_no_numbers_of_single_precision_are_refused_with_their_row(value: float) -> None:
    X = random_matrix(1)
    X[17, 2] = value
    for form in (sp.csr_array, sp.csc_array):
        with pytest.raises(DataError, match=r"row 17 holds NaN or infinity|single precision.*row 17"):
            MRF.paper(l2=1.0).fit(form(X))


@pytest.mark.parametrize(
    ("form", "dtype"),
    [("csr_matrix", np.bool_), ("csc_matrix", np.int8), ("coo_matrix", np.uint16), ("csr_array", np.int64),
     ("lil_array", np.float32), ("dok_array", np.int8), ("csc_array", np.bool_)],
)  # fmt: skip
def test_every_sparse_form_and_type_gives_the_same(binary: Matrix, form: str, dtype: type) -> None:
    X = getattr(sp, form)(binary.astype(dtype))
    share = naive.share_above(naive.moments(binary).S, 0.2)
    B = field(l2=1.0, sparsity=share, dtype="float64").fit(X).weights_
    np.testing.assert_allclose(B.toarray(), naive.sparse(binary, 1.0, 0.2)[0], atol=1e-12)


def test_duplicates_are_summed_and_explicit_zeros_dropped_without_touching_the_input() -> None:
    X = random_matrix(21)
    rows, columns = X.nonzero()
    twice = np.arange(0, len(rows), 3)
    data = np.concatenate([np.ones(len(rows) + len(twice)), np.zeros(4)])
    rows = np.concatenate([rows, rows[twice], [0, 3, 3, 9]])
    columns = np.concatenate([columns, columns[twice], [1, 5, 6, 5]])
    messy = sp.coo_array((data, (rows, columns)), shape=X.shape)
    order = np.argsort(rows, kind="stable")
    counts = np.bincount(rows, minlength=len(X))
    csr = sp.csr_array((data[order], columns[order], np.concatenate([[0], np.cumsum(counts)])), shape=X.shape)
    before = csr.data.copy(), csr.indices.copy(), csr.indptr.copy()
    expected = naive.dense(messy.toarray(), 2.0, user_weight=0.5)
    for given in (messy, csr):
        B = MRF.paper(l2=2.0, user_weight=0.5, dtype="float64").fit(given).weights_
        np.testing.assert_allclose(B, expected, atol=1e-12)
    for array, copy in zip((csr.data, csr.indices, csr.indptr), before, strict=True):
        np.testing.assert_array_equal(array, copy)


def test_sums_of_small_integers_do_not_wrap_around() -> None:
    rows, columns = np.zeros(300, np.int64), np.zeros(300, np.int64)
    X = sp.coo_array((np.ones(300, np.int8), (rows, columns)), shape=(4, 2))
    assert MRF.paper(l2=1.0).fit(X).mean_[0] == 75.0


def test_a_single_item_and_a_single_user_are_fitted() -> None:
    assert MRF.paper(l2=1.0).fit(sp.csr_array(np.array([[1.0], [0.0]]))).weights_.tolist() == [[0.0]]
    assert not MRF.paper(l2=1.0).fit(sp.csr_array(np.ones((1, 4)))).weights_.any()
    sparse = MRF.paper(l2=1.0, sparsity=1.0).fit(sp.csr_array(np.ones((1, 4))))
    assert sparse.weights_.nnz == 0
    assert sparse.n_blocks_ == 4


def test_an_item_everybody_has_has_no_variance_whatever_the_user_weights() -> None:
    rng = np.random.default_rng(3)
    X = sp.lil_array((20_000, 6))
    X[np.arange(20_000), rng.integers(1, 6, 20_000)] = 1.0
    X[:9000, 1] = 1.0
    X[:, 0] = 1.0
    B = MRF.paper(l2=0.5, user_weight=0.77, alpha=1.0, dtype="float64").fit(X).weights_
    assert not B[0].any()
    assert not B[:, 0].any()


@pytest.mark.parametrize("parameters", [{}, {"sparsity": 1.0}, {"sparsity": 0.2}])
def test_values_out_of_range_are_refused(parameters: dict[str, Any]) -> None:
    X = sp.csr_array(random_matrix(1) * 1e30)
    with pytest.raises(mrfrec.NumericalError, match="divide the values by a constant"):
        MRF.paper(l2=1.0, alpha=0.0, **parameters).fit(X)
    with pytest.raises(mrfrec.NumericalError, match="a smaller ridge"):
        MRF.paper(l2=1e39, **parameters).fit(sp.csr_array(random_matrix(1)))


# ── attributes ────────────────────────────────────────────────────────────────────────────────────


def test_attributes_after_a_sparse_fit(binary: Matrix) -> None:
    model = MRF.paper(l2=1.0, sparsity=0.2, r=0.5).fit(sp.csr_array(binary))
    found = naive.moments(binary)
    assert isinstance(model.weights_, sp.csr_array)
    assert model.weights_.has_sorted_indices
    assert isinstance(model.pattern_, sp.csc_array)
    assert model.pattern_.dtype == np.bool_
    np.testing.assert_allclose(model.mean_, found.mu)
    np.testing.assert_allclose(model.scale_, found.s)
    assert {"statistics", "pattern", "schedule", "gather", "solve", "total"} <= model.timings_.keys()
    stages = [seconds for name, seconds in model.timings_.items() if name != "total"]
    assert 0 < sum(stages) <= model.timings_["total"]


# ── scores ────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("offset", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_score_is_history_times_weights(real_valued: Matrix, sparse: bool, offset: bool, dtype: Any) -> None:
    model = MRF.paper(l2=1.0, sparsity=0.2 if sparse else None, offset=offset, dtype=dtype)
    model.fit(sp.csr_array(real_valued))
    B = model.weights_.toarray() if sparse else model.weights_
    history = real_valued[:20]
    expected = history @ B
    if offset:
        expected = model.mean_ + (history - model.mean_) @ B
    scores = model.scores(sp.csr_array(history))
    assert scores.dtype == dtype
    np.testing.assert_allclose(scores, expected, atol=1e-5 if dtype == "float32" else 1e-12)


def test_top_k_of_no_users_and_of_an_empty_history(binary: Matrix) -> None:
    model = MRF.paper(l2=1.0, sparsity=0.2).fit(sp.csr_array(binary))
    items, scores = model.top_k(sp.csr_array((0, binary.shape[1])), 3)
    assert items.shape == scores.shape == (0, 3)
    items, scores = model.top_k(sp.csr_array((1, binary.shape[1])), 3)
    assert items.tolist() == [[0, 1, 2]]  # all scores are 0: ties by index
    assert scores.tolist() == [[0.0, 0.0, 0.0]]


def test_bad_history_and_k_are_refused(binary: Matrix) -> None:
    model = MRF.paper(l2=1.0)
    with pytest.raises(NotFittedError, match="call fit first"):
        model.scores(sp.csr_array(binary))
    model.fit(sp.csr_array(binary))
    with pytest.raises(DataError, match=r"must have the 45 items the model was fitted on.*got 44"):
        model.scores(sp.csr_array(binary[:, 1:]))
    with pytest.raises(DataError, match=r"X_history must be a scipy\.sparse matrix"):
        model.top_k(binary, 3)
    with pytest.raises(ParameterError, match="k must be at most the number of items, 45; got 46"):
        model.top_k(sp.csr_array(binary), 46)
    for k in (0, 2.5, True):
        with pytest.raises(ParameterError, match="k must be a whole number"):
            model.top_k(sp.csr_array(binary), k)  # type: ignore[arg-type]


def test_scores_that_would_not_fit_are_refused(binary: Matrix) -> None:
    model = MRF.paper(l2=1.0, memory_limit="30MB").fit(sp.csr_array(binary))
    with pytest.raises(MemoryPlanError, match="use top_k"):
        model.scores(sp.csr_array((200_000, 45)))
    assert model.top_k(sp.csr_array((200_000, 45)), 2)[0].shape == (200_000, 2)


# ── memory ────────────────────────────────────────────────────────────────────────────────────────


def wide(items: int) -> Any:
    return sp.csr_array((np.ones(items), (np.arange(items) % 50, np.arange(items))), shape=(50, items))


def test_dense_fit_that_does_not_fit_is_refused_with_a_sparsity_that_does() -> None:
    X = wide(200_000)
    with pytest.raises(
        MemoryPlanError, match=r"needs about 16\d\.\d GB .* 2\.0 GB is what memory_limit"
    ) as caught:
        MRF.paper(l2=1.0, sparsity=None, memory_limit="2GB", threads=2).fit(X)
    assert caught.value.needed > caught.value.limit == 2_000_000_000
    advice = str(caught.value)
    sparsity = float(advice.split("sparsity=")[1].split()[0])
    sparse = MRF.paper(l2=1.0, sparsity=sparsity, memory_limit="2GB", threads=2)
    plan = sparse.planned_for(DataSize(50, 200_000, 200_000, True))
    assert 1_700_000_000 < plan.needed <= plan.limit


def test_dense_fit_is_refused_by_what_the_machine_has() -> None:
    with pytest.raises(MemoryPlanError, match="is available on this machine"):
        MRF.paper(l2=1.0, sparsity=None).fit(wide(3_000_000))


def test_sparse_fit_that_does_not_fit_names_the_largest_sparsity() -> None:
    X = wide(200_000)
    with pytest.raises(MemoryPlanError, match="largest sparsity that would fit is about") as caught:
        MRF.paper(l2=1.0, sparsity=0.01, max_neighbors=10_000, memory_limit="2GB").fit(X)
    sparsity = float(str(caught.value).rstrip(".").split()[-1])
    assert 1e-4 < sparsity < 0.01


@pytest.mark.parametrize(
    ("model", "size", "kept", "words"),
    [
        (MRF.paper(), (50, 30_000, 600), (200 / 30_000, 0), "30,000 items are more than 25,000"),
        (MRF(), (16_554, 10_506, 30 * 10_506 - 1), (100 / 10_506, 256), "30.0 users per item are too few"),
        (MRF(), (16_554, 10_506, 30 * 10_506), (None, 0), "10,506 items fit"),
        (MRF(), (16_554, 1000, 9000), (None, 0), "1,000 items fit"),
        (MRF.paper(memory_limit="200MB"), (5000, 8000, 400_000), (200 / 8000, 0), "would need"),
        (EASE(), (16_554, 10_506, 100_000), (None, 0), "10,506 items fit"),
        (
            MRF(sparsity=0.05, memory_limit="1GB"),
            (3000, 1500, 90_000),
            (0.05, 256),
            ": as sparsity asks; memory",
        ),
        (MRF(sparsity=0.05, memory_limit="60MB"), (3000, 1500, 90_000), (0.05, 0), "low-rank"),
    ],
)
def test_the_size_of_the_data_and_the_memory_decide_the_model(
    model: MRF, size: tuple[int, int, int], kept: tuple[float | None, int], words: str
) -> None:
    plan = model.planned_for(DataSize(*size, True))
    assert (plan.kind, plan.sparsity, plan.rank) == ("sparse" if kept[0] else "dense", *kept)
    assert words in str(plan)


def test_with_fewer_users_than_items_the_default_keeps_the_largest_covariances() -> None:
    rng = np.random.default_rng(0)
    few, many = (sp.csr_array((rng.random((n, 1100)) < 0.03).astype(np.float32)) for n in (1099, 1100))
    plan = MRF().fit(few).plan_
    assert (plan.kind, plan.sparsity, plan.rank) == ("sparse", 100 / 1100, 256)
    assert "1,099 users are too few for the covariances of all pairs of 1,100 items" in str(plan)
    for model, data in (
        (MRF(), many),
        (MRF(), few[:, :1000]),
        (MRF(rank=0), few),
        (MRF.paper(), few),
        (EASE(), few),
    ):
        plan = model.planned_for(Interactions(data).size)
        assert plan.kind == "dense"
        if isinstance(model, MRF):
            assert plan.without_memory() == model.planned(data).without_memory()


def test_without_parameters_a_huge_catalogue_keeps_what_the_memory_has_room_for() -> None:
    plan = MRF.paper(memory_limit="2GB", threads=4).planned_for(DataSize(50, 400_000, 400_000, True))
    assert plan.sparsity is not None
    assert 1 / 400_000 < plan.sparsity < 200 / 400_000
    assert 1_700_000_000 < plan.needed <= plan.limit
    assert plan.reason.endswith("kept within the memory there is")


def test_parameters_of_one_kind_decide_the_kind(binary: Matrix) -> None:
    X = sp.csr_array(binary)
    assert MRF.paper(r=0.5).fit(X).is_sparse
    assert not MRF.paper(mean_constraint=True).fit(X).is_sparse
    assert MRF.paper(sparsity=0.3).fit(X).is_sparse
    assert not MRF.paper(sparsity=None).fit(X).is_sparse
    assert MRF(sparsity="dense").parameters == MRF(sparsity=None).parameters


def test_the_plan_does_not_depend_on_the_number_of_threads(binary: Matrix) -> None:
    one, two = (MRF.paper(threads=threads).fit(sp.csr_array(binary)).plan_ for threads in (1, 2))
    assert (one.kind, one.sparsity, one.reason) == (two.kind, two.sparsity, two.reason)


# ── progress, threads, processes ──────────────────────────────────────────────────────────────────


def test_progress_is_told_in_the_thread_of_the_call(binary: Matrix) -> None:
    told: set[int] = set()
    MRF.paper(l2=1.0, threads=2).fit(
        sp.csr_array(binary), progress=lambda *_: told.add(threading.get_ident())
    )
    assert told == {threading.get_ident()}


def test_fits_can_run_at_the_same_time(binary: Matrix) -> None:
    X = sp.csr_array(binary)
    expected = MRF.paper(l2=1.0, sparsity=0.3).fit(X).weights_.toarray()
    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(lambda _: MRF.paper(l2=1.0, sparsity=0.3).fit(X).weights_, range(4)))
    for weights in found:
        np.testing.assert_array_equal(weights.toarray(), expected)


def test_blas_threads_are_given_back(binary: Matrix) -> None:
    from threadpoolctl import threadpool_info

    before = [library["num_threads"] for library in threadpool_info()]
    MRF.paper(l2=1.0).fit(sp.csr_array(binary))
    assert [library["num_threads"] for library in threadpool_info()] == before


FROM_A_SHELL = """
import warnings
warnings.simplefilter("error")
import mrfrec, numpy as np, scipy.sparse as sp
X = sp.csr_array((np.random.default_rng(0).random((60, 20)) < 0.3).astype(float))
mrfrec.MRF.paper(l2=1.0, sparsity=0.3).fit(X).top_k(X, 3)
mrfrec.MRF.paper(l2=1.0).fit(X).scores(X)
"""


def test_a_fresh_process_prints_nothing_and_warns_of_nothing() -> None:
    done = subprocess.run([sys.executable, "-c", FROM_A_SHELL], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


FIRST_AND_SECOND = """
import numpy as np, scipy.sparse as sp
from mrfrec import MRF
X = sp.csr_array(np.random.default_rng(0).random((2000, 300)) < 0.05)
first, second = (MRF.paper(sparsity=0.9).fit(X).weights_ for _ in range(2))
assert (first.data == second.data).all()
"""


@pytest.mark.slow
def test_the_first_fit_of_a_process_gives_what_the_second_does() -> None:
    # A BLAS library that is loaded only by the first fit must come under its limit of one thread.
    subprocess.run([sys.executable, "-W", "error", "-c", FIRST_AND_SECOND], check=True)


# ── MRF() without parameters on odd data: few users, real values, one user who has everything ─────────


def _tastes(users: int, items: int, seed: int = 0) -> tuple[Any, Any]:
    """Users of four tastes: what each shows, half of a quarter of the items, and one hidden item of it."""
    rng = np.random.default_rng(seed)
    shown, hidden = np.zeros((users, items), np.float32), np.zeros(users, np.int64)
    for user in range(users):
        own = rng.permutation(np.arange(user % 4, items, 4))
        shown[user, own[: items // 8]] = 1
        hidden[user] = own[items // 8]
    return shown, hidden


def _hits(model: Any, shown: Any, hidden: Any) -> float:
    ranked, _ = model.top_k(sp.csr_array(shown), 5)
    return float((ranked == hidden[:, None]).any(axis=1).mean())


@pytest.mark.parametrize("values", ["ones", "ratings"])
@pytest.mark.parametrize("giant", [False, True])
@pytest.mark.parametrize("sparsity", ["auto", 0.4])
@pytest.mark.parametrize("users", [20, 50])
def test_defaults_learn_tastes_from_a_few_users(users: int, sparsity: Any, giant: bool, values: str) -> None:
    X, _ = _tastes(users, 48)
    asked, hidden = _tastes(200, 48, seed=1)
    if giant:
        X = np.vstack([X, np.ones((1, 48), np.float32)])
    if values == "ratings":
        X = X * np.random.default_rng(2).integers(1, 6, X.shape)
        asked = 3 * asked
    found = _hits(MRF(sparsity=sparsity).fit(sp.csr_array(X)), asked, hidden)
    popular = _hits(Popularity().fit(sp.csr_array(X)), asked, hidden)
    # Within a taste nothing is to be learnt: 5 of the 6 items that are left hit by chance.
    assert popular < 0.3
    assert found > (0.7 if users == 50 else 0.4)


def test_an_item_without_a_value_counts_as_much_as_others(tmp_path: Path) -> None:
    X, _ = _tastes(50, 48)
    rated = sp.csr_array(X * np.random.default_rng(2).integers(1, 6, X.shape))
    model = MRF().fit(rated)
    mean = float(rated.data.mean())
    assert mean > 2
    model.save(tmp_path / "rated.mrf")
    for each in (model, load(tmp_path / "rated.mrf")):
        plain = each.recommend(history=[0, 4, 8], k=5)
        assert plain.equals(each.recommend(history={0: mean, 4: mean, 8: mean}, k=5))
        assert set(plain["item"].to_list()) <= set(range(0, 48, 4))  # not the most popular
        assert not plain.equals(each.recommend(history={0: 1.0, 4: 1.0, 8: 1.0}, k=5))
