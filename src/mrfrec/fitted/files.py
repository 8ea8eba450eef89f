"""Write a fitted state to a file, and read it from one. `mrfrec.load` is in `models/registry.py`."""

import math
import re
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl
import scipy.sparse as sp

from mrfrec import __version__
from mrfrec.checks import check_flag
from mrfrec.core.rows import Rows
from mrfrec.data.catalogue import Catalogue, DataSize, Training
from mrfrec.data.erasures import Erasures
from mrfrec.data.ids import Ids, Texts
from mrfrec.data.item_table import COLUMN_TYPES, Encoding, ItemFeatures, ItemTable
from mrfrec.data.pairs import Origin
from mrfrec.data.reading_options import RULES
from mrfrec.errors import ModelFileError, ParameterError
from mrfrec.fitted.state import FittedState, Learned
from mrfrec.io.artifact import Stored, StoredArrays, open_file, read_erasures, write_file
from mrfrec.io.atomic import file_path
from mrfrec.io.databases import refuse_url
from mrfrec.io.sources import SUFFIXES

_DATA_TYPES = {"users": int, "items": int, "pairs": int, "binary": bool, "fingerprint": str}
# A file names these data frame libraries; polars is the default.
_LIBRARIES = ("pandas", "pyarrow")

Restore = Callable[[Mapping[str, Stored], Mapping[str, Any], int], Learned]
"""Takes the arrays and facts that `Learned.stored` returned, and the number of items."""


def save(
    fitted: FittedState,
    path: "str | PathLike[str]",
    include_histories: bool,
    notes: Mapping[str, Any] | None,
    mode: int | None,
    file_hashes: Collection[str] | None,
) -> str:
    """Write a fitted state to one file, and return the file hash; see `Recommender.save`.

    An old file is replaced only if it has one of the `file_hashes`; None replaces any.
    """
    catalogue = fitted.catalogue
    check_flag("include_histories", include_histories)
    if mode is not None and not (type(mode) is int and 0o600 <= mode <= 0o777):
        raise ParameterError("mode", "from 0o600 to 0o777, or None", mode)
    if mode is None and include_histories:
        mode = _private_mode(path)
    arrays, state = fitted.learned.stored()
    arrays |= catalogue_arrays(catalogue)
    facts: dict[str, Any] = {"origin": {"rules": fitted.rules, "columns": dict(fitted.columns)}}
    if include_histories:
        arrays |= training_arrays(fitted.training_for("include_histories=True"))
        facts["origin"] = fitted.origin_for("include_histories=True").facts()
    if (features := catalogue.features) is not None:
        columns = {name: asdict(encoding) for name, encoding in features.columns.items()}
        facts["features"] = {"columns": columns, "weight": features.weight}
    if (table := catalogue.table) is not None:
        facts["table"] = [{"name": name, "type": type_} for name, type_ in table.types.items()]
    if len(fitted.erased):
        facts["erased"] = fitted.erased.days
    if fitted.library in _LIBRARIES:
        facts["frames"] = fitted.library
    if notes is not None:
        if not isinstance(notes, Mapping):
            raise ParameterError("notes", "a mapping that JSON can hold, or None", notes)
        facts["notes"] = dict(notes)
    data = {**fitted.size._asdict(), "fingerprint": fitted.fingerprint}
    if not fitted.size.binary:
        data["mean_value"] = fitted.usual_value
    facts |= {
        "model": fitted.kind,
        "written_by": __version__,
        "parameters": fitted.parameters,
        "data": data,
        "state": state,
        "histories": include_histories,
    }
    return write_file(path, arrays, facts, mode=mode, file_hashes=file_hashes)


def check_model_name(path: "str | PathLike[str]", parameter: str = "path") -> None:
    """Refuse a name that a table has, which a model must not replace."""
    name = file_path(path).name.lower()
    if Path(re.sub(r"\.(gz|zst)$", "", name)).suffix in SUFFIXES:
        # The URL of a store may have a password, which no message repeats.
        refuse_url(path, "a file of this machine, not a URL")
        raise ParameterError(parameter, "the name of a model, such as shop.mrf", str(path))


def names_of(path: "str | PathLike[str]") -> set[Path]:
    """Return the paths by which a file is recognised later: the given one, and the target of a link."""
    file = file_path(path)
    # Links in a circle cannot be written.
    with suppress(RuntimeError):
        return {file.absolute(), file.resolve()}
    return {file.absolute()}


