"""Every kind of model by name: build one from parameters, and load one from a file."""

from collections.abc import Mapping
from difflib import get_close_matches
from functools import partial
from importlib import import_module
from os import PathLike
from typing import Any

from mrfrec.data.catalogue import Catalogue
from mrfrec.errors import ModelFileError, ParameterError
from mrfrec.io.artifact import open_file
from mrfrec.models.recommender import Recommender
from mrfrec.models.stored import read_ids, read_texts, read_training, shaped

__all__ = ["MODELS", "build", "kind_named", "load", "model_class", "nearest_kind"]

MODELS = {
    "MRF": "mrfrec.models.mrf",
    "EASE": "mrfrec.models.family",
    "EDLAE": "mrfrec.models.family",
    "Popularity": "mrfrec.models.neighborhood",
    "ItemKNN": "mrfrec.models.neighborhood",
    "SLIM": "mrfrec.models.slim",
    "FsSLIM": "mrfrec.models.slim",
    "WMF": "mrfrec.models.wmf",
    "CDAE": "mrfrec.models.autoencoders",
    "MultDAE": "mrfrec.models.autoencoders",
    "MultVAE": "mrfrec.models.autoencoders",
}
"""Where each kind of model that a file may hold is found."""


def kind_named(name: str) -> str | None:
    """The kind a name stands for, however it is written (Mult-VAE, item knn); None if there is none."""
    plain = _plain(name)
    return next((kind for kind in MODELS if _plain(kind) == plain), None)


def nearest_kind(name: str) -> str | None:
    """The kind whose name is spelt most like this one, if any is."""
    plain = {_plain(kind): kind for kind in MODELS}
    near = get_close_matches(_plain(name), plain, 1, cutoff=0.7)
    return plain[near[0]] if near else None


def _plain(name: str) -> str:
    return "".join(character for character in name.lower() if character not in "-_ ")


def model_class(kind: str) -> type[Recommender]:
    """The class of a kind of model."""
    found = kind_named(kind)
    if found is None:
        near = nearest_kind(kind)
        advice = f"Did you mean {near}?" if near else ""
        raise ParameterError("model", f"one of {', '.join(MODELS)}", kind, advice)
    made: type[Recommender] = getattr(import_module(MODELS[found]), found)
    return made


def build(kind: str, parameters: Mapping[str, Any], machine: Mapping[str, Any] | None = None) -> Recommender:
    """A model by the name of its kind, with parameters by name.

    `machine` are those that change no result, such as threads, for models of all kinds: one that has no such
    parameter goes without it, and None is as good as nothing.
    """
    made = model_class(kind)
    known = made.defaults()
    for name in parameters:
        if name not in known:
            near = get_close_matches(str(name), known, 1)
            advice = f"Did you mean {near[0]}?" if near else ""
            rule = f"among {', '.join(known)} ({made.__name__})" if known else f"none for {made.__name__}"
            raise ParameterError("parameters", rule, name, advice)
    given = {n: value for n, value in (machine or {}).items() if n in known and value is not None}
    return made(**{**parameters, **given})


def load(path: str | PathLike[str]) -> Recommender:
    """Open a model that was saved. Its arrays stay in the file and are checked as they are first used."""
    facts, arrays = open_file(path)
    try:
        kind = facts["model"]
        if kind not in MODELS:
            raise ModelFileError(
                f"{path} holds a {kind!r}; this mrfrec knows {', '.join(MODELS)}. Upgrade mrfrec."
            )
        items = read_ids(arrays, "items")
        model: Recommender = getattr(import_module(MODELS[kind]), kind)(**facts["parameters"])
        model._restore(arrays, facts["state"], len(items))
        model.fitted_parameters_ = model.parameters
        model._facts = facts["data"]
        titles = None
        if "titles.data" in arrays:
            shaped(arrays, "titles.ptr", len(items) + 1)
            titles = read_texts(arrays, "titles")
        model._catalogue = Catalogue(
            items, titles, shaped(arrays, "popularity", len(items)).read(), facts["data"]["users"]
        )
        if facts["histories"]:
            model._training = partial(read_training, arrays, len(items))
    except (KeyError, TypeError, AttributeError, ParameterError) as error:
        raise ModelFileError(
            f"{path} lacks a part of a model, or has one this mrfrec does not know: {error}."
        ) from error
    return model
