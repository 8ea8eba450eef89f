"""The cuts, the histories and the SASRec of times.py, times_peers.py and sasrec.py."""

import numpy as np
import pytest
import scipy.sparse as sp

from mrfrec import Interactions
from mrfrec_lab.lists import measure_lists, split_of
from mrfrec_lab.times import cut_at
from mrfrec_lab.times_peers import in_order

torch = pytest.importorskip("torch")


@pytest.mark.parametrize("share", [0.7, 0.8, 0.9])
def test_a_cut_asks_about_the_next_tenth_of_the_events(share: float) -> None:
    random = np.random.default_rng(0)
    pairs = np.unique(random.integers(0, [40, 30], (900, 2)), axis=0)
    times = random.permutation(len(pairs)).astype("datetime64[s]")
    X = sp.coo_array((np.ones(len(pairs)), tuple(pairs.T)), shape=(40, 30)).tocsr()
    split = cut_at(Interactions(X, times=times), share)
    count = len(pairs)
    assert len(split.training) == pytest.approx(share * count, abs=2)
    assert split.training.times is not None
    earliest = np.sort(times.astype("datetime64[us]").astype(np.int64))[: len(split.training)]
    np.testing.assert_array_equal(np.sort(split.training.times), earliest)
    assert split.test.targets.nnz + split.test.new_targets <= 0.1 * count + 2


def test_histories_are_oldest_first_and_equal_times_in_random_order() -> None:
    X = sp.csr_array(np.ones((2, 6)))
    times = np.array([5, 4, 3, 3, 3, 3, 0, 0, 0, 0, 0, 0])
    found = [in_order(X, times, np.random.default_rng(seed)) for seed in range(20)]
    assert all(each["_lengths"].tolist() == [6, 6] for each in found)
    assert all(each[""][4:6].tolist() == [1, 0] for each in found)
    assert {item for each in found for item in each[""][:1].tolist()} == {2, 3, 4, 5}


def test_ndcg_of_sasrec_is_that_of_evaluations() -> None:
    from mrfrec_lab.sasrec import ndcg

    random = np.random.default_rng(0)
    X = sp.csr_matrix(random.random((30, 40)) < 0.3, dtype=np.float32)
    lists = np.array([random.permutation(40)[:20] for _ in range(30)], np.int32)
    targets = [torch.from_numpy(x.astype(np.int64)) for x in np.split(X.indices, X.indptr[1:-1])]
    expected = measure_lists(lists, split_of(X, X), ["ndcg@10"])["ndcg@10"].mean()
    assert ndcg(torch.from_numpy(lists.astype(np.int64)), targets, 10) == pytest.approx(expected, abs=1e-6)


@pytest.mark.slow
def test_sasrec_learns_what_comes_next_and_recommends_nothing_that_is_shown() -> None:
    from mrfrec_lab import sasrec

    starts = np.random.default_rng(0).integers(0, 30, 200)
    histories = [torch.from_numpy((start + np.arange(6)) % 30) for start in starts]
    shown, targets = [each[:-1] for each in histories], [each[-1:] for each in histories]
    task = sasrec.Task(30, shown, shown, targets)
    model, epochs, value = sasrec.train(task, 16, 0.0, 60, 10)
    lists = sasrec.ranked(model, shown, 30)
    assert 0 < epochs <= 60
    assert value > 0.8
    assert sasrec.ndcg(lists, targets, 10) == pytest.approx(value)
    assert not any(set(row.tolist()) & set(had.tolist()) for row, had in zip(lists, shown, strict=True))