def _private_mode(path: "str | PathLike[str]") -> int:
    """Return the mode of a file with histories: private, unless it replaces a file with histories."""
    with suppress(ModelFileError, OSError):
        if open_file(path)[0].get("histories"):
            return file_path(path).stat().st_mode & 0o777
    return 0o600


def verify(fitted: FittedState) -> None:
    """Read all arrays of a fitted state, which checks the arrays that lie in a file."""
    catalogue_arrays(fitted.catalogue)
    fitted.learned.stored()
    if fitted.training is not None:
        training_arrays(fitted.training)


def read_fitted(
    facts: Mapping[str, Any],
    arrays: StoredArrays,
    restore: Restore,
    kind: str,
    parameters: Mapping[str, Any],
) -> FittedState:
    """Return the fitted state of a file; raise a KeyError, TypeError or ValueError if parts do not fit.

    `kind` is the name of the class of the model, and `parameters` are the parameters of the fit.
    """
    items = read_ids(arrays, "items")
    data = facts["data"]
    wrong = [name for name, wanted in _DATA_TYPES.items() if type(data[name]) is not wanted]
    wrong += [] if type(facts["histories"]) is bool else ["histories"]
    mean_value = data.get("mean_value", 1.0)
    wrong += [] if type(mean_value) is float and 0 < mean_value < math.inf else ["mean_value"]
    if wrong or data["items"] != len(items) or not items.is_ordered():
        raise KeyError(*(wrong or ["items"]))
    learned = restore(arrays, facts["state"], len(items))
    rules = facts["origin"]["rules"]
    columns = facts["origin"]["columns"]
    if type(rules) is not dict or rules.keys() - {*RULES} or type(columns) is not dict:
        raise KeyError("origin")
    titles = None
    if "titles.data" in arrays:
        shaped(arrays, "titles.ptr", len(items) + 1, kind="i")
        titles = read_texts(arrays, "titles")
    popularity = shaped(arrays, "popularity", len(items), kind="i").bound(data["users"] + 1).read()
    features = read_features(arrays, items, facts["features"]) if "features" in facts else None
    table = read_table(arrays, items, facts["table"]) if "table" in facts else None
    source = None
    if facts["histories"]:
        # Pass on only the arrays of the histories, so that a pickled model has every array once.
        kept = arrays.under("users.", "histories.")
        source = partial(read_training, kept, len(items), facts["origin"])
    beside, unreadable = None, ""
    try:
        beside = read_erasures(arrays.path)
    except PermissionError as error:
        unreadable = str(error.filename)
    return FittedState(
        kind=kind,
        parameters=parameters,
        learned=learned,
        catalogue=Catalogue(items, titles, popularity, data["users"], features, table),
        size=DataSize(*(data[name] for name in DataSize._fields)),
        usual_value=mean_value,
        rules=rules,
        columns={str(role): str(name) for role, name in columns.items()},
        library=frames if (frames := facts.get("frames")) in _LIBRARIES else None,
        source=source,
        _fingerprint=data["fingerprint"],
        notes=dict(facts.get("notes", {})),
        erased=Erasures.of_facts(facts.get("erased", {})),
        beside=beside,
        unreadable_erasures=unreadable,
        file_hash=arrays.file_hash,
    )


# ── the parts that all models have ────────────────────────────────────────────────────────────────


def catalogue_arrays(catalogue: Catalogue) -> dict[str, npt.NDArray[Any]]:
    """Return the arrays of the items: ids, titles, popularity, features, and the item table."""
    arrays = {"popularity": catalogue.popularity, **_id_arrays("items", catalogue.items)}
    if catalogue.titles is not None:
        arrays |= _text_arrays("titles", catalogue.titles)
    if (features := catalogue.features) is not None:
        arrays |= {"features.ptr": features.matrix.indptr, "features.items": features.matrix.indices}
        arrays |= {"features.values": features.values, **_text_arrays("features.names", features.names)}
    if catalogue.table is not None:
        for number, column in enumerate(catalogue.table.types):
            parts = _column_arrays(catalogue.table, column)
            arrays |= {f"table.{number}.{part}": array for part, array in parts.items()}
    return arrays


def _column_arrays(table: ItemTable, name: str) -> dict[str, npt.NDArray[Any]]:
    """Return a column as arrays, texts as codes, since damaged Arrow data could crash a process."""
    cells, kind = table.column(name, "table"), table.types[name]
    missing = cells.is_null().to_numpy()
    if kind in ("text", "list"):
        groups = table.groups(name, "table")
        arrays = _text_arrays("texts", Texts.of(groups.values))
        if kind == "text":
            values = np.full(len(cells), -1, np.int32)
            values[~missing] = groups.codes
            return {**arrays, "values": values}
        arrays |= {"values": groups.codes, "ptr": groups.ptr}
    else:
        cells = cells.cast(pl.UInt8) if kind == "flag" else cells.to_physical()
        arrays = {"values": cells.fill_null(0).to_numpy()}
    return {**arrays, "missing": missing.view(np.uint8)} if missing.any() else arrays


