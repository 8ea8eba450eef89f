"""Models by name, and models written by users: registered, saved, loaded."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import scipy.sparse as sp

import mrfrec
from mrfrec import MRF, ModelFileError, ParameterError, Recommender
from mrfrec.evaluation.tuning import checked_space
from mrfrec.models import ItemKNN, Linear, registry
from mrfrec.models.compiling import warm_up
from mrfrec.models.registry import MODELS, build, kind_named, model_class

from matrices import random_matrix

X = sp.csr_array(random_matrix(2, users=40, items=20))


class Scaled(MRF):
    """A model of a user, with parameters that are positional, required, and fixed."""

    search_space: ClassVar[dict[str, Any]] = {"factor": (0.5, 2.0)}

    def __init__(self, factor: float, shift: float = 0.0, *, threads: int | None = None) -> None:
        super().__init__(l2=2.0, offset=True, threads=threads)
        self.factor, self.shift = factor, shift

    def _fit(self, data: Any, context: Any) -> Any:
        learned = super()._fit(data, context)
        scores = (learned.base_scores * self.factor + self.shift).astype(np.float32)
        return replace(learned, base_scores=scores)


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_registered", {})


def test_a_registered_model_is_saved_and_loaded(tmp_path: Path) -> None:
    path = tmp_path / "own.mrf"
    assert mrfrec.register(Scaled) is Scaled
    assert mrfrec.register(Scaled) is Scaled  # twice does no harm
    model = Scaled(3.0, 0.25).fit(X)
    assert model.parameters == {"factor": 3.0, "shift": 0.25}
    model.save(path, include_histories=True)
    loaded = mrfrec.load(path)
    assert type(loaded) is Scaled
    assert loaded.parameters == model.parameters
    assert repr(loaded) == repr(model)
    assert loaded.recommend(k=4).equals(model.recommend(k=4))
    assert loaded.recommend(history=[], k=4).equals(model.recommend(history=[], k=4))
    assert model_class("scaled") is Scaled
    assert build("Scaled", {"factor": 2.0}, {"threads": 1}).threads == 1
    assert checked_space("Scaled", {}, None) == {"factor": (0.5, 2.0)}
    with pytest.raises(ParameterError, match="all that Scaled requires: factor"):
        build("Scaled", {"shift": 1.0})


OWN = """
import mrfrec
from mrfrec.cli import main
from mrfrec.models.baselines import Popularity

@mrfrec.register
class Own(Popularity):
    def __init__(self, note="x"):
        self.note = note

if __name__ == "__main__":
    main()
