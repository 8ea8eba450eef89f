"""What editors show: every option in the signatures, tables with a type, and names that are for users."""

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args, get_type_hints

import polars as pl
import pytest
from mypy import api

import mrfrec
from mrfrec import Recommender
from mrfrec.answers.question import Question, QuestionOptions
from mrfrec.evaluation import Evaluation
from mrfrec.io.frames import Frame

ROOMS = ("evaluation", "datasets", "models", "nightly", "service")
TABLES = {
    Recommender: ("recommend", "similar_items", "explain", "history", "search"),
}
# Names of parameters that only the caller knows, and those that are refused by name.
FREE = {"set_params", "paper", "grid", "update", "of", "replace"}


def public_functions() -> dict[str, Callable[..., Any]]:
    """Functions and methods of this package that have no underscore."""
    homes = [mrfrec, *(getattr(mrfrec, name) for name in ROOMS)]
    things = {f"{home.__name__}.{name}": getattr(home, name) for home in homes for name in home.__all__}
    for place, thing in list(things.items()):
        if inspect.isclass(thing):
            members = inspect.getmembers(thing, inspect.isroutine)
            things |= {f"{place}.{name}": member for name, member in members if not name.startswith("_")}
    return {
        place: thing for place, thing in things.items()
        if inspect.isroutine(thing) and (getattr(thing, "__module__", None) or "").startswith("mrfrec")
    }  # fmt: skip


def test_no_function_hides_its_options() -> None:
    hidden = {
        place
        for place, function in public_functions().items()
        if any(x.kind is x.VAR_KEYWORD for x in inspect.signature(function).parameters.values())
    }
    assert {place for place in hidden if place.rpartition(".")[2] not in FREE} == set()


@pytest.mark.parametrize("ask", [Recommender.recommend, Recommender.recommend_to])
def test_whoever_recommends_has_all_options_of_a_question(ask: Callable[..., Any]) -> None:
    parameters = inspect.signature(ask).parameters
    types = get_type_hints(QuestionOptions)
    for name, field in Question.model_fields.items():
        assert parameters[name].default == field.default
        assert get_type_hints(Question)[name] == types[name]
        assert f"{name}\n            {field.description}" in (ask.__doc__ or "")


def test_tables_have_a_type_with_the_names_of_polars() -> None:
    assert pl.DataFrame in get_args(Frame)
    for kind, names in TABLES.items():
        for name in names:
            assert inspect.signature(getattr(kind, name)).return_annotation == "Frame", name
    assert inspect.signature(Evaluation.to_frame).return_annotation == "pl.DataFrame | Any"


# What completion offers on a model besides its parameters.
OF_ALL = [
    "fit", "recommend", "recommend_to", "explain", "similar_items", "similar_items_to", "search",
    "plot_neighbors", "history", "scores", "top_k",
    "save", "update", "forget", "set_items", "verify",
    "get_params", "set_params", "parameters", "frames", "explains", "catalogue", "fitted_", "items_",
    "titles_", "popularity_", "users_", "notes_", "reading_", "batches_", "measured_", "timings_",
    "memory_plan_", "plan_", "values_", "threads", "memory_limit", "device",
]  # fmt: skip
OF_MRF = [
    "paper", "add_items", "planned", "pattern_", "rank_weight_", "new_scale_",
    "n_blocks_", "threshold_", "mean_", "scale_", "weights_", "is_sparse",
]  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "own"),
    [("MRF", OF_MRF), ("Popularity", ["weights_", "is_sparse", "dtype"])],
)
def test_completion_offers_what_users_call_and_no_internals(kind: str, own: list[str]) -> None:
    model = getattr(mrfrec.models, kind, mrfrec.MRF)()
    offered = {name for name in dir(model) if not name.startswith("_")}
    assert offered == {*OF_ALL, *own, *model.get_params()}
    assert all(hasattr(type(model), name) for name in {*OF_ALL, *own})


@pytest.mark.slow
def test_type_checker_knows_what_the_methods_return(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import mrfrec\n"
        "model = mrfrec.MRF().fit('events.csv')\n"
        "reveal_type(model.recommend(history=['tea']))\n"
        "reveal_type(model.update('more.csv').similar_items('tea').head(3))\n"
        "reveal_type(mrfrec.datasets.load('debian').to_frame())\n"
    )
    found = api.run(["--strict", "--cache-dir", str(tmp_path / "cache"), str(script)])[0].splitlines()
    types = [line.split('"')[1] for line in found if "Revealed type" in line]
    assert [kind.replace("polars.dataframe.frame.", "") for kind in types] == [
        "DataFrame | Any", "DataFrame | Any", "DataFrame",
    ]  # fmt: skip
