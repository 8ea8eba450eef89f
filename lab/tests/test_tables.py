"""Tables and side checks: published numbers, claims, low rank as numpy decomposes, exposure by counting."""

import ast
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mrfrec
import mrfrec_lab
from mrfrec import MRF, MemoryPlanError, ParameterError
from mrfrec.evaluation import Split, compare, leave_out
from mrfrec_lab import runner, side_checks, tables
from mrfrec_lab.side_checks import exposure, low_rank

from matrices import pairs_of, random_matrix

SOURCE = Path(mrfrec_lab.__file__).parent
PUBLIC = {f"mrfrec.{name}" for name in ("models", "evaluation", "datasets", "errors", "extending", "testing")}
SHELL = "mrfrec.cli"  # whose commands run with the lab's models


@pytest.fixture(scope="module")
def split() -> Split:
    return leave_out(pairs_of(random_matrix(4, users=150)), k=2)


def test_low_rank_equals_the_decomposition_by_hand(split: Split) -> None:
    """The first is the model as it is; so is the one of all ranks together."""
    m = split.training.n_items
    for more in ({}, {"offset": True}):
        model = MRF.paper(sparsity=None, l2=5.0, dtype="float64", **more).fit(split.training)
        found = low_rank(model, split, [20, m], ["ndcg@10"])
        assert [evaluation.model for evaluation, _ in found] == ["full rank", f"rank {m}", "rank 20"]
        (full, _), (same, everything), (cut, energy) = found
        np.testing.assert_allclose(full.per_user("ndcg@10"), same.per_user("ndcg@10"))
        squares = np.linalg.svd(model.weights_, compute_uv=False) ** 2
        assert (everything, energy) == pytest.approx((1.0, squares[:20].sum() / squares.sum()))
        assert cut.mean("ndcg@10").mean != full.mean("ndcg@10").mean


def test_the_randomized_decomposition_is_as_good_as_the_exact_one(
    split: Split, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = MRF.paper(sparsity=None, dtype="float64").fit(split.training)
    m = split.training.n_items
    monkeypatch.setattr(side_checks, "_EXACT", 1)
    (full, _), (same, energy) = low_rank(model, split, [m], ["ndcg@10"])
    np.testing.assert_allclose(full.per_user("ndcg@10"), same.per_user("ndcg@10"))
    assert energy == pytest.approx(1.0)


def test_what_low_rank_cannot_use_is_refused(split: Split) -> None:
    model = MRF.paper(sparsity=0.2).fit(split.training)
    for wrong in ([], [0], [46]):
        with pytest.raises(ParameterError, match="ranks must be"):
            low_rank(model, split, wrong, ["ndcg@10"])
    with pytest.raises(ParameterError, match="without a low-rank part"):
        low_rank(MRF(rank=2).fit(split.training), split, [2], ["ndcg@10"])
    model.memory_limit = 1000
    with pytest.raises(MemoryPlanError, match="Ask for smaller ranks"):
        low_rank(model, split, [2], ["ndcg@10"])


def test_exposure_equals_counting_item_by_item(split: Split) -> None:
    found = compare(
        {"dense": MRF.paper(sparsity=None), "sparse": MRF.paper(sparsity=0.1)}, split, ["ndcg@10"]
    )
    shares = exposure(found, split.test).shares
    popularity = split.training.popularity
    order = np.argsort(-popularity, kind="stable")
    group = np.empty(len(order), int)
    group[order] = np.arange(len(order)) * 10 // len(order)
    counts = found["dense"].recommended
    expected = [counts[group == g].sum() / counts.sum() for g in range(10)]
    np.testing.assert_allclose(shares["recommended by dense"], expected)
    assert all(share.sum() == pytest.approx(1) for share in shares.values())


@pytest.mark.parametrize("what", ["table2", "claims"])
def test_models_of_tables_can_be_built(what: str, split: Split) -> None:
    for name in ("debian", "msd", "mtg-players"):
        for row in tables.table_of(what, name).rows:
            point = runner.grid_points(row, split)[0]
            runner.built(row, {**row.fixed, **point})


def test_models_of_every_table_1_can_be_built(split: Split) -> None:
    for table in tables.TABLE_1.values():
        for row in table.rows:
            runner.built(row, {**row.fixed, **runner.grid_points(row, split)[0]})


def test_published_numbers_stand_only_beside_the_published_data(split: Split) -> None:
    table = tables.TABLE_1["ml-20m"]
    row: dict[str, Any] = {
        "name": "SLIM", "measured": {name: [0.4, 0.01] for name in tables.AT_100}, "users": 9,
        "seconds": 61.0, "machine": "B", "grid": {}, "trials": 1,
        "parameters": {"sparsity": None, "half_life": None}, "validation": None,
        "remark": "", "date": "2026-01-01",
    }  # fmt: skip
    assert "0.401 / 0.370 / 0.495" in runner.page("table1 ml-20m", table, {"SLIM": row}, [])
    other = runner.page("table1 ml-20m", table, {"SLIM": row}, [f"{runner.DIFFERS}. events: expected 5."])
    assert "0.401" not in other
    assert "1 min 1 s" in other
    assert "sparsity=dense, half_life=none" in other


def test_an_uncentered_form_with_a_flat_ridge_is_ease(split: Split) -> None:
    from mrfrec.models import EASE

    mine = tables.Uncentered(l2=7.0, alpha=0.0).fit(split.training).weights_
    np.testing.assert_allclose(mine, EASE(l2=7.0, sparsity=None).fit(split.training).weights_, atol=1e-4)


def test_the_lab_uses_public_names_of_mrfrec() -> None:
    for path in [*SOURCE.rglob("*.py"), *Path(__file__).parent.rglob("*.py")]:
        found = set()
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                found |= {each.name for each in node.names if each.name.startswith("mrfrec.")} - PUBLIC
            elif isinstance(node, ast.ImportFrom) and str(node.module).split(".")[0] == "mrfrec":
                module = str(node.module)
                known = import_module(module).__all__ if module in {"mrfrec", *PUBLIC} else ()
                found |= {f"{module}.{each.name}" for each in node.names if each.name not in known}
        assert found <= {SHELL}, path


def test_mrfrec_does_not_know_the_lab() -> None:
    for path in Path(mrfrec.__file__).parent.rglob("*.py"):
        assert "mrfrec_lab" not in path.read_text(), path
