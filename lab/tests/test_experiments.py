"""The tables and the comparison with other libraries, on small data."""

import json
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from mrfrec import datasets, evaluation
from mrfrec_lab import peer_models, peer_trials, peers, runner, tables
from mrfrec_lab.__main__ import main
from mrfrec_lab.lists import measure_lists, split_of
from mrfrec_lab.models import build


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("CACHE", "RESULTS"):
        monkeypatch.setattr(runner, name, tmp_path)
    monkeypatch.setattr(runner, "GPU", tmp_path / "gpu")
    split = evaluation.strong_generalisation(datasets.load("debian"), heldout=300)
    rows = (
        tables.Row("item-kNN", "ItemKNN", {"shrink": 0.0}, {"neighbors": [5, 50]}),
        tables.Row("Popularity", "Popularity", {}, {}, "as it is"),
    )
    small = tables.Table("A table", "About it.", rows, {"hit@5": "Hit@5"})
    monkeypatch.setitem(tables.TABLE_1, "small", small)
    monkeypatch.setattr(runner, "split_of", lambda *_: split)
    return tmp_path


def test_all_models_are_tuned_measured_and_put_in_one_table(folder: Path) -> None:
    # A ranking made elsewhere: that of a model known here, so that the numbers are known too.
    split = getattr(runner, "split_of")("small", None)  # noqa: B009 - as the runner sees it
    model = build("ItemKNN", {"neighbors": 20}).fit(split.training)
    (folder / "gpu").mkdir()
    facts = {
        "kind": "MultVAE", "recipe": {"dropout": 0.3, "hidden": 9, "epochs": 4}, "seconds": 61.0,
        "device": "some GPU", "torch": "2.0",
    }  # fmt: skip
    ranked, _ = model.top_k(split.test.shown, 100, ties="popularity")
    np.savez_compressed(folder / "gpu" / "small-MultVAE.npz", ranked=ranked, facts=json.dumps(facts))
    trial = {
        "recipe": facts["recipe"], "epochs": 9, "best_epoch": 4, "ndcg@100": 0.25, "ended": False,
        "history": [{"epoch": 4, "ndcg": 0.25}],
    }  # fmt: skip
    other = {**trial, "recipe": {"dropout": 0.5, "hidden": 9, "epochs": 4}, "ndcg@100": 0.2}
    (folder / "gpu" / "small-MultVAE.json").write_text(json.dumps([trial, other]))

    main(["table1", "small"])
    page = (folder / "table1-small.md").read_text()
    rows = {line.split(" | ")[0].strip("| "): line for line in page.splitlines() if line.startswith("| ")}
    expected = evaluation.evaluate_fitted(model, split.test, ["ndcg@100", "recall@20", "recall@50", "hit@5"])
    cells = " | ".join(f"{expected.mean(m).mean:.4f} ± {expected.mean(m).error:.4f}" for m in expected.values)
    assert f"| Mult-VAE | {cells} |" in page
    assert "| 1 min 1 s | B |" in page
    assert "dropout in 0.3, 0.5" in page
    assert "the best of 9 epochs is number 4" in page
    assert "neighbors in 5, 50" in page
    assert "- B: some GPU, PyTorch 2.0" in page
    assert set(rows) >= {"item-kNN", "Popularity", "Mult-VAE"}
    best = json.loads((folder / "table1-small-item-knn.json").read_text())
    assert best["parameters"] == {"shrink": 0.0, "neighbors": 50}

    # The page comes from the file of results alone; only what is asked for is measured again.
    main(["table1", "small"])
    assert (folder / "table1-small.md").read_text() == page
    kept = {path: path.stat().st_mtime_ns for path in folder.glob("table1-small.*.npz")}
    assert len(kept) == 3
    main(["table1", "small", "--only", "Popularity"])
    changed = {path.name for path, time in kept.items() if path.stat().st_mtime_ns > time}
    assert changed == {"table1-small.popularity.npz"}

    # Without values of users, differences of means remain where the best row has changed.
    for path in kept:
        path.unlink()
    found = json.loads((folder / "table1-small.json").read_text())
    found["Popularity"]["measured"]["ndcg@100"] = [0.9, 0.0]
    (folder / "table1-small.json").write_text(json.dumps(found))
    main(["table1", "small", "--page"])
    page = (folder / "table1-small.md").read_text()
    assert f"| {found['Mult-VAE']['measured']['ndcg@100'][0] - 0.9:+.4f} | 1 min 1 s |" in page