def read_table(arrays: Mapping[str, Stored], items: Ids, facts: Any) -> ItemTable:
    """Read the table of items."""
    columns = {str(each["name"]): _read_column(arrays, f"table.{n}", len(items), each["type"])
               for n, each in enumerate(facts)}  # fmt: skip
    if len(columns) < len(facts):
        raise KeyError("table")
    return ItemTable(items, pl.DataFrame(columns))


def _read_column(arrays: Mapping[str, Stored], name: str, m: int, kind: Any) -> pl.Series:
    types = {"number": (np.int64, np.float64), "flag": (np.uint8,), "time": (np.int64,)}
    stored = arrays[f"{name}.values"]
    if kind not in COLUMN_TYPES or stored.array.dtype not in types.get(kind, (np.int32,)):
        raise stored.damaged()
    if stored.array.ndim != 1 or (kind != "list" and len(stored.array) != m):
        raise stored.damaged()
    if kind == "text":
        texts, codes = read_texts(arrays, f"{name}.texts"), stored.read()
        if len(codes) and not -1 <= codes.min() <= codes.max() < len(texts):
            raise stored.damaged()
        return _gathered(texts, codes)
    missing = np.zeros(m, np.bool_)
    if f"{name}.missing" in arrays:
        missing = _flags(shaped(arrays, f"{name}.missing", m, kind="u"))
    if kind == "list":
        texts = read_texts(arrays, f"{name}.texts")
        parts = _gathered(texts, stored.bound(len(texts)).read())
        ptr = _starts(arrays[f"{name}.ptr"], len(parts))
        if len(ptr) != m + 1:
            raise stored.damaged()
        cells = _as_lists(parts, ptr)
    else:
        cells = pl.Series(_flags(stored) if kind == "flag" else stored.read())
        cells = cells.cast(pl.Datetime("us")) if kind == "time" else cells
    return cells.set(pl.Series(missing), None) if missing.any() else cells


def _gathered(texts: Texts, codes: npt.NDArray[np.int32]) -> pl.Series:
    """Return texts by their codes; −1 is a missing text."""
    return pl.Series([*texts, None], dtype=pl.String).gather(np.where(codes < 0, len(texts), codes))


def _as_lists(parts: pl.Series, ptr: npt.NDArray[np.int64]) -> pl.Series:
    """Return lists of parts; `ptr` has the offset at which each list begins."""
    row = np.repeat(np.arange(len(ptr) - 1), np.diff(ptr))
    lists = pl.DataFrame({"row": row, "parts": parts}).group_by("row", maintain_order=True).agg("parts")
    every = pl.DataFrame({"row": np.arange(len(ptr) - 1)})
    joined = every.join(lists, on="row", how="left", maintain_order="left")["parts"]
    return joined.fill_null(pl.lit([], pl.List(pl.String)))


def _flags(stored: Stored) -> npt.NDArray[np.bool_]:
    values = stored.read()
    if (values > 1).any():
        raise stored.damaged()
    return values.astype(np.bool_)


def read_features(arrays: Mapping[str, Stored], items: Ids, facts: Mapping[str, Any]) -> ItemFeatures:
    """Read the features of the items."""
    names = read_texts(arrays, "features.names")
    values = shaped(arrays, "features.values", len(names)).read()
    entries = arrays["features.items"].bound(len(items)).read()
    ptr = _starts(arrays["features.ptr"], len(entries))
    if entries.ndim != 1 or len(ptr) != len(names) + 1 or not np.isfinite(values).all():
        raise arrays["features.ptr"].damaged()
    matrix = sp.csr_array((np.repeat(values, np.diff(ptr)), entries, ptr), shape=(len(names), len(items)))
    columns = {str(name): Encoding.of_facts(each) for name, each in facts["columns"].items()}
    return ItemFeatures(items, matrix, names, values, columns, weight=float(facts["weight"]))


def training_arrays(training: Training) -> dict[str, npt.NDArray[Any]]:
    """Return the arrays of the training users and their histories."""
    rows = training.histories
    rows.verify()
    arrays = {**_id_arrays("users", training.users), "histories.ptr": rows.ptr, "histories.items": rows.items}
    if not (rows.values == 1).all():
        arrays["histories.values"] = rows.values.astype(np.float64)
    if training.origin is not None:
        kept = {"sums": training.origin.sums.values, "times": training.origin.times}
        arrays |= {f"histories.{name}": array for name, array in kept.items() if array is not None}
    return arrays


