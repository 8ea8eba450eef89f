"""Tuning: equal to plain fits, the same again, resumable, never on the test users; what trials share."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import Any

import matplotlib
import numpy as np
import optuna
import pytest
import scipy.sparse as sp

from mrfrec import MRF, DataError, Interactions, MissingLibraryError, MrfrecWarning, ParameterError
from mrfrec.cli.app import run as run_command
from mrfrec.core import blocks, closed_form, pattern, statistics
from mrfrec.data.catalogue import DataSize
from mrfrec.data.ids import Ids
from mrfrec.evaluation import Tuning, at_time, compare, strong_generalisation, tune
from mrfrec.evaluation.protocol import evaluate, fit_and_evaluate
from mrfrec.evaluation.questions import Questions, Split, popularity_differs
from mrfrec.evaluation.results import Comparison, of_comparison
from mrfrec.evaluation.tuning import of_tuning
from mrfrec.models import EASE, Popularity
from mrfrec.models.registry import MODELS, build, model_class

from matrices import pairs_of, random_matrix, visits

SPACE: dict[str, Any] = {"l2": (1, 100, "log"), "sparsity": [None, 0.3]}


def split_of(users: int, heldout: int) -> Split:
    return strong_generalisation(pairs_of(random_matrix(8, users=users)), heldout)


@pytest.fixture(scope="module")
def split() -> Split:
    return split_of(160, 30)


@pytest.fixture(scope="module")
def timed() -> Split:
    return at_time(visits(400))


def points_of(tuning: Tuning) -> list[tuple[Any, ...]]:
    """What does not depend on the clock."""
    return [(trial.parameters, trial.value, trial.error, trial.gain) for trial in tuning.trials]


def test_the_usual_metric_has_no_more_places_than_there_are_items(split: Split) -> None:
    m = split.training.n_items
    assert m < 50
    assert str(tune("ItemKNN", split, trials=1).metric) == f"ndcg@{m}"
    found = evaluate(MRF(), split).values
    assert [str(metric) for metric in found] == [f"ndcg@{m}", "recall@20", f"recall@{m}"]


# ── what fits have in common ──────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("kind", [{"sparsity": None}, {"sparsity": 0.3}, {"sparsity": 0.2, "r": 0.4}])
def test_fits_that_share_what_they_have_in_common_are_the_same_to_the_bit(kind: dict[str, Any]) -> None:
    """Also where r or the sparsity changes: nothing is mixed up."""
    data = Interactions(sp.csr_array(random_matrix(3, real=True)))
    reuse: dict[str, Any] = {}
    double: list[dict[str, Any]] = [{"l2": 2.0, "dtype": "float64"}, {"l2": 3.0, "dtype": "float64"}]
    others: list[dict[str, Any]] = [
        {"l2": 2.0, "r": r, "sparsity": level} for r in (0.0, 0.5, 0.0) for level in (0.2, 0.4, 0.2)
    ]
    for parameters in (
        {"l2": 2.0}, {"l2": 5.0}, {"l2": 5.0, "alpha": 0.5}, {"l2": 5.0, "offset": True}, {"l2": 2.0},
        {"l2": 2.0, "user_weight": 0.5}, *double, *(others if kind == {"sparsity": 0.3} else ()),
    ):  # fmt: skip
        alone, together = (MRF.paper(**{**kind, **parameters}) for _ in range(2))
        alone.fit(data)
        together.fit(data, reuse=reuse)
        assert (alone.weights_ != together.weights_).sum() == 0
        assert together.timings_.keys() == alone.timings_.keys()
        assert alone.n_blocks_ == together.n_blocks_
        if alone.pattern_ is not None:
            assert (alone.pattern_ != together.pattern_).nnz == 0


def done_again(*_: object, **__: object) -> None:
    raise AssertionError("done again")


@pytest.mark.parametrize("sparsity", [None, 0.3])
def test_a_new_l2_repeats_nothing_but_the_solution(
    sparsity: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = Interactions(sp.csr_array(random_matrix(3)))
    reuse: dict[str, Any] = {}
    MRF.paper(l2=1.0, sparsity=sparsity).fit(data, reuse=reuse)
    for module, name in (
        (statistics, "moments"),
        (pattern, "find_pattern"),
        (closed_form, "scaled_matrix"),
        (blocks, "gather_blocks"),
    ):
        monkeypatch.setattr(module, name, done_again)
    MRF.paper(l2=2.0, sparsity=sparsity).fit(data, reuse=reuse)
    with pytest.raises(AssertionError, match="done again"):
        MRF.paper(l2=2.0, alpha=0.1, sparsity=sparsity).fit(data, reuse=reuse)


@pytest.mark.parametrize("sparsity", [None, 0.3])
def test_novelty_and_the_weight_of_the_low_rank_part_need_no_fit(
    sparsity: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = Interactions(sp.csr_array(random_matrix(3)))
    reuse: dict[str, Any] = {}
    settings: list[Any] = [
        {"novelty": g, "rank": k, "rank_weight": w}
        for g, k, w in ((0.1, 4, 0.3), (0.3, 4, 0.6), (0.0, 0, 0.3))
    ]
    expected = [MRF(sparsity=sparsity, **more).fit(data) for more in settings]
    MRF(sparsity=sparsity).fit(data, reuse=reuse)
    monkeypatch.setattr(closed_form, "closed_form", done_again)
    monkeypatch.setattr(blocks, "estimate_weights", done_again)
    for one, more in zip(expected, settings, strict=True):
        model = MRF(sparsity=sparsity, **more).fit(data, reuse=reuse)
        assert (model.weights_ != one.weights_).sum() == 0
        assert np.array_equal(model.scores(data.matrix), one.scores(data.matrix))
    with pytest.raises(AssertionError, match="done again"):
        MRF(sparsity=sparsity, l2=2.0).fit(data, reuse=reuse)


def test_what_is_known_of_other_data_is_not_taken() -> None:
    """Nor of the same numbers in other Interactions."""
    X = sp.csr_array(random_matrix(3))
    reuse: dict[str, Any] = {}
    MRF.paper().fit(X, reuse=reuse)
    with pytest.raises(DataError, match="reuse holds results of other data: pass the same Interactions"):
        MRF.paper().fit(X, reuse=reuse)


# ── tuning ────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("kind", ["MRF", "EASE", "ItemKNN"])
def test_every_trial_is_measured_on_the_validation_users(split: Split, kind: str) -> None:
    found = tune(kind.lower(), split, trials=4, metric="ndcg@10")
    assert (found.model, len(found.trials)) == (kind, 4)
    assert split.validation is not None
    asked = replace(split, test=split.validation)
    start = evaluate(build(kind, {}), asked, ["ndcg@10"])
    for trial in found.trials:
        expected = evaluate(build(kind, trial.parameters), asked, ["ndcg@10"])
        mean = expected.mean("ndcg@10")
        assert (trial.value, trial.error) == pytest.approx((mean.mean, mean.error))
        assert (trial.seconds or 0) > 0
        if trial.gain is not None:
            pair = Comparison([replace(start, model="start"), expected]).paired(expected.model, "ndcg@10")
            assert trial.gain == pytest.approx(pair, abs=1e-9)
    assert [trial.gain is None for trial in found.trials] == [True, False, False, False]
    assert found.trials[0].value == start.mean("ndcg@10").mean
    assert found.best.value == max(trial.value or 0 for trial in found.trials)
    assert len({trial.value for trial in found.trials}) > 1


def test_trials_keep_what_the_first_has_measured_and_what_the_model_fixes(timed: Split) -> None:
    found = tune(MRF(alpha=0.75, novelty=0.1), timed, trials=4, metric="ndcg@10")
    start, *others = (trial.parameters for trial in found.trials)
    measured = MRF(alpha=0.75, novelty=0.1).fit(timed.for_tuning().training)
    for name, value in measured.values_.items():
        if name not in ("alpha", "novelty") and name in start:
            assert start[name] == value, name
    assert {"l2", "recency"} <= start.keys()
    for point in others:
        assert (point["alpha"], point["novelty"], point["measure"]) == (0.75, 0.1, False)
        assert point.keys() == start.keys()
        assert start["l2"] / 5 <= point["l2"] <= 5 * start["l2"]
    assert len({point["l2"] for point in others}) == 3
    if start.get("half_life") is not None:
        assert all(type(point["half_life"]) is str for point in others)
    assert type(evaluate(MRF(**found.best.parameters), timed, "ndcg@10").mean("ndcg@10").mean) is float


def test_the_same_arguments_give_the_same_trials_and_another_seed_others(split: Split) -> None:
    one, two = (tune("EASE", split, trials=8, space=SPACE, metric="ndcg@10") for _ in range(2))
    other = tune("EASE", split, trials=8, space=SPACE, metric="ndcg@10", seed=1)
    assert points_of(one) == points_of(two)
    assert [p[0] for p in points_of(one)] != [p[0] for p in points_of(other)]
    assert {trial.parameters["sparsity"] for trial in one.trials[1:]} == {None, 0.3}
    assert all(1 <= trial.parameters["l2"] <= 100 for trial in one.trials[1:])


def test_the_targets_of_the_test_users_change_nothing(split: Split) -> None:
    found = tune("EASE", split, trials=3, metric="ndcg@10")
    other = replace(split, test=replace(split.test, targets=split.test.shown, shown=split.test.targets))
    with pytest.warns(MrfrecWarning, match=r"users show 11\.\d items in validation and 2\.\d+ in the test"):
        again = tune("EASE", other, trials=3, metric="ndcg@10")
    assert points_of(again) == points_of(found)


@pytest.mark.parametrize("place", ["trials.journal", "sqlite:///{}/trials.db"])
def test_a_tuning_goes_on_where_it_was_to_the_same_end(
    split: Split, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    storage: Any = place.format(tmp_path) if ":" in place else tmp_path / place
    given: dict[str, Any] = {"space": SPACE, "metric": "ndcg@10"}
    whole = tune("EASE", split, trials=8, **given)
    tried: list[object] = []

    def counted(model: Any, *arguments: Any, **named: Any) -> Any:
        tried.append(model)
        if len(tried) == 5:
            raise KeyboardInterrupt
        return fit_and_evaluate(model, *arguments, **named)

    monkeypatch.setattr("mrfrec.evaluation.tuning.fit_and_evaluate", counted)
    with pytest.raises(KeyboardInterrupt):
        tune("EASE", split, trials=8, storage=storage, **given)
    found = tune("EASE", split, trials=8, storage=storage, **given)
    assert len(tried) == 5 + 4
    assert points_of(found) == points_of(whole)
    assert points_of(tune("EASE", split, trials=3, storage=storage, **given)) == points_of(whole)[:3]
    tune("EASE", split, trials=2, storage=storage, **{**given, "metric": "recall@10"})  # lies beside it
    assert len(tried) == 9 + 2


def test_a_point_that_cannot_be_fitted_is_no_end(split: Split, monkeypatch: pytest.MonkeyPatch) -> None:
    found = tune("EASE", split, trials=6, space={"l2": [1.0, 0.0]}, metric="recall@5")
    failed = [trial for trial in found.trials if trial.value is None]
    assert failed  # twins among the items: singular without a ridge
    assert all("not positive definite" in str(trial.failure) for trial in failed)
    assert found.best.value is not None
    assert "could not be fitted" in repr(found)


def test_the_study_is_optunas_and_can_be_drawn(split: Split) -> None:
    found = tune("EASE", split, trials=4, space=SPACE, metric="ndcg@10")
    assert isinstance(found.study, optuna.Study)
    assert found.study.best_value == found.best.value
    before = {**matplotlib.rcParams, "backend": ""}
    figure = found.plot()
    assert {axes.get_xlabel() for axes in figure.axes} >= {"l2", "sparsity"}
    assert {**matplotlib.rcParams, "backend": ""} == before


def test_the_best_parameters_are_written_for_others_to_take(split: Split, tmp_path: Path) -> None:
    found = tune(MRF(max_neighbors=20), split, trials=3, metric="ndcg@10", space={"sparsity": [0.4]})
    found.save(tmp_path / "best.json")
    written = json.loads((tmp_path / "best.json").read_text())
    assert (written["model"], written["tuned"]["value"]) == ("MRF", found.best.value)
    assert written["parameters"] == MRF(**found.best.parameters).parameters
    assert (written["parameters"]["max_neighbors"], written["tuned"]["trials"]) == (20, 3)


def test_every_model_varies_what_it_has_within_its_rules() -> None:
    for kind in MODELS:
        made = model_class(kind)
        assert made.search_space.keys() <= made.defaults().keys() - set(made.machine_parameters)
        for name, given in made.search_space.items():
            bounds = given if isinstance(given, list) else [x for x in given[:2] if "times" not in given]
            for value in bounds:
                build(kind, {name: value})


WRONG: list[tuple[Callable[[Split], Any], str]] = [
    (lambda split: tune("EASE", split, trials=0), "trials must be a whole number, 1 or more"),
    (lambda split: tune("EASE", split, space={"l3": [1]}), "space must be of parameters of EASE: l2"),
    (lambda split: tune("EASE", split, space={"threads": [1]}), "space must be of parameters of EASE: l2"),
    (lambda split: tune("EASE", split, space={"l2": (3, 1)}), r"space: l2 must be a list of values, \(low"),
    (lambda split: tune("EASE", split, space={"l2": (0, 1, "log")}), "space: l2 must be a list of values"),
    (lambda split: tune("EASE", split, space={"l2": 3}), "space: l2 must be a list of values"),  # type: ignore[dict-item]
    (lambda split: tune("EASE", split, space={"l2": (-1, 1)}), "l2 must be"),
    (lambda split: tune("EASE", split, space=3), "space must be ranges by parameter"),  # type: ignore[arg-type]
    (lambda split: tune("Popularity", split), "space must be given for Popularity, which has no usual one"),
    (lambda split: tune("EASE", split, storage=3), "storage must be a file, the URL"),  # type: ignore[arg-type]
    (lambda split: tune("EASE", split, storage="/"), "storage must be a file, the URL"),
    (lambda split: tune("EASE", split, metric="ndcg"), "metric must be"),
    (lambda split: tune("EAZE", split), "model must be one of .* Did you mean EASE"),
    (lambda split: tune("EASE", split.training), "Make one of the data: evaluation.at_time"),  # type: ignore[arg-type]
]


@pytest.mark.parametrize(("wrong", "message"), WRONG, ids=[message for _, message in WRONG])
def test_wrong_arguments_are_named(
    split: Split, wrong: Callable[[Split], Any], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mrfrec.evaluation.tuning.fit_and_evaluate", lambda *_, **__: pytest.fail("tried"))
    with pytest.raises((ParameterError, DataError), match=message):
        wrong(split)


def test_without_optuna_no_data_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "optuna", None)
    with pytest.raises(MissingLibraryError, match="tuning needs Optuna"):
        run_command(["tune", "nope.csv", "-o", "best.json"], Event())


def test_without_optuna_the_extra_is_named(split: Split, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "optuna", None)
    with pytest.raises(MissingLibraryError, match=r"tuning needs Optuna: .*\[tune\]"):
        tune("EASE", split)


def test_a_warning_tells_of_the_other_model_that_a_fit_to_all_data_would_be(split: Split) -> None:
    part = replace(split, whole=DataSize(50_000, 30_000, 1_000_000, True))
    with pytest.warns(MrfrecWarning, match=r"evaluated is a dense model.*all the data.*be a sparse model"):
        evaluate(MRF(), part, "ndcg@10")
    with pytest.warns(MrfrecWarning, match="be a sparse model") as caught:
        found = tune(EASE(l2=3.0), part, trials=2, metric="ndcg@10", space={"l2": (1, 9)})
    assert len(caught) == 1
    assert [str(trial.plan)[:14] for trial in found.trials] == ["dense model (l"] * 2


def test_the_gain_over_the_start_is_in_the_table(split: Split) -> None:
    found = tune("EASE", split, trials=14, metric="ndcg@10")
    (table,) = of_tuning(found).sections
    assert table.columns == ["l2", "nDCG@10 (validation)", "over the start", "training"]
    assert [row[2] for row in table.rows].count("start") == 1
    assert len(table.rows) in (10, 11)
    assert table.rows[0][2] == str(found.best.gain) if found.best.gain else "start"
    frame = found.to_frame()
    assert frame["ndcg@10"].to_list() == [trial.value for trial in found.trials]
    assert frame["gain"].to_list() == [trial.gain and trial.gain.difference for trial in found.trials]


def test_progress_counts_the_trials(split: Split) -> None:
    told: list[tuple[str, int, int]] = []
    tune("EASE", split, trials=3, metric="ndcg@10", progress=lambda *step: told.append(step))
    assert {stage[:8] for stage, *_ in told} >= {"trial 1:", "trial 2:", "trial 3:"}
    shares = [done / total for _, done, total in told if total]
    assert shares == sorted(shares)
    assert shares[-1] == 1.0


# ── validation users that are unlike the test users ───────────────────────────────────────────────


def test_questions_of_other_popularity_are_worth_a_warning(split: Split) -> None:
    assert popularity_differs(split.for_tuning(), split) is None
    X = split.training
    rare = np.argsort(X.popularity)[:5]
    hidden = np.zeros((40, X.n_items), np.float32)
    hidden[np.arange(40), np.resize(rare, 40)] = 1
    shown = split.training.matrix[:40]
    odd = Split(X, Questions(Ids.range(40), shown, sp.csr_array(hidden)), split.validation, "odd")
    with pytest.warns(
        MrfrecWarning, match=r"the hidden items have [\d.]+ users each in validation and [\d.]+"
    ):
        tune("ItemKNN", odd, trials=1, metric="ndcg@10")


def test_a_comparison_notes_which_models_are_untuned(split: Split) -> None:
    models = {
        "as it is": MRF(), "dense": MRF(sparsity=None), "tuned": MRF(l2=3.0), "novel": MRF(novelty=0.2),
        "ridge": EASE(), "another": EASE(l2=7.0), "popular": Popularity(),
    }  # fmt: skip
    report = of_comparison(compare(models, split, "ndcg@10"))
    assert report.data["untuned"] == ["as it is", "ridge"]
    (note,) = [note for note in report.notes if note.startswith("Untuned")]
    assert all(name in note for name in ("as it is", "ridge"))
    tuned = compare({name: models[name] for name in ("tuned", "another")}, split, "ndcg@10")
    assert not [note for note in of_comparison(tuned).notes if "ntuned" in note]