# ── other libraries, without them ─────────────────────────────────────────────────────────────────


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("CACHE", "RESULTS"):
        monkeypatch.setattr(peers, name, tmp_path)
    rows = (
        peer_trials.Row("mrfrec", "MRF, tuned", {"kind": "ItemKNN"}, {"neighbors": [5, 20, 50]}),
        peer_trials.Row("mrfrec", "Popularity", {"kind": "Popularity"}),
        peer_trials.Row("mrfrec", "SLIM", {"kind": "ItemKNN"}, {"neighbors": [-1, 10]}),
        peer_trials.Row("irspack", "EASE", {}, {"reg": [1.0]}),
        peer_trials.Row("irspack", "SLIM"),
    )
    monkeypatch.setattr(peers, "ROWS", rows)
    data = peers.Data(
        "Packages", "About.", _split, ("ndcg@100", "recall@20"), "Closing.", {"SLIM (irspack)": "too slow"}
    )
    monkeypatch.setitem(peers.DATA, "debian", data)
    environment = peer_trials.environment
    broken = {"irspack": "not installed: no wheel"}
    monkeypatch.setattr(peer_trials, "environment", lambda name: broken.get(name) or environment(name))
    return tmp_path


def _split(_: Path) -> evaluation.Split:
    return evaluation.strong_generalisation(datasets.load("debian"), heldout=300)


def _in_this_process(command: list[str], _: float | None) -> "subprocess.CompletedProcess[str]":
    try:
        peer_models.main(command[2:])
    except ValueError as error:
        return subprocess.CompletedProcess(command, 1, "", f"Traceback\n{error}\n")
    return subprocess.CompletedProcess(command, 0, "", "")


def test_best_items_that_are_not_shown_come_in_the_order_of_their_scores() -> None:
    random = np.random.default_rng(0)
    scores = random.integers(0, 5, (40, 12)).astype(np.float32)
    scores[3] = np.nan
    shown = sp.csr_matrix(random.random((40, 12)) < 0.6)
    found = peer_models.top(scores, shown, 6, random)
    for row in range(40):
        left = [i for i in range(12) if not shown[row, i] and not np.isnan(scores[row, i])]
        best = sorted((scores[row, i] for i in left), reverse=True)[:6]
        assert scores[row, found[row, : len(best)]].tolist() == best
        assert set(found[row, : len(best)]) <= set(left)
        assert (found[row, len(best) :] == -1).all()
        assert len(set(found[row, : len(best)])) == len(best)


def test_equal_scores_of_other_libraries_come_at_random_whatever_the_ids() -> None:
    random = np.random.default_rng(0)
    found = peer_models.top(np.zeros((4000, 10)), sp.csr_matrix((4000, 10)), 3, random)
    places = np.array([np.bincount(found[:, place], minlength=10) for place in range(3)])
    assert abs(places - 400).max() < 100  # of 4,000 users, each item is a tenth of each place


def test_returned_lists_are_measured_as_our_own_evaluation_does(cache: Path) -> None:
    split = _split(cache)
    peer_trials.write_split(split, cache)
    job: dict[str, Any] = {part: str(cache / f"test-{part}.npz") for part in ("training", "shown", "targets")}
    job |= {
        "library": "mrfrec",
        "model": "SLIM",
        "parameters": {"kind": "ItemKNN", "neighbors": 20},
        "k": 100,
    }
    found = peer_models.work({**job, "lists": str(cache / "lists.npy"), "save": True})
    assert 0 < found["file_bytes"] < found["peak_bytes"]
    wanted = ["ndcg@100", "recall@20", "coverage@100"]
    X, targets = (sp.load_npz(job[part]) for part in ("training", "targets"))
    values = measure_lists(np.load(cache / "lists.npy"), split_of(X, targets), wanted)
    model = build("ItemKNN", {"neighbors": 20}).fit(split.training)
    expected = evaluation.evaluate_fitted(model, split.test, wanted)
    for metric in wanted:
        np.testing.assert_array_equal(values[metric], expected.per_user(metric))


