"""scikit-learn's habits: clones and pipelines work, its searches need a scorer of one's own."""

from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import Binarizer
from sklearn.utils import get_tags

from mrfrec import MRF, MrfrecError
from mrfrec.models.registry import build

from matrices import random_matrix

X = sp.csr_array(random_matrix(1, users=40, items=30))


@pytest.mark.parametrize(
    ("kind", "parameters"),
    [
        ("MRF", {"l2": 3.0, "measure": False, "memory_limit": "8GB", "threads": 1}),
        ("EASE", {"l2": 3.0}),
        ("ItemKNN", {"neighbors": 4}),
        ("Popularity", {}),
    ],
)
def test_clone_has_the_parameters_and_nothing_learned(kind: str, parameters: dict[str, Any]) -> None:
    model = build(kind, parameters)
    if kind == "MRF":
        model.fit(X)
    copy = clone(model)
    assert copy.get_params() == model.get_params()
    assert copy is not model
    assert copy._fitted is None


def test_pipeline_fits_and_shows_a_model_which_answers_as_its_last_step() -> None:
    pipeline = make_pipeline(Binarizer(threshold=0.5), MRF(measure=False))
    assert "not fitted" in pipeline._repr_html_().lower()
    pipeline.set_params(mrf__l2=2.0).fit(3 * X)
    assert "not fitted" not in pipeline._repr_html_().lower()
    alone = MRF(measure=False, l2=2.0).fit(X)
    assert pipeline[-1].recommend(history=[1, 2], k=3).equals(alone.recommend(history=[1, 2], k=3))
    assert clone(pipeline)[-1].get_params() == alone.get_params()


def test_searches_and_cross_validation_are_declined_without_a_scorer() -> None:
    message = r"MRF has no score .* Use mrfrec.evaluation: tune .* scores\(X\) returns"
    with pytest.raises(MrfrecError, match=message):
        MRF().score  # noqa: B018
    search = GridSearchCV(MRF(measure=False), {"l2": [1.0, 2.0]}, cv=2)
    asks: list[Any] = [lambda: search.fit(X), lambda: cross_val_score(MRF(), X, cv=2)]
    for ask in asks:
        with pytest.raises(TypeError, match="no scoring is specified"):
            ask()


def test_hasattr_and_tags_tell_what_a_model_has_and_takes() -> None:
    assert not hasattr(MRF(), "score")
    assert getattr(MRF(), "score", None) is None
    assert not hasattr(make_pipeline(Binarizer(), MRF()), "score")
    assert get_tags(MRF()).input_tags.sparse


def test_search_by_a_scorer_of_ones_own_works() -> None:
    def found(model: Any, X: Any, y: Any = None) -> float:
        shown, first = X.copy(), X.indptr[:-1]
        shown.data[first] = 0
        return float((model.top_k(shown, 5)[0] == X.indices[first][:, None]).any(axis=1).mean())

    users = X[np.diff(X.indptr) > 0]
    search = GridSearchCV(MRF(measure=False), {"l2": [1.0, 500.0]}, cv=2, scoring=found).fit(users)
    assert search.best_params_["l2"] in (1.0, 500.0)
    assert search.best_score_ > 0
