"""The paper's tables: published numbers as published, measured ones as `evaluate` gives them."""

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from mrfrec import MRF, DataError, ParameterError
from mrfrec.datasets import registry, split
from mrfrec.evaluation import evaluate
from mrfrec.models import MultVAE
from mrfrec.models.registry import build
from mrfrec.paper.reproduce import EXPERIMENTS, TABLE_1, TABLE_2, reproduce

from conftest import random_matrix

PAPER = "ndcg@100,recall@20,recall@50"
SMALL: dict[str, dict[str, Any]] = {  # so that training takes no time
    "MultVAE": {"hidden": 6, "latent": 3, "epochs": 1},
    **{kind: {"hidden": 6, "epochs": 1} for kind in ("MultDAE", "CDAE")},
    "WMF": {"factors": 4},
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in which small data sets are prepared under the names of MSD and ML-20M."""
    for name, ids in (("msd", lambda place: f"s{place:03d}"), ("ml-20m", int)):
        user, item = np.nonzero(random_matrix(12, users=150, items=130))
        rows = {"user": [ids(u) for u in user.tolist()], "item": [ids(i) for i in item.tolist()]}
        times = {} if name == "msd" else {"time": range(len(user))}
        pl.DataFrame({**rows, **times}).write_parquet(tmp_path / f"{name}.parquet")
        small = replace(registry.DATA_SETS[name], heldout=20)
        monkeypatch.setitem(registry.DATA_SETS, name, small)
    return tmp_path


def cells(section: Any) -> dict[str, list[str]]:
    return {row[0]: list(row[1:]) for row in section.rows}


@pytest.mark.slow  # loads PyTorch
def test_table_1_has_published_beside_measured_and_says_what_is_missing(folder: Path) -> None:
    page = reproduce("table1", folder=folder, parameters=SMALL, machine={"threads": 1, "device": "cpu"})
    assert [section.title for section in page.sections] == [
        "MovieLens 20M", "Million Song Dataset, taste profile"
    ]  # fmt: skip
    assert any("Netflix Prize: not prepared" in note and "prepare netflix" in note for note in page.notes)
    rows = cells(page.sections[1])
    assert list(rows) == ["MRF, dense", "Mult-VAE", "Mult-DAE", "CDAE", "SLIM", "WMF"]
    assert rows["MRF, dense"][0:5:2] == ["0.391", "0.334", "0.430"]
    assert rows["SLIM"][0:5:2] == ["did not finish"] * 3
    assert rows["Mult-VAE"][0:5:2] == ["0.316", "0.266", "0.364"]
    assert (rows["Mult-VAE"][6], rows["WMF"][6]) == ("4 h 30 min", "–")
    data = split("msd", folder)
    for row in TABLE_1["msd"]:
        model = build(row.kind, {**row.parameters, **SMALL.get(row.kind, {})}, {"threads": 1})
        expected = evaluate(model, data, PAPER, ties="index")
        for place, metric in enumerate(PAPER.split(",")):
            mean = expected.mean(metric)
            assert rows[row.model][2 * place + 1] == f"{mean.mean:.3f} ± {mean.error:.3f}"
    measured = json.loads(page.json())["data_sets"]["msd"]["models"]
    assert [model["name"] for model in measured] == list(rows)
    assert any("parameters of SLIM, WMF, CDAE are not published" in note for note in page.notes)


def test_each_model_is_told_as_soon_as_it_is_measured(folder: Path) -> None:
    told: list[str] = []
    page = reproduce("table1", ["ml-20m"], models=["MRF", "SLIM"], folder=folder, tell=told.append)
    assert [line.split(" on ")[0] for line in told] == ["MRF, dense", "SLIM"]
    assert f"ndcg@100 {cells(page.sections[0])['SLIM'][1]}, recall@20" in told[1]
    assert "; trained in " in told[1]


def test_a_table_may_have_the_rows_of_some_models_alone(folder: Path) -> None:
    page = reproduce("table1", ["msd"], models=["mrf", "SLIM"], folder=folder)
    assert list(cells(page.sections[0])) == ["MRF, dense", "SLIM"]
    assert any("parameters of SLIM are not published" in note for note in page.notes)
    alone = reproduce("table1", ["msd"], models=["MRF"], folder=folder)
    assert not any("not published" in note for note in alone.notes)
    for what, wrong in (("table1", "EASE"), ("table2", "SLIM"), ("table1", "SVD")):
        with pytest.raises(ParameterError, match=f"got '{wrong}'"):
            reproduce(what, ["msd"], models=["MRF", wrong], folder=folder)
    with pytest.raises(ParameterError, match="models must be left out with lowrank"):
        reproduce("lowrank", ["msd"], models=["MRF"], folder=folder)
    with pytest.raises(ParameterError, match="hidden must be"):
        reproduce("table1", ["msd"], parameters={"MultVAE": {"hidden": 0}}, folder=folder)


def test_a_model_that_cannot_be_trained_here_is_noted_and_the_others_go_on(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "implicit.cpu.als", None)
    page = reproduce("table1", ["msd"], models=["MRF", "WMF"], folder=folder)
    rows = cells(page.sections[0])
    assert rows["WMF"][:2] == ["0.257", "–"]
    assert rows["MRF, dense"][1] != "–"
    assert any("taste profile, WMF: WMF needs the library implicit" in note for note in page.notes)


def test_table_2_has_the_sparse_models_with_the_published_parameters(folder: Path) -> None:
    page = reproduce("table2", folder=folder)
    (section,) = page.sections
    assert list(cells(section)) == [row.model for row in TABLE_2["msd"]]
    data = split("msd", folder)
    for row in TABLE_2["msd"]:
        expected = evaluate(MRF.paper(**dict(row.parameters or {})), data, PAPER, ties="index").mean(
            "ndcg@100"
        )
        assert cells(section)[row.model][1] == f"{expected.mean:.3f} ± {expected.error:.3f}"
    assert "| MRF, 0.1 % sparse, r = 0.5 | 0.381 |" in page.markdown()


def test_published_parameters_are_those_of_the_notebook() -> None:
    dense = {name: dict(rows[0].parameters or {}) for name, rows in TABLE_1.items()}
    assert {name: found["l2"] for name, found in dense.items()} == {"ml-20m": 6.0, "netflix": 6.0, "msd": 3.0}
    assert all(found["alpha"] == 0.75 and found["sparsity"] is None for found in dense.values())
    sparse = [dict(row.parameters or {}) for row in TABLE_2["msd"][1:]]
    assert [(found["threshold"], found["r"]) for found in sparse] == [
        (threshold, r) for threshold in (0.11, 0.375) for r in (0.0, 0.1, 0.5)
    ]
    assert all(found["l2"] == 1.0 and found["max_neighbors"] == 1000 for found in sparse)


@pytest.mark.slow  # loads PyTorch
def test_side_checks_run_on_what_is_prepared(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def without_torch(*_: object) -> None:
        raise DataError("no torch.")

    lowrank = reproduce("lowrank", ["msd"], folder=folder)
    half = split("msd", folder).training.n_items // 2
    assert [row[0] for row in lowrank.sections[0].rows] == ["full rank", f"rank {half}"]
    exposure = reproduce("exposure", ["ml-20m"], folder=folder, parameters=SMALL)
    assert len(exposure.sections[0].rows) == 10
    assert exposure.sections[0].columns[2:4] == ["recommended by MRF, dense", "recommended by Mult-VAE"]
    monkeypatch.setattr(MultVAE, "_fit", without_torch)
    cut = reproduce("exposure", ["ml-20m"], folder=folder)
    assert len(cut.sections[0].columns) == 5
    assert any("Mult-VAE: no torch." in note for note in cut.notes)


def test_nothing_prepared_unknown_experiments_and_unknown_data_are_refused(tmp_path: Path) -> None:
    for what in EXPERIMENTS:
        with pytest.raises(DataError, match="none of the data sets is prepared"):
            reproduce(what, folder=tmp_path)
    with pytest.raises(ParameterError, match="what must be one of table1, table2, lowrank, exposure"):
        reproduce("table3")
    with pytest.raises(ParameterError, match="names must be among ml-20m, netflix, msd for table1"):
        reproduce("table1", ["ml-1m"], folder=tmp_path)


def test_what_does_not_fit_in_memory_is_noted_and_the_rest_is_run(folder: Path) -> None:
    page = reproduce("table1", folder=folder, machine={"memory_limit": 1000}, models=["MRF", "SLIM", "WMF"])
    assert page.sections == []
    assert sum("memory_limit allows" in note for note in page.notes) == 6
    page = reproduce("lowrank", ["msd"], folder=folder, machine={"memory_limit": 1000})
    assert page.sections == []
    assert any("taste profile, MRF, dense: " in note for note in page.notes)
