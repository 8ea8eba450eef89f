"""Write a model to a file, and restore it from one. `mrfrec.load` is in `models/registry.py`."""

import math
from collections.abc import Mapping
from dataclasses import asdict
from functools import partial
from os import PathLike
from typing import TYPE_CHECKING, Any, TypeVar

from mrfrec.checks import check_flag
from mrfrec.data.catalogue import Catalogue
from mrfrec.data.provenance import rules_of_matrix
from mrfrec.data.reading import RULES
from mrfrec.errors import ParameterError
from mrfrec.models.storage.arrays import (
    catalogue_arrays,
    read_features,
    read_ids,
    read_texts,
    read_training,
    shaped,
    training_arrays,
)
from mrfrec.models.storage.updating import origin_of

if TYPE_CHECKING:
    from mrfrec.io.artifact import StoredArrays
    from mrfrec.models.recommender import Recommender

_DATA_TYPES = {"users": int, "items": int, "pairs": int, "binary": bool, "fingerprint": str}

Restored = TypeVar("Restored", bound="Recommender")


def save(
    model: "Recommender",
    path: "str | PathLike[str]",
    include_histories: bool,
    notes: Mapping[str, Any] | None,
) -> None:
    """Write a model to one file; see `Recommender.save`."""
    from mrfrec import __version__
    from mrfrec.io.artifact import write_file

    catalogue = model.catalogue
    check_flag("include_histories", include_histories)
    arrays, state = model._state()
    arrays |= catalogue_arrays(catalogue)
    facts: dict[str, Any] = {"origin": {"rules": model.reading_}}
    if include_histories:
        arrays |= training_arrays(model._trained_on("include_histories=True"))
        facts["origin"] = origin_of(model, "include_histories=True").facts()
    if (features := catalogue.features) is not None:
        columns = {name: asdict(encoding) for name, encoding in features.columns.items()}
        facts["features"] = {"columns": columns, "weight": features.weight}
    if notes is not None:
        if not isinstance(notes, Mapping):
            raise ParameterError("notes", "a mapping that JSON can hold, or None", notes)
        facts["notes"] = dict(notes)
    facts |= {
        "model": type(model).__name__,
        "written_by": __version__,
        "parameters": model.fitted_parameters_,
        "data": {**model._facts, "fingerprint": model.fingerprint_},
        "state": state,
        "histories": include_histories,
    }
    write_file(path, arrays, facts)


def verify(model: "Recommender") -> None:
    """Read all arrays of a model, which checks those that lie in a file."""
    catalogue_arrays(model.catalogue)
    model._state()
    if model.has_histories:
        training_arrays(model._trained_on("verify"))


def restored(kind: type[Restored], facts: Mapping[str, Any], arrays: "StoredArrays") -> Restored:
    """Return the model of a file; raise a KeyError, TypeError or ValueError for parts that do not fit."""
    items, data, parameters = read_ids(arrays, "items"), facts["data"], facts["parameters"]
    known = kind.defaults().keys() - set(kind.machine_parameters)
    wrong = [name for name, wanted in _DATA_TYPES.items() if type(data[name]) is not wanted]
    wrong += [name for name in parameters if name not in known]
    wrong += [] if type(facts["histories"]) is bool else ["histories"]
    mean_value = data.get("mean_value", 1.0)
    wrong += [] if type(mean_value) is float and 0 < mean_value < math.inf else ["mean_value"]
    if wrong or data["items"] != len(items) or not items.is_ordered():
        raise KeyError(*(wrong or ["items"]))
    model = kind(**parameters)
    model._bases = {}
    model._restore(arrays, facts["state"], len(items))
    model.fitted_parameters_ = model.parameters
    model._facts, model.file_hash_ = data, arrays.seal
    model.notes_ = dict(facts.get("notes", {}))
    model._rules = facts["origin"]["rules"] if "origin" in facts else rules_of_matrix(data["binary"])
    if type(model._rules) is not dict or model._rules.keys() - {*RULES}:
        raise KeyError("origin")
    titles = None
    if "titles.data" in arrays:
        shaped(arrays, "titles.ptr", len(items) + 1, kind="i")
        titles = read_texts(arrays, "titles")
    popularity = shaped(arrays, "popularity", len(items), kind="i").bound(data["users"] + 1).read()
    features = read_features(arrays, items, facts["features"]) if "features" in facts else None
    model._catalogue = Catalogue(items, titles, popularity, data["users"], features)
    if facts["histories"]:
        # Only the arrays it needs, so that a pickled model holds each array once.
        kept = arrays.under("users.", "histories.")
        model._training = partial(read_training, kept, len(items), facts["origin"])
    return model
