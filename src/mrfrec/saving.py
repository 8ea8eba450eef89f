"""A model as arrays and facts, and back: what `Recommender.save` and `mrfrec.load` do."""

from collections.abc import Mapping
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

__all__ = ["catalogue_arrays", "load", "stored_rows", "training_arrays"]

_MODELS = {"MRF": "mrfrec.model"}  # where each kind of model that a file may hold is found


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
    kind = facts.get("model")
    if kind not in _MODELS:
        raise ModelFileError(
            f"{path} holds a {kind!r}; this mrfrec knows {', '.join(_MODELS)}. Upgrade mrfrec."
        )
    try:
        model: Recommender = getattr(import_module(_MODELS[kind]), kind)(**facts["parameters"])
        model._restore(arrays, facts["state"])
        model._facts = facts["data"]
        titles = None
        if "titles.data" in arrays:
            titles = Texts(arrays["titles.data"].read(), arrays["titles.ptr"].read())
        items = _ids(arrays, "items")
        model._catalogue = Catalogue(items, titles, arrays["popularity"].read(), facts["data"]["users"])
        if facts["histories"]:
            model._training = lambda: Training(
                _ids(arrays, "users"), stored_rows(arrays, "histories", len(items)), None
            )
    except (KeyError, TypeError, ParameterError) as error:
        raise ModelFileError(
            f"{path} lacks a part of a model, or has one this mrfrec does not know: {error}."
        ) from error
    return model


def _id_arrays(name: str, ids: Ids) -> dict[str, npt.NDArray[Any]]:
    values = ids.values
    arrays: dict[str, npt.NDArray[Any]] = (
        {f"{name}.data": values.data, f"{name}.ptr": values.ptr}
        if isinstance(values, Texts)
        else {f"{name}.ids": values}
    )
    return arrays if ids.order is None else {**arrays, f"{name}.order": ids.order}


def _ids(arrays: Mapping[str, Stored], name: str) -> Ids:
    order = arrays[f"{name}.order"].read() if f"{name}.order" in arrays else None
    if f"{name}.ids" in arrays:
        return Ids(arrays[f"{name}.ids"].read(), order)
    return Ids(Texts(arrays[f"{name}.data"].read(), arrays[f"{name}.ptr"].read()), order)


def stored_rows(arrays: Mapping[str, Stored], name: str, width: int) -> Rows:
    """Rows that are checked as they are read."""
    ptr, items, values = (arrays.get(f"{name}.{part}") for part in ("ptr", "items", "values"))
    assert ptr is not None
    assert items is not None

    def check(start: int, stop: int) -> None:
        items.check(start, stop)
        if values is not None:
            values.check(start, stop)

    ones = np.broadcast_to(np.float32(1), len(items.array))
    return Rows(ptr.read(), items.array, ones if values is None else values.array, width, check)
