"""The generator has the shape it claims, and fits are checked and stand beside their limits."""

import numpy as np
import pytest

from benchmarks import bench, limits
from benchmarks.synthetic import interactions


@pytest.mark.slow
def test_synthetic_data_has_the_size_and_shape_asked_for_and_users_keep_to_a_few_clusters() -> None:
    X = interactions(4000, 2000, 120_000, seed=3)
    lengths, popularity = np.diff(X.indptr), np.bincount(X.indices, minlength=2000)
    assert X.shape == (4000, 2000)
    assert X.has_canonical_format
    assert (X.data == 1).all()
    assert lengths.min() >= 15
    assert 0.9 < X.nnz / 120_000 < 1.1
    assert lengths.max() > 3 * lengths.mean()  # a long tail of histories
    assert popularity.max() > 5 * np.median(popularity)  # and of items
    together = np.abs(np.corrcoef(X[:, :450].toarray().T))  # far more often than popularity explains
    assert np.quantile(together, 0.99) > 5 * np.quantile(together, 0.5)


def test_dense_check_sees_a_good_fit_and_a_bad_one(monkeypatch: pytest.MonkeyPatch) -> None:
    X = interactions(1500, 300, 40_000, seed=6)
    assert bench.fit_and_check(X, l2=2.0, dtype="float64")["worst equation"] < 1e-12
    honest = bench.measure_fit

    def spoiled(*arguments: object) -> object:
        model, result = honest(*arguments)  # type: ignore[arg-type]
        model.weights_[:] *= 1.01
        return model, result

    monkeypatch.setattr(bench, "measure_fit", spoiled)
    assert bench.fit_and_check(X, l2=2.0, dtype="float64")["worst equation"] > 1e-4


@pytest.mark.slow
@pytest.mark.skipif(not (bench.DATA / "gowalla-lightgcn").exists(), reason="no real data beside the project")
def test_sparse_fit_on_gowalla_is_as_accurate_as_it_was() -> None:
    folder = bench.DATA / "gowalla-lightgcn"
    X = bench.table(folder / "train.parquet", (29_858, 40_981))
    result = bench.fit_and_evaluate(
        X, test=str(folder / "test.parquet"), l2=40.0, alpha=0.5, sparsity=0.003, r=0.5
    )
    assert abs(result["recall20"] - 0.1744) < 0.001
    assert abs(result["ndcg20"] - 0.1452) < 0.001


def test_stages_stand_beside_their_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    X = interactions(1500, 300, 40_000, seed=6)
    kinds = "product", "additions", "copy", "sums of rows"
    monkeypatch.setattr(limits, "rates", lambda _: dict.fromkeys(kinds, 1e9))
    sparse = limits.fit_beside_limits(X, l2=1.0, sparsity=0.05)
    additions = (np.diff(X.indptr).astype(float) ** 2).sum() / 2
    assert sparse["limits"]["pattern"] == pytest.approx(additions / 1e9, rel=0.01)
    assert sparse["pattern ÷ limit"] > 0
    assert 300 * 15**3 / 3e9 < sparse["limits"]["solve"] < 300 * 60**3 / 3e9
    dense = limits.fit_beside_limits(X, paper=False, sparsity=None, rank=4, rank_weight=0.5)
    assert {"matrix ÷ limit", "factorise ÷ limit", "low rank ÷ limit"} <= dense.keys()