def test_points_of_fewer_trials_are_among_those_of_more_and_defaults_come_first() -> None:
    row = peer_trials.Row("mrfrec", "MRF", {"kind": "MRF"}, {"l2": [1, 2, 3, 4], "alpha": [0, 1]}, True)
    few, many, all_of_them = (row.points(trials) for trials in (3, 6, 100))
    assert few == many[:3]
    assert few[0] == all_of_them[0] == {"kind": "MRF"}
    assert len(many) == 6
    assert len({str(point) for point in all_of_them}) == 9
    assert all(point in all_of_them for point in many)


@pytest.mark.slow
def test_l2_times_multiplies_the_automatic_ridge() -> None:
    X = sp.csr_matrix(datasets.load("debian").matrix)
    ridges = []
    for parameters in ({}, {"l2_times": 2.0}):
        peer = peer_models.Own(kind="MRF", alpha=0.25, user_weight=0.5, measure=False, **parameters)
        peer.warm_up(X)
        peer.fit(X)
        ridges.append(peer.model.plan_.l2)
    assert ridges[1] == 2 * ridges[0]


@pytest.mark.slow
def test_peers_are_tuned_measured_and_failures_are_told(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer_trials, "_run", _in_this_process)
    peers.main([str(cache), "debian", "--trials", "2"])
    text = (cache / "peers-debian.md").read_text()
    split = _split(cache)
    points = peers.ROWS[0].points(2)
    assert len(points) == 2
    tuning = split.for_tuning()
    models = [build("ItemKNN", {"neighbors": point["neighbors"]}).fit(tuning.training) for point in points]
    values = [
        evaluation.evaluate_fitted(model, tuning.test, "ndcg@100").mean("ndcg@100").mean for model in models
    ]
    best = models[int(np.argmax(values))]
    expected, other = (
        evaluation.evaluate_fitted(model, split.test, ["ndcg@100", "recall@20"])
        for model in (best, build("Popularity", {}).fit(split.training))
    )
    cells = " | ".join(str(expected.mean(metric)) for metric in expected.values)
    assert f"| MRF, tuned | mrfrec 0.1.0 | {cells} | – | " in text
    assert f"| neighbors={best.parameters['neighbors']} |" in text
    difference = evaluation.paired(other.per_user("ndcg@100"), expected.per_user("ndcg@100"))
    assert f"| {other.mean('recall@20')} | {difference} | " in text
    assert "neighbors=10; 1 of 2 trials failed: neighbors must be" in text
    assert "- EASE (irspack): 1 of 1 trials failed: not installed: no wheel." in text
    assert "- SLIM (irspack): too slow." in text
    assert " items. About.\n" in text
    assert "Closing." in text

    kept = {path: path.stat().st_mtime_ns for path in cache.rglob("*.json")}
    peers.main([str(cache), "debian", "--trials", "2"])
    again = {path.name.split(".")[0] for path, time in kept.items() if path.stat().st_mtime_ns > time}
    assert again == {"EASE"}  # may be installable by now
    assert (cache / "peers-debian.md").read_text() == text
    peers.main([str(cache), "debian", "--trials", "2", "--only", "mrfrec"])
    again = {path.name.split(".")[0] for path, time in kept.items() if path.stat().st_mtime_ns > time}
    assert again == {"EASE", "MRFtuned", "Popularity", "SLIM"}


@pytest.mark.slow
def test_trial_is_stopped_at_its_time_limit(cache: Path) -> None:
    peer_trials.write_split(_split(cache), cache)
    found = peer_trials.trial(peers.ROWS[1], {"kind": "Popularity"}, "test", cache, ["ndcg@100"], 1e-4)
    assert found["failure"] == "more than 0.0001 min"
    again = peer_trials.trial(peers.ROWS[1], {"kind": "Popularity"}, "test", cache, ["ndcg@100"], 5.0)
    assert "failure" not in again  # a longer limit gives it another try
    assert len(again["values"]["ndcg@100"]) == len(_split(cache).test)
