"""The scripts behind experiments/results, on small data."""

import json
from pathlib import Path

import numpy as np
import pytest

from experiments import table1
from mrfrec import datasets, evaluation
from mrfrec.evaluation.protocol import rank
from mrfrec.models.registry import build


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("CACHE", "RESULTS"):
        monkeypatch.setattr(table1, name, tmp_path)
    monkeypatch.setattr(table1, "GPU", tmp_path / "gpu")
    split = evaluation.strong_generalisation(datasets.events("debian"), heldout=300)
    rows = (
        table1.Row("item-kNN", "ItemKNN", {"shrink": 0.0}, {"neighbors": [5, 50]}),
        table1.Row("Popularity", "Popularity", {}, {}, "as it is"),
    )
    small = table1.Table("A table", "About it.", lambda _: split, rows, {"hit@5": "Hit@5"}, ("there",))
    monkeypatch.setitem(table1.TABLES, "small", small)
    return tmp_path


def test_all_models_are_tuned_measured_and_put_in_one_table(folder: Path) -> None:
    # Rankings made elsewhere: those of a model known here, so that the numbers are known too.
    split = table1.TABLES["small"].split(folder)
    model = build("ItemKNN", {"neighbors": 20}).fit(split.training)
    (folder / "gpu" / "there").mkdir(parents=True)
    np.savez_compressed(folder / "gpu" / "there" / "one.npz", ranked=rank(model, split.test, 100))
    job = {
        "name": "one", "kind": "MultVAE", "parameters": {"dropout": 0.3}, "seconds": 61.0, "epochs": 9,
        "best_epoch": 4, "ndcg@100": 0.25, "device": "some GPU", "torch": "2.0",
    }  # fmt: skip
    other = {**job, "name": "two", "parameters": {"dropout": 0.5}, "ndcg@100": 0.2}
    (folder / "gpu" / "there" / "results.json").write_text(json.dumps([job, other]))

    table1.main([str(folder), "small"])
    page = (folder / "table1-small.md").read_text()
    rows = {line.split(" | ")[0].strip("| "): line for line in page.splitlines() if line.startswith("| ")}
    expected = evaluation.measure(model, split.test, ["ndcg@100", "recall@20", "recall@50", "hit@5"])
    cells = " | ".join(f"{expected.mean(m).mean:.4f} ± {expected.mean(m).error:.4f}" for m in expected.values)
    assert f"| Mult-VAE | {cells} |" in page
    assert "| 1 min 1 s | B |" in page
    assert "dropout in 0.3, 0.5" in page
    assert "the best of 9 epochs is number 4" in page
    assert "neighbors in 5, 50" in page
    assert "- B: some GPU, PyTorch 2.0" in page
    assert set(rows) >= {"item-kNN", "Popularity", "Mult-VAE"}
    best = json.loads((folder / "table1-small-item-knn.json").read_text())
    assert best["parameters"].keys() == {"neighbors", "shrink"}

    kept = {path: path.stat().st_mtime_ns for path in folder.glob("table1-small.*.json")}
    table1.main([str(folder), "small", "Popularity"])
    changed = {path.name for path, time in kept.items() if path.stat().st_mtime_ns > time}
    assert changed == {"table1-small.Popularity.json", "table1-small.Mult-VAE.json"}