"""


def test_a_script_that_registers_it_gives_the_command_line_the_model(tmp_path: Path) -> None:
    path, script = tmp_path / "own.mrf", tmp_path / "shop.py"
    script.write_text(OWN)
    (tmp_path / "events.csv").write_text("user,item\n1,5\n2,5\n2,6\n")
    for command, expected in (
        ("fit events.csv --model Own:note=kept -o own.mrf", ""),
        (
            "recommend own.mrf --history 6 -k 1 --format csv",
            "user,item,title,score,rank,source\n0,5,,2.0,1,popular\n",
        ),
    ):
        typed = [sys.executable, str(script), *command.split()]
        done = subprocess.run(typed, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout) == (0, expected), done.stderr
    with pytest.raises(ModelFileError, match=r"holds a 'Own'.*import it and call mrfrec\.register"):
        mrfrec.load(path)


class Shares(Linear):
    """The share of the users of an item who have another, too."""

    def __init__(self, sparse: bool = False) -> None:
        self.sparse = sparse

    def _fit(self, data: Any, given: Any) -> Any:
        counts = (data.matrix.T @ data.matrix).toarray()
        users = counts.diagonal().copy()
        np.fill_diagonal(counts, 0)
        B = counts / np.maximum(users, 1)[:, None]
        return self.learned(sp.csr_array(B) if self.sparse else B, base=users)


@pytest.mark.parametrize("sparse", [False, True])
def test_an_own_model_sets_its_weights_and_base_scores(sparse: bool, tmp_path: Path) -> None:
    model = mrfrec.register(Shares)(sparse).fit(X)
    assert model.is_sparse == sparse
    B = model.weights_.toarray() if sparse else model.weights_
    np.testing.assert_allclose(model.scores(X), X @ B + model.popularity_, rtol=1e-5)
    assert model.timings_.keys() == {"total"}
    assert model.memory_plan_ == {}
    model.save(tmp_path / "own.mrf", include_histories=True)
    assert mrfrec.load(tmp_path / "own.mrf").recommend(k=4, explain=2).equals(model.recommend(k=4, explain=2))
    for wrong in (B[:, :3], 3):
        with pytest.raises(ParameterError, match="weights must be a matrix of items × items"):
            model.learned(wrong)


class Told(Linear):
    """Weights and base scores that are given, for any data."""

    def __init__(self, weights: Any, base: Any = 0.0) -> None:
        self.weights, self.base = weights, base

    def _fit(self, data: Any, context: Any) -> Any:
        return self.learned(self.weights, self.base)


@pytest.mark.parametrize("form", [np.array, sp.csr_array])
def test_weights_that_are_not_finite_or_of_other_items_are_refused(form: Any) -> None:
    B = np.ones((20, 20))
    B[3, 4], B[5, 6] = np.nan, 1e300  # which is no float32
    with (
        np.errstate(over="ignore"),
        pytest.raises(
            ParameterError, match=r"^weights must be finite numbers, also as float32; got '2 of 400"
        ),
    ):
        Told(form(B)).fit(X)
    with pytest.raises(ParameterError, match="base must be finite numbers, also as float32"):
        Told(form(np.eye(20)), np.inf).fit(X)
    with pytest.raises(
        ParameterError, match=r"base must be one number, or one for each of 20 items; got \(3,"
    ):
        Told(form(np.eye(20)), np.zeros(3)).fit(X)
    with pytest.raises(ParameterError, match="what _fit returns must be about the 20 items of the data; got"):
        Told(form(np.eye(7))).fit(X)


def test_weights_whose_rows_do_not_ascend_explain_the_same() -> None:
    narrow = X.astype(np.float32)
    B = narrow.T.tocsr() @ narrow
    assert not B.has_sorted_indices
    before = B.indices.copy()
    model = Told(B).fit(X)
    np.testing.assert_array_equal(B.indices, before)
    every = np.arange(20)
    told = model.fitted_.learned.weights_between(every, np.ones(20), every)
    np.testing.assert_array_equal(told, B.toarray())


def test_an_own_model_is_fitted_to_no_data_but_that_of_its_user() -> None:
    class Demanding(Told):
        def _fit(self, data: Any, context: Any) -> Any:
            assert data.n_items == 20, "not the data of the user"
            return super()._fit(data, context)

    class Nearest(ItemKNN):
        def _fit(self, data: Any, context: Any) -> Any:
            assert data.n_items == 20, "not the data of the user"
            return super()._fit(data, context)

    warm_up(Demanding(np.eye(20)))
    warm_up(Nearest(neighbors=2))


def test_a_diagonal_counts_where_items_of_the_history_are_scored() -> None:
    model = Told(2 * np.eye(20)).fit(X)
    had = model.items_[3]
    assert model.similar_items(had, k=1)["item"].to_list() == [had]
    np.testing.assert_array_equal(model.scores(sp.csr_array(np.eye(20)[3:4])), 2 * np.eye(20)[3:4])
    assert model.recommend(history=[had], k=3)["score"].to_list() == [0.0] * 3
    assert model.recommend(history=[had], k=1, exclude_seen=False)["score"].to_list() == [2.0]


def test_classes_that_could_not_be_loaded_again_are_not_registered(tmp_path: Path) -> None:
    class Open(MRF):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(**options)

    class Forgetful(MRF):
        def __init__(self, depth: int = 3) -> None:
            super().__init__()

    class itemKNN(MRF):  # noqa: N801
        pass

    other = type("Scaled", (MRF,), {"__module__": "elsewhere"})
    with pytest.raises(ParameterError, match=r"takes every parameter by name, and no 'args'; got 'Open'"):
        mrfrec.register(Open)
    with pytest.raises(ParameterError, match="takes every parameter by name"):
        Open().fit(X)
    with pytest.raises(ParameterError, match="sets no depth; got 'Forgetful'"):
        mrfrec.register(Forgetful)().fit(X)
    with pytest.raises(ParameterError, match=r"whose name no other model has.*ItemKNN is taken"):
        mrfrec.register(itemKNN)
    mrfrec.register(Scaled)
    with pytest.raises(ParameterError, match="whose name no other model has"):
        mrfrec.register(other)
    for wrong in (MRF.paper(), int, Linear, Recommender, "MRF"):
        with pytest.raises(ParameterError, match="a class derived from Recommender, without abstract"):
            mrfrec.register(wrong)  # type: ignore[type-var]


def test_a_parameter_that_json_cannot_hold_is_refused_when_saving(tmp_path: Path) -> None:
    model = Scaled(2.0, complex(1))  # type: ignore[arg-type]
    model.shift = 0.0
    model.fit(X)
    model._fitted = replace(model.fitted_, parameters={"factor": 2.0, "shift": complex(1)})
    with pytest.raises(ModelFileError, match=r"must be what JSON can hold.*complex"):
        model.save(tmp_path / "own.mrf")
    assert not list(tmp_path.iterdir())


OUT_OF_RANGE: dict[str, dict[str, Any]] = {
    "EASE": {"l2": -1, "sparsity": 2.0},
    "EDLAE": {"dropout": 1.0},
    "ItemKNN": {"neighbors": 0, "shrink": -1, "user_weight": -1, "normalize": 1},
}


@pytest.mark.parametrize("kind", OUT_OF_RANGE)
def test_parameters_out_of_range_are_refused_by_name(kind: str) -> None:
    for name, value in OUT_OF_RANGE[kind].items():
        with pytest.raises(ParameterError, match=f"{name} must be .*got {value!r}"):
            build(kind, {name: value})


def test_every_model_says_what_it_needs() -> None:
    for kind in MODELS:
        own = model_class(kind)
        assert own.__name__ == kind
        assert own.search_space.keys() <= own.defaults().keys() - set(own.machine_parameters)
        assert len([each for each in own.__mro__ if issubclass(each, Recommender)]) <= 4
    assert kind_named("item_knn") == "ItemKNN"
    assert kind_named("nothing") is None