def shaped(arrays: Mapping[str, Stored], name: str, *shape: int, kind: str = "f") -> Stored:
    """Return an array; refuse another shape, or other numbers than floats ("f") or integers ("i").

    Checksums show that an array is unchanged, but not that it fits the other arrays of the file.
    """
    if arrays[name].array.shape != shape or arrays[name].array.dtype.kind != kind:
        raise arrays[name].damaged()
    return arrays[name]


def read_training(arrays: Mapping[str, Stored], m: int, origin: Any) -> Training:
    """Read the training users, their histories and the origin of the histories."""
    users, histories = read_ids(arrays, "users"), stored_rows(arrays, "histories", m)
    if len(users) != len(histories):
        raise arrays["histories.ptr"].damaged()
    # Checking millions of strings would take seconds, and a string out of order is merely not found.
    if not users.is_text and not users.is_ordered():
        raise arrays["users.ids"].damaged()
    sums, times = (
        shaped(arrays, f"histories.{name}", len(histories.items), kind=kind).read()
        if f"histories.{name}" in arrays
        else None
        for name, kind in (("sums", "f"), ("times", "i"))
    )
    try:
        return Training(users, histories, Origin.of_facts(origin, sums, times))
    except (TypeError, LookupError):
        raise arrays["histories.ptr"].damaged("comes from an unknown origin") from None


def _id_arrays(name: str, ids: Ids) -> dict[str, npt.NDArray[Any]]:
    arrays = _text_arrays(name, ids.values) if isinstance(ids.values, Texts) else {f"{name}.ids": ids.values}
    return arrays if ids.order is None else {**arrays, f"{name}.order": ids.order}


def _text_arrays(name: str, texts: Texts) -> dict[str, npt.NDArray[Any]]:
    return {f"{name}.data": texts.data, f"{name}.ptr": texts.ptr}


def read_ids(arrays: Mapping[str, Stored], name: str) -> Ids:
    """Read ids and their order."""
    stored = arrays.get(f"{name}.ids")
    if stored is not None and (stored.array.dtype.kind not in "iu" or stored.array.ndim != 1):
        raise stored.damaged()
    values = read_texts(arrays, name) if stored is None else stored.read()
    if f"{name}.order" not in arrays:
        return Ids(values)
    order = shaped(arrays, f"{name}.order", len(values), kind="i").bound(len(values)).read()
    return Ids(values, order)


def read_texts(arrays: Mapping[str, Stored], name: str) -> Texts:
    """Read strings; refuse bytes that are not UTF-8."""
    stored = arrays[f"{name}.data"]
    if stored.array.dtype != np.uint8 or stored.array.ndim != 1:
        raise stored.damaged()
    data = stored.read()
    ptr = _starts(arrays[f"{name}.ptr"], len(data))
    try:
        data.tobytes().decode()
    except UnicodeDecodeError:
        raise stored.damaged("is not valid UTF-8") from None
    begin = ptr[:-1][ptr[:-1] < len(data)]
    # A string must not begin within a character.
    if (data[begin] & 0xC0 == 0x80).any():
        raise stored.damaged("is not valid UTF-8")
    return Texts(data, ptr)


def stored_rows(arrays: Mapping[str, Stored], name: str, width: int, of: str = "values") -> Rows:
    """Return rows that are checked when they are first read; `of` names the array of their values."""
    items, values = arrays[f"{name}.items"].bound(width), arrays.get(f"{name}.{of}")
    if items.array.ndim != 1:
        raise items.damaged()
    ptr = _starts(arrays[f"{name}.ptr"], len(items.array))
    if values is not None:
        shaped(arrays, f"{name}.{of}", len(items.array))

    def check(start: int, stop: int) -> None:
        items.check(start, stop)
        if values is not None:
            values.check(start, stop)

    ones = np.broadcast_to(np.float32(1), len(items.array))
    return Rows(ptr, items.array, ones if values is None else values.array, width, check)


def _starts(ptr: Stored, end: int) -> npt.NDArray[np.int64]:
    """Return the offset of each row, and the end of the last row."""
    starts = ptr.bound(end + 1).read().astype(np.int64, copy=False)
    whole = starts.ndim == 1 and len(starts) and starts[0] == 0 and starts[-1] == end
    if not whole or (np.diff(starts) < 0).any():
        raise ptr.damaged()
    return starts
