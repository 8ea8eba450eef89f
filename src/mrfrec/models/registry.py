"""Find models by name, build them from parameters, and load them from files.

To add a model to the package, write its module and add a line to `MODELS`; the class says what tuning varies.
Models outside the package are made known by `register`.
"""

import inspect
from collections.abc import Mapping
from difflib import get_close_matches
from importlib import import_module
from os import PathLike
from typing import Any, TypeVar

from mrfrec.checks import check_frames, check_threads, counted, warn
from mrfrec.data.erasures import Erasures
from mrfrec.errors import ModelFileError, ParameterError
from mrfrec.io.artifact import open_file
from mrfrec.io.atomic import expanded
from mrfrec.models.recommender import Recommender, restored

MODELS = {
    "MRF": "mrfrec.models.mrf.model",
    "EASE": "mrfrec.models.baselines",
    "EDLAE": "mrfrec.models.baselines",
    "Popularity": "mrfrec.models.baselines",
    "ItemKNN": "mrfrec.models.baselines",
}
"""Module of every model of this package, by name."""

Model = TypeVar("Model", bound=type[Recommender])
_registered: dict[str, type[Recommender]] = {}


def register(model: Model) -> Model:
    """Make your own model class known, so that `mrfrec.load` can open its files. Works as a decorator.

        @mrfrec.register
        class MyModel(mrfrec.MRF): ...

    Register the class in every process that loads its files. Its constructor must take every parameter by
    name and keep it as an attribute of the same name; in a file, parameters are stored as JSON.
    """
    if not (inspect.isclass(model) and issubclass(model, Recommender)) or inspect.isabstract(model):
        raise ParameterError("model", "a class derived from Recommender, without abstract methods", model)
    name = model.__name__
    taken, old = kind_named(name), _registered.get(name)
    # A notebook cell that is run again defines the class again; the latest class counts.
    is_same = old is not None and _home(old) == _home(model)
    if taken is not None and not is_same:
        raise ParameterError(
            "model", "a class whose name no other model has", name, f"Rename it: {taken} is taken."
        )
    model.defaults()  # refuses constructors whose parameters cannot be named
    _registered[name] = model
    return model


def _home(model: type) -> tuple[str, str]:
    """Return the module and the qualified name of a class."""
    return model.__module__, model.__qualname__


def kind_named(name: str) -> str | None:
    """Return the kind of model for a name in any spelling, such as "item knn"; None if there is none."""
    return _kinds().get(_simplified(name))


def nearest_kind(name: str) -> str | None:
    """Return the kind of model with the most similar name; None if no name is close."""
    kinds = _kinds()
    near = get_close_matches(_simplified(name), kinds, 1, cutoff=0.7)
    return kinds[near[0]] if near else None


def _kinds() -> dict[str, str]:
    return {_simplified(kind): kind for kind in (*MODELS, *_registered)}


def _simplified(name: str) -> str:
    """Return a name in lower case, without hyphens, underscores and spaces."""
    return "".join(character for character in name.lower() if character not in "-_ ")


def model_class(kind: str) -> type[Recommender]:
    """Return the class of a kind of model; raise an error with a similar name if there is none."""
    name = kind_named(kind) if isinstance(kind, str) else None
    if name is None:
        near = nearest_kind(kind) if isinstance(kind, str) else None
        advice = f"Did you mean {near}?" if near else ""
        raise ParameterError("model", f"one of {', '.join((*MODELS, *_registered))}", kind, advice)
    if name in _registered:
        return _registered[name]
    model: type[Recommender] = getattr(import_module(MODELS[name]), name)
    return model


def kind_of(model: "str | type[Recommender] | Recommender") -> tuple[str, dict[str, Any]]:
    """Return the kind of a model, given its name, class or instance, and the parameters of an instance."""
    if isinstance(model, str) or not (inspect.isclass(model) or isinstance(model, Recommender)):
        return model_class(model).__name__, {}
    given = model if inspect.isclass(model) else type(model)
    if kind_named(given.__name__) is None or model_class(given.__name__) is not given:
        rule = f"one of {', '.join((*MODELS, *_registered))}"
        raise ParameterError("model", rule, model, "Call mrfrec.register with your own class first.")
    if not isinstance(model, Recommender):
        return given.__name__, {}
    usual = given.defaults()
    return given.__name__, {name: x for name, x in model.parameters.items() if x != usual[name]}


def build(kind: str, parameters: Mapping[str, Any], machine: Mapping[str, Any] | None = None) -> Recommender:
    """Build a model from the name of its kind and its parameters.

    `machine` has parameters that change no result, such as threads. Those that are None, or that this model
    does not have, are left out.
    """
    model = model_class(kind)
    known = model.defaults()
    for name in parameters:
        if name not in known:
            rule = f"among {', '.join(known)} ({model.__name__})" if known else f"none for {model.__name__}"
            near = get_close_matches(str(name), known, 1)
            raise ParameterError("parameters", rule, name, f"Did you mean {near[0]}?" if near else "")
    of_machine = {name: x for name, x in (machine or {}).items() if name in known and x is not None}
    arguments = {**parameters, **of_machine}
    missing = [name for name, x in known.items() if x is inspect.Parameter.empty and name not in arguments]
    if missing:
        rule = f"all that {model.__name__} requires: {', '.join(missing)}"
        raise ParameterError("parameters", rule, dict(parameters))
    return model(**arguments)


def load(path: str | PathLike[str], *, frames: str | None = None) -> Recommender:
    """Open a saved model. The arrays stay in the file and are checked when they are first used.

    `frames` is the library of the tables that the model returns: "polars", "pandas" or "pyarrow". By default
    it is the library of the data frame that the model was fitted on, if installed, else polars.
    """
    check_frames(frames)
    expanded(path)  # Raises if it is not the name of a file.
    facts, arrays = open_file(path)
    if "table" in facts:
        check_threads("opening a model with a table of items")
    try:
        kind = facts["model"]
        if kind not in MODELS and kind not in _registered:
            raise ModelFileError(
                f"{path} holds a {kind!r}; this mrfrec knows {', '.join((*MODELS, *_registered))}. If "
                "it is a class of your own, import it and call mrfrec.register with it first; otherwise "
                "upgrade mrfrec."
            )
        model = restored(model_class(kind), facts, arrays)
        model.frames = frames
    except ModelFileError:
        raise
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError) as error:
        reason = f": {str(error).rstrip('.')}" if isinstance(error, KeyError | ParameterError) else ""
        raise ModelFileError(
            f"{path} lacks a part of a model, or has one that this mrfrec does not know{reason}."
        ) from error
    fitted = model.fitted_
    beside = fitted.beside or Erasures()
    if later := beside.beyond(fitted.erased):
        warn(
            f"{path} does not know of {counted(later, 'erasure')} in the file beside it, so that it may have "
            f"people who were forgotten. mrfrec forget {path}, an update or a nightly job removes them."
        )
    return model
