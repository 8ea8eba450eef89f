"""The search for the parameters of autoencoders, on small data."""

import json
from pathlib import Path
from typing import Any

import numpy as np

from mrfrec.evaluation import leave_out
from mrfrec_lab import autoencoders as script
from mrfrec_lab import untuned

from matrices import clusters, pairs_of


def test_a_search_moves_along_the_ladders_until_nothing_is_better() -> None:
    asked = []

    def value(parameters: dict[str, Any]) -> float:
        asked.append(parameters)
        return -abs(float(parameters["dropout"]) - 0.2) - abs(int(parameters["hidden"]) - 1000)

    best = script.search({"dropout": 0.5, "hidden": 600}, ("dropout", "hidden+"), value)
    assert best == {"dropout": 0.2, "hidden": 1000}
    assert {"dropout": 0.1, "hidden": 600} in asked
    assert {"dropout": 0.2, "hidden": 1500} in asked
    assert script.search(best, ("dropout",), lambda _: None) == best


def test_trials_are_kept_and_the_search_goes_on_from_them(tmp_path: Path) -> None:
    split = leave_out(pairs_of(clusters(1, 90)), 2)
    script.export(split, tmp_path / "data.npz")
    read = untuned.split_of(tmp_path / "data.npz")
    for written, given in ((read, split), (read.for_tuning(), split.for_tuning())):
        assert (written.training.matrix != given.training.matrix).nnz == 0
        assert written.test.targets.sum() == given.test.targets.sum()
    small = json.dumps({"batch": 30, "epochs": 4})
    for trials in (2, 3):
        script.main(
            [str(tmp_path / "data.npz"), str(tmp_path), "gowalla", "MultDAE", "--trials", str(trials),
             "--set", small, "--device", "cpu"]
        )  # fmt: skip
        found = json.loads((tmp_path / "gowalla-MultDAE.json").read_text())
        assert [trial["recipe"]["dropout"] for trial in found][:2] == [0.5, 0.6]
        assert len(found) == trials
    with np.load(tmp_path / "gowalla-MultDAE.npz") as file:
        facts, ranked = json.loads(str(file["facts"])), file["ranked"]
    best = max((t for t in found if not t["ended"]), key=lambda t: t["ndcg@100"])
    assert facts["recipe"]["epochs"] == best["best_epoch"]
    assert ranked.shape == split.test.shown.shape
