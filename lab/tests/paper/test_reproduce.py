"""The paper's tables: published numbers as published, measured ones as `evaluate` gives them."""

import json
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from mrfrec import MRF, DataError, MrfrecError, ParameterError
from mrfrec.evaluation import evaluate
from mrfrec.evaluation.protocol import fit_and_evaluate
from mrfrec.models import SLIM, MultVAE
from mrfrec.models.registry import build
from mrfrec_lab.datasets import registry, split
from mrfrec_lab.paper.published import TABLE_1, TABLE_2
from mrfrec_lab.paper.reproduce import EXPERIMENTS, reproduce

from matrices import random_matrix

PAPER = "ndcg@100,recall@20,recall@50"
KINDS: dict[str, dict[str, Any]] = {  # so that training takes no time
    "MultVAE": {"hidden": 6, "latent": 3, "epochs": 1},
    **{kind: {"hidden": 6, "epochs": 1} for kind in ("MultDAE", "CDAE")},
    "WMF": {"factors": 4},
}
SMALL = {"ml-20m": KINDS, "msd": KINDS}
TITLES = {name: found.title for name, found in registry.DATA_SETS.items()}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in which small data sets are prepared under the names of MSD and ML-20M."""
    for name, ids in (("msd", lambda place: f"s{place:03d}"), ("ml-20m", int)):
        user, item = np.nonzero(random_matrix(12, users=150, items=130))
        rows = {"user": [ids(u) for u in user.tolist()], "item": [ids(i) for i in item.tolist()]}
        times = {} if name == "msd" else {"time": range(len(user))}
        pl.DataFrame({**rows, **times}).write_parquet(tmp_path / f"{name}.parquet")
        counts: dict[str, Any] = {"events": len(user), "users": len(set(user)), "items": len(set(item))}
        changed: dict[str, Any] = {"heldout": 20, "min_items": 0, "training_items": None, "split": {}}
        small = replace(registry.DATA_SETS[name], **counts, **changed)
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
        model = build(row.kind, {**row.parameters, **KINDS.get(row.kind, {})}, {"threads": 1})
        expected = evaluate(model, data, PAPER, ties="index")
        for place, metric in enumerate(PAPER.split(",")):
            mean = expected.mean(metric)
            assert rows[row.model][2 * place + 1] == f"{mean.mean:.3f} ± {mean.error:.3f}"
    measured = json.loads(page.json())["data_sets"]["msd"]["models"]
    assert [model["name"] for model in measured] == list(rows)
    assert any("parameters of SLIM are not published" in note for note in page.notes)  # others are given


def test_a_table_may_have_the_rows_of_some_models_each_told_once_it_is_measured(folder: Path) -> None:
    told: list[str] = []
    page = reproduce("table1", ["msd"], models=["mrf", "SLIM"], folder=folder, tell=told.append)
    assert [line.split(" on ")[0] for line in told] == list(cells(page.sections[0])) == ["MRF, dense", "SLIM"]
    assert f"ndcg@100 {cells(page.sections[0])['SLIM'][1]}, recall@20" in told[1]
    assert "; trained in " in told[1]
    assert any("parameters of SLIM are not published" in note for note in page.notes)


def test_parameters_are_by_data_set_and_model(folder: Path) -> None:
    given: dict[str, dict[str, Any]] = {"ml-20m": {"slim": {"l1": 2.0}}, "netflix": {"WMF": {"factors": 9}}}
    page = reproduce("table1", models=["SLIM", "MRF"], parameters=given, folder=folder)
    models = {name: found["models"] for name, found in page.data["data_sets"].items()}
    assert [models[name][1]["parameters"]["l1"] for name in ("ml-20m", "msd")] == [2.0, SLIM().l1]
    assert [note.split(":")[0] for note in page.notes if "not published" in note] == [TITLES["msd"]]


def with_parameters(**given: Any) -> dict[str, Any]:
    return {"what": "table1", "names": ["msd"], "parameters": given}


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"what": "table3"}, "what must be one of table1, table2, lowrank, exposure"),
        ({"what": "table1", "names": ["ml-1m"]}, "names must be among ml-20m, netflix, msd for table1"),
        ({"what": "table1", "models": ["MRF", "EASE"]}, "got 'EASE'"),
        ({"what": "table2", "models": ["MRF", "SLIM"]}, "got 'SLIM'"),
        ({"what": "table1", "models": ["MRF", "SVD"]}, "got 'SVD'"),
        ({"what": "lowrank", "models": ["MRF"]}, "models must be left out with lowrank"),
        (with_parameters(msd={"MultVAE": {"hidden": 0}}), "hidden must be"),
        (with_parameters(WMF={"factors": 9}), r"by data set \(ml-20m, netflix, msd\), then by .*; got 'WMF'"),
        (with_parameters(msd={"EASE": {"l2": 9}}), "got 'msd, EASE'"),
        (with_parameters(msd={"WMF": 9}), "got 'msd, WMF'"),
        (with_parameters(msd=[9]), "got 'msd'"),
        (with_parameters(msd={"MRF": {"sparsity": 0.1}}), "without sparsity, which the row 'MRF, dense' has"),
        *(({"what": what}, "none of the data sets is prepared") for what in EXPERIMENTS),
    ],
)
def test_what_cannot_be_reproduced_is_refused_before_anything_is_read(
    asked: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(MrfrecError, match=message):
        reproduce(**asked, folder=tmp_path)


def test_published_numbers_are_left_out_where_the_data_is_not_the_published_one(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = registry.DATA_SETS["msd"]
    told: list[str] = []
    page = reproduce("table1", models=["MRF", "SLIM"], folder=folder)
    assert [found["verified"] for found in page.data["data_sets"].values()] == [True, True]
    monkeypatch.setitem(registry.DATA_SETS, "msd", replace(known, users=571_355))
    page = reproduce("table1", models=["MRF", "SLIM"], folder=folder, tell=told.append)
    fine, wrong = page.sections
    assert cells(fine)["SLIM"][0:7:2] == ["0.401", "0.370", "0.495", "–"]
    assert cells(wrong)["MRF, dense"][0:7:2] == cells(wrong)["SLIM"][0:7:2] == ["–"] * 4
    assert cells(wrong)["MRF, dense"][1] != "–"
    said = f"{TITLES['msd']}: this is not the published data, so that published numbers are left out. "
    assert f"{said}users: expected 571,355, found 150." in page.notes
    assert f"{said}users: expected 571,355, found 150." in told
    assert any(note.startswith("Published standard errors") for note in page.notes)
    assert [found["verified"] for found in page.data["data_sets"].values()] == [True, False]
    for what in ("table1", "lowrank"):
        alone = reproduce(what, ["msd"], models=["MRF"] if what == "table1" else None, folder=folder)
        assert not re.search(r"0\.391|Published", alone.markdown())


def test_data_that_cannot_be_split_is_noted_and_the_rest_is_run(folder: Path) -> None:
    (folder / "msd.parquet").write_bytes(b"PAR1")
    page = reproduce("table1", models=["MRF"], folder=folder)
    assert [section.title for section in page.sections] == [TITLES["ml-20m"]]
    assert any(note.startswith(f"{TITLES['msd']}: ") and "msd.parquet" in note for note in page.notes)


def test_a_split_of_other_rows_is_noted_beside_the_published_numbers(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {"test_te.csv": registry.SplitFile("0" * 32)}
    monkeypatch.setitem(registry.DATA_SETS, "msd", replace(registry.DATA_SETS["msd"], split=files))
    page = reproduce("table1", ["msd"], models=["MRF"], folder=folder)
    assert cells(page.sections[0])["MRF, dense"][0] == "0.391"
    note = next(note for note in page.notes if "MD5 of test_te.csv: expected 0000" in note)
    assert "the counts are the published ones, but the split is another." in note


def test_a_model_that_cannot_be_trained_here_is_noted_and_the_others_go_on(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "implicit.cpu.als", None)
    page = reproduce("table1", ["msd"], models=["MRF", "WMF"], folder=folder)
    rows = cells(page.sections[0])
    assert rows["WMF"][:2] == ["0.257", "–"]
    assert rows["MRF, dense"][1] != "–"
    assert any("taste profile, WMF: WMF needs the library implicit" in note for note in page.notes)


def test_table_2_has_the_sparse_models_with_their_density_and_the_share_of_items_at_the_cap(
    folder: Path,
) -> None:
    given, plot = {"msd": {"MRF": {"max_neighbors": 20}}}, folder / "table2.svg"
    page = reproduce("table2", folder=folder, models=["MRF"], parameters=given, plot=plot)
    (section,) = page.sections
    assert section.columns[-2:] == ["weights kept", "items with max_neighbors weights"]
    rows, measured, data = cells(section), page.data["data_sets"]["msd"]["models"], split("msd", folder)
    published = [row for row in TABLE_2["msd"] if row.kind == "MRF"]
    assert list(rows) == [row.model for row in published]
    assert rows["MRF, dense"][-2:] == ["100.00 %", "–"]
    for row, found in zip(published, measured, strict=True):
        model = MRF(**{**row.parameters, "max_neighbors": 20})
        expected = fit_and_evaluate(model, data, PAPER, ties="index").mean("ndcg@100")
        assert rows[row.model][1] == f"{expected.mean:.3f} ± {expected.error:.3f}"
        if model.pattern_ is not None:
            columns = model.pattern_.toarray().sum(axis=0)
            assert found["share"] == (model.weights_.nnz + columns.size) / columns.size**2
            assert found["capped"] == (columns == 20).mean()
            assert rows[row.model][-2:] == [f"{100 * found[name]:.2f} %" for name in ("share", "capped")]
    assert 0 < measured[1]["capped"] < 1
    assert "| MRF, 0.1 % sparse, r = 0.5 | 0.381 |" in page.markdown()
    texts = ("MRF, dense", "MRF, 0.1 % sparse", "r = 0.5")
    assert all(f"<!-- {text} -->" in plot.read_text() for text in texts)


def test_published_parameters_are_those_of_the_notebook_and_of_liang() -> None:
    dense = {name: dict(rows[0].parameters or {}) for name, rows in TABLE_1.items()}
    assert {name: found["l2"] for name, found in dense.items()} == {"ml-20m": 6.0, "netflix": 6.0, "msd": 3.0}
    assert all(found["alpha"] == 0.75 and found["sparsity"] is None for found in dense.values())
    sparse = [dict(row.parameters or {}) for row in TABLE_2["msd"][1:-1]]
    assert [(found["sparsity"], found["r"]) for found in sparse] == [
        (sparsity, r) for sparsity in (0.005, 0.001) for r in (0.0, 0.1, 0.5)
    ]
    assert all(found["l2"] == 1.0 and found["max_neighbors"] == 1000 for found in sparse)
    for rows in TABLE_1.values():
        trained = {row.kind: row.parameters for row in rows if row.kind in ("MultVAE", "MultDAE", "CDAE")}
        assert [(found["epochs"], found["patience"]) for found in trained.values()] == [(200, None)] * 3
        assert (trained["MultVAE"]["hidden"], trained["MultDAE"]["l2"]) == (600, 0.01)
    assert TABLE_2["msd"][-1] == TABLE_1["msd"][1]


@pytest.mark.slow  # loads PyTorch
def test_side_checks_run_on_what_is_prepared(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def without_torch(*_: object) -> None:
        raise DataError("no torch.")

    lowrank = reproduce("lowrank", ["msd"], folder=folder, plot=folder / "lowrank.svg")
    assert (folder / "lowrank.svg").exists()
    half = split("msd", folder).training.n_items // 2
    assert [row[0] for row in lowrank.sections[0].rows] == ["full rank", f"rank {half}"]
    drawn = folder / "exposure.svg"
    exposure = reproduce("exposure", ["ml-20m"], folder=folder, parameters=SMALL, plot=drawn)
    assert "Mult-VAE" in drawn.read_text()
    assert len(exposure.sections[0].rows) == 10
    assert exposure.sections[0].columns[2:4] == ["recommended by MRF, dense", "recommended by Mult-VAE"]
    monkeypatch.setattr(MultVAE, "_fit", without_torch)
    cut = reproduce("exposure", ["ml-20m"], folder=folder)
    assert len(cut.sections[0].columns) == 5
    assert any("Mult-VAE: no torch." in note for note in cut.notes)


def test_a_plot_is_of_one_data_set(folder: Path) -> None:
    for what, names, message in (
        ("table1", ["msd"], "plot must be left out with table1"),
        ("lowrank", None, "plot must be used with one data set, .* prepared: ml-20m, msd"),
    ):
        with pytest.raises(ParameterError, match=message):
            reproduce(what, names, folder=folder, plot=folder / "x.png")


def test_what_does_not_fit_in_memory_is_noted_and_the_rest_is_run(folder: Path) -> None:
    page = reproduce("table1", folder=folder, machine={"memory_limit": 1000}, models=["MRF", "SLIM", "WMF"])
    assert page.sections == []
    assert sum("memory_limit allows" in note for note in page.notes) == 6
    page = reproduce("lowrank", ["msd"], folder=folder, machine={"memory_limit": 1000})
    assert page.sections == []
    assert any("taste profile, MRF, dense: " in note for note in page.notes)
