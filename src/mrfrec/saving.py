"""A model as arrays and facts, and back: what `Recommender.save` and `mrfrec.load` do."""

from collections.abc import Mapping
from difflib import get_close_matches
from functools import partial
from importlib import import_module
from os import PathLike
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from mrfrec.catalogue import Catalogue, Training
from mrfrec.core.sparse import Rows
from mrfrec.errors import ModelFileError, ParameterError
from mrfrec.ids import Ids, Texts
from mrfrec.io.artifact import Stored, open_file

if TYPE_CHECKING:
    from mrfrec.recommender import Recommender

__all__ = [
    "MODELS",
    "build",
    "catalogue_arrays",
    "kind_named",
    "load",
    "model_class",
    "nearest_kind",
    "shaped",
    "stored_rows",
    "training_arrays",
]

MODELS = {
    "MRF": "mrfrec.model",
    "EASE": "mrfrec.baselines.family",
    "EDLAE": "mrfrec.baselines.family",
    "Popularity": "mrfrec.baselines.neighborhood",
    "ItemKNN": "mrfrec.baselines.neighborhood",
    "SLIM": "mrfrec.baselines.slim",
    "FsSLIM": "mrfrec.baselines.slim",
    "WMF": "mrfrec.baselines.wmf",
    "CDAE": "mrfrec.baselines.autoencoders",
    "MultDAE": "mrfrec.baselines.autoencoders",
    "MultVAE": "mrfrec.baselines.autoencoders",
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


def model_class(kind: str) -> "type[Recommender]":
    """The class of a kind of model."""
    found = kind_named(kind)
    if found is None:
        near = nearest_kind(kind)
        advice = f"Did you mean {near}?" if near else ""
        raise ParameterError("model", f"one of {', '.join(MODELS)}", kind, advice)
    made: type[Recommender] = getattr(import_module(MODELS[found]), found)
    return made


def build(
    kind: str, parameters: Mapping[str, Any], machine: Mapping[str, Any] | None = None
) -> "Recommender":
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


def catalogue_arrays(catalogue: Catalogue) -> dict[str, npt.NDArray[Any]]:
    """The items."""
    arrays = {"popularity": catalogue.popularity, **_id_arrays("items", catalogue.items)}
    if catalogue.titles is not None:
        arrays |= {"titles.data": catalogue.titles.data, "titles.ptr": catalogue.titles.ptr}
    return arrays


def training_arrays(training: Training) -> dict[str, npt.NDArray[Any]]:
    """The users and what they had."""
    rows = training.histories
    rows.verify()
    arrays = {**_id_arrays("users", training.users), "histories.ptr": rows.ptr, "histories.items": rows.items}
    return (
        arrays if (rows.values == 1).all() else {**arrays, "histories.values": rows.values.astype(np.float64)}
    )


def load(path: "str | PathLike[str]") -> "Recommender":
    """Open a model that was saved. Its arrays stay in the file and are checked as they are first used."""
    facts, arrays = open_file(path)
    try:
        kind = facts["model"]
        if kind not in MODELS:
            raise ModelFileError(
                f"{path} holds a {kind!r}; this mrfrec knows {', '.join(MODELS)}. Upgrade mrfrec."
            )
        items = _ids(arrays, "items")
        model: Recommender = getattr(import_module(MODELS[kind]), kind)(**facts["parameters"])
        model._restore(arrays, facts["state"], len(items))
        model._facts = facts["data"]
        titles = None
        if "titles.data" in arrays:
            shaped(arrays, "titles.ptr", len(items) + 1)
            titles = _texts(arrays, "titles")
        model._catalogue = Catalogue(
            items, titles, shaped(arrays, "popularity", len(items)).read(), facts["data"]["users"]
        )
        if facts["histories"]:
            model._training = partial(_training, arrays, len(items))
    except (KeyError, TypeError, AttributeError, ParameterError) as error:
        raise ModelFileError(
            f"{path} lacks a part of a model, or has one this mrfrec does not know: {error}."
        ) from error
    return model


def shaped(arrays: Mapping[str, Stored], name: str, *shape: int) -> Stored:
    """An array that must have this shape.

    Checksums say that an array is as it was written, not that it goes with the others.
    """
    if arrays[name].array.shape != shape:
        raise arrays[name].damaged()
    return arrays[name]


def _training(arrays: Mapping[str, Stored], m: int) -> Training:
    users, histories = _ids(arrays, "users"), stored_rows(arrays, "histories", m)
    if len(users) != len(histories):
        raise arrays["histories.ptr"].damaged()
    return Training(users, histories, None)


def _id_arrays(name: str, ids: Ids) -> dict[str, npt.NDArray[Any]]:
    values = ids.values
    arrays: dict[str, npt.NDArray[Any]] = (
        {f"{name}.data": values.data, f"{name}.ptr": values.ptr}
        if isinstance(values, Texts)
        else {f"{name}.ids": values}
    )
    return arrays if ids.order is None else {**arrays, f"{name}.order": ids.order}


def _ids(arrays: Mapping[str, Stored], name: str) -> Ids:
    values = arrays[f"{name}.ids"].read() if f"{name}.ids" in arrays else _texts(arrays, name)
    if f"{name}.order" not in arrays:
        return Ids(values)
    order = arrays[f"{name}.order"].bound(len(values)).read()
    if len(order) != len(values):
        raise arrays[f"{name}.order"].damaged()
    return Ids(values, order)


def _texts(arrays: Mapping[str, Stored], name: str) -> Texts:
    data = arrays[f"{name}.data"].read()
    return Texts(data, _starts(arrays[f"{name}.ptr"], len(data)))


def stored_rows(arrays: Mapping[str, Stored], name: str, width: int) -> Rows:
    """Rows that are checked as they are read."""
    items, values = arrays[f"{name}.items"].bound(width), arrays.get(f"{name}.values")
    ptr = _starts(arrays[f"{name}.ptr"], len(items.array))
    if values is not None and values.array.shape != items.array.shape:
        raise values.damaged()

    ones = np.broadcast_to(np.float32(1), len(items.array))
    return Rows(
        ptr, items.array, ones if values is None else values.array, width, partial(_check_both, items, values)
    )


def _check_both(items: Stored, values: Stored | None, start: int, stop: int) -> None:
    items.check(start, stop)
    if values is not None:
        values.check(start, stop)


def _starts(ptr: Stored, end: int) -> npt.NDArray[np.int64]:
    """Where each row begins, and where the last ends."""
    found = ptr.bound(end + 1).read()
    if found.ndim != 1 or not len(found) or found[0] != 0 or found[-1] != end or (np.diff(found) < 0).any():
        raise ptr.damaged()
    return found
