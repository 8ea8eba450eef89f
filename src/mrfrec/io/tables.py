"""Tables of who-used-what → `Interactions`: which column is which, what a bad row is, ids → numbers.

Rows stream through in batches; of each only two small integers and a value are kept, so that reading holds a
few times what the matrix takes, whatever the size of the file.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import polars as pl
import scipy.sparse as sp

from mrfrec.checks import check_flag, check_number
from mrfrec.core.resources import Progress
from mrfrec.errors import DataError, ParameterError
from mrfrec.ids import Id, Ids, Texts
from mrfrec.interactions import Interactions, combined, kept
from mrfrec.io.columns import check_that_rows_may_be_counted, find_roles, find_titles
from mrfrec.io.sources import FAULT, Roles, Source, Types, open_sources

__all__ = ["as_interactions", "read_interactions", "read_users"]

_INT64 = np.iinfo(np.int64).max
_EXACT = {"Float16": 2**11, "Float32": 2**24, "Float64": 2**53}  # below, whole numbers are all distinct


def read_interactions(
    source: object,
    user: str | None = None,
    item: str | None = None,
    value: str | None = None,
    title: str | None = None,
    *,
    items: object = None,
    min_value: float | None = None,
    binary: bool = True,
    duplicates: Literal["sum", "last", "error"] = "sum",
    on_bad: Literal["refuse", "skip"] = "refuse",
    separator: str | None = None,
    columns: Sequence[str] | None = None,
    progress: Progress | None = None,
) -> Interactions:
    """Read a table with a row for each time a user used an item.

    Users and items come out in ascending order of their ids, so that the order of the rows changes nothing.

    Parameters
    ----------
    source
        A path or a pattern such as "logs/*.parquet", or a list of them: CSV, TSV and JSON lines (plain,
        .gz or .zst), Parquet, Arrow and Feather. Or a data frame of pandas, polars, pyarrow or another
        library. Or a `scipy.sparse` matrix of users × items.
    user, item, value, title
        Names of the columns; recognised where they are obvious (user_id, movieId, rating, …). Ids are
        integers or strings and stay what they are; in CSV files a column is integers if all of it is. Values
        are kept in single precision; a pair whose value is 0 is left out. Of several titles of one item, the
        first in the alphabet is taken.
    items
        A table of items, of any of these kinds, with ids and titles.
    min_value
        Leave out pairs whose value, duplicates combined, is below this: 4 keeps ratings of 4 and more. Users
        and items that have nothing left go with them.
    binary
        Every pair counts 1, whatever its value. With False it counts its value (or its rows, where the table
        has users and items only), and a value of 0 is no interaction.
    duplicates
        For several rows of one user and item: "sum" their values, keep the "last", or take it as an "error".
    on_bad
        A row without ids, with a value that is no number, or with too many fields: "refuse" the table and
        name the row, or "skip" it and count it in `Interactions.skipped`.
    separator
        Of text files; found out if None.
    columns
        Names of the columns of text files that have no header.
    progress
        Called as `progress("read", rows, 0)`.
    """
    _one_of("duplicates", duplicates, ("sum", "last", "error"))
    _one_of("on_bad", on_bad, ("refuse", "skip"))
    binary = check_flag("binary", binary)
    if min_value is not None:
        min_value = check_number("min_value", min_value, "a finite number or None", lambda x: abs(x) < 3e38)
    if progress is not None and not callable(progress):
        raise ParameterError("progress", "a function or None", progress)
    if isinstance(source, Interactions) or sp.issparse(source):
        given = {"user": user, "item": item, "value": value, "separator": separator, "columns": columns}
        for name, named in {**given, "title": title if items is None else None}.items():
            if named is not None:
                raise ParameterError(name, "None for a matrix", named, "It has no columns to name.")
        data = source if isinstance(source, Interactions) else Interactions(source)
        rows, matrix, users, known, titles = _Rows(on_bad), data.matrix, data.users, data.items, data.titles
        library = data.library
    else:
        sources = open_sources(source, separator=separator, columns=columns)
        wants_values = value is not None or min_value is not None or not binary
        tables = [(table, _roles(table, user, item, value, title, items, wants_values)) for table in sources]
        without = [table.name for table, roles in tables if "value" not in roles]
        if without and len(without) < len(tables):
            raise DataError(f"{without[0]} has no column of values, but other files have. Read them apart.")
        rows = _Rows(on_bad, as_text=any(table.is_text for table in sources))
        for table, roles in tables:
            rows.read(table, roles, progress)
        rows.finish()
        matrix, titles = rows.to_matrix(duplicates, counted=wants_values), rows.titles()
        users, known, library = rows.users.ids, rows.items.ids, sources[0].library
    if rows.read_rows or min_value is not None:
        matrix, users, known, titles = kept(matrix, users, known, titles, min_value, binary)
    if binary:
        ones = np.ones(matrix.nnz, np.float32)
        matrix = sp.csr_array((ones, matrix.indices, matrix.indptr), shape=matrix.shape)
    if items is not None:
        titles = _titles_from(items, known, item, title, rows)
    out = Interactions(matrix, users, known, titles)
    out.skipped, out.library = rows.skipped, library
    return out


def _roles(
    table: Source,
    user: str | None,
    item: str | None,
    value: str | None,
    title: str | None,
    items: object,
    wants_values: bool,
) -> dict[str, str]:
    roles = find_roles(table, user, item, value, title if items is None else None)
    if wants_values and "value" not in roles:
        check_that_rows_may_be_counted(table, roles)
    if items is not None:
        roles.pop("title", None)
    if not wants_values:
        roles.pop("value", None)
    return roles


def as_interactions(data: object) -> Interactions:
    """What `fit` takes: interactions as they are, a matrix with its values, a table read with defaults."""
    if isinstance(data, Interactions):
        return data
    if sp.issparse(data) or isinstance(data, np.ndarray):
        return Interactions(data)
    return read_interactions(data)


def read_users(path: Path, known: Ids) -> list[Id]:
    """The ids in the user column of a table, as the type the known ones have."""
    found: list[Id] = []
    for source in open_sources(path):
        roles = {"user": find_roles(source, None, None, None, None, needed=("user",))["user"]}
        for batch in _Rows("refuse").good(source, roles):
            texts = batch["user"].cast(pl.String)
            found += texts.to_list() if known.is_text else [known.parse(text, "user") for text in texts]
    return found


def _one_of(name: str, value: object, allowed: tuple[str, ...]) -> None:
    if not isinstance(value, str) or value not in allowed:
        raise ParameterError(name, " or ".join(f'"{choice}"' for choice in allowed), value)


# ── rows ──────────────────────────────────────────────────────────────────────────────────────────


class _Numbering:
    """Ids → numbers as they come; 0, 1, 2, … in ascending order once all have."""

    def __init__(self, role: str, as_text: bool) -> None:
        self.role = role
        self.ids: Ids
        self.rank: npt.NDArray[np.int32]
        self._as_text = as_text  # some tables have no types: all ids are text until the last is known
        self._types: set[str] = set()  # in tables that have them
        # polars numbers strings itself, and forgets the numbers with the last column that has the type.
        self.texts = pl.Series(dtype=pl.Categorical(pl.Categories.random()))
        self._numbers = pl.DataFrame(schema={"id": pl.Int64, "code": pl.UInt32})

    def encode(self, ids: pl.Series, table: Source) -> npt.NDArray[np.int32]:
        is_integer = ids.dtype.is_integer()
        if not table.is_text:
            self._types.add("integers" if is_integer else "strings")
            self._check(len(self._types) < 2, f"{table.name}: ")
        if is_integer and not self._as_text:
            codes = self._encode_numbers(ids, table)
        else:
            text = ids.cast(pl.String) if is_integer else ids
            codes = text.cast(self.texts.dtype).to_physical()
        return codes.to_numpy().astype(np.int32)

    def _encode_numbers(self, ids: pl.Series, table: Source) -> pl.Series:
        if ids.dtype == pl.UInt64 and not (ids > _INT64).any():
            ids = ids.cast(pl.Int64)
        known = self._numbers
        if ids.dtype != known.schema["id"]:  # some are above the range of signed integers
            if (ids < 0).any() or (known["id"] < 0).any():
                raise DataError(
                    f"{table.name}: {self.role} ids are both below 0 and above 2**63. Make them strings."
                )
            ids, known = ids.cast(pl.UInt64), known.with_columns(pl.col("id").cast(pl.UInt64))
        new = ids.unique().to_frame("id").join(known, on="id", how="anti")
        codes = pl.int_range(len(known), len(known) + len(new), dtype=pl.UInt32, eager=True)
        self._numbers = pl.concat([known, new.with_columns(code=codes)])
        return ids.to_frame("id").join(self._numbers, on="id", how="left", maintain_order="left")["code"]

    def finish(self, parts: list[npt.NDArray[np.int32]]) -> None:
        used = np.zeros(max(int(part.max()) for part in parts) + 1, np.bool_)
        for part in parts:
            used[part] = True
        codes = np.flatnonzero(used)  # not all of them, where an id stood in bad rows only
        if self._as_text or "strings" in self._types:
            ids = pl.Series(codes, dtype=pl.UInt32).cat.to(self.texts.dtype).cast(pl.String)
        else:
            ids = self._numbers["id"]
        if self._as_text and "strings" not in self._types:
            for kind in (pl.Int64, pl.UInt64):
                numbers = ids.cast(kind, strict=False)
                if (numbers.cast(pl.String) == ids).fill_null(False).all():
                    ids = numbers
                    break
            else:
                self._check("integers" not in self._types, "")
        order = ids.arg_sort()
        self.rank = np.empty(len(used), np.int32)
        self.rank[codes[order.to_numpy()]] = np.arange(len(ids), dtype=np.int32)
        ids = ids.gather(order)
        self.ids = Ids(Texts.of(ids) if ids.dtype == pl.String else ids.to_numpy())
        del self._numbers, self.texts

    def _check(self, is_one_type: bool, where: str) -> None:
        if not is_one_type:
            raise DataError(
                f"{where}{self.role} ids are integers in some of the rows or files and strings in others. "
                "Make them the same."
            )


class _Rows:
    """What is kept of the rows that went through."""

    def __init__(self, on_bad: str, *, as_text: bool = False) -> None:
        self.on_bad = on_bad
        self.users, self.items = _Numbering("user", as_text), _Numbering("item", as_text)
        self.skipped: dict[str, int] = {}
        self.read_rows = 0
        self._parts: dict[str, list[npt.NDArray[Any]]] = {"user": [], "item": [], "value": []}
        self._titles = pl.DataFrame(schema={"code": pl.Int32, "title": pl.String})

    def read(self, table: Source, roles: Roles, progress: Progress | None) -> None:
        types = {"user": self.users.texts.dtype, "item": self.items.texts.dtype}
        for batch in self.good(table, roles, types):
            if len(batch):
                self._parts["user"].append(self.users.encode(batch["user"], table))
                codes = self.items.encode(batch["item"], table)
                self._parts["item"].append(codes)
                if "value" in roles:
                    self._parts["value"].append(batch["value"].to_numpy())
                if "title" in roles:
                    named = pl.DataFrame({"code": codes, "title": batch["title"]}).filter(
                        pl.col("title") != ""
                    )
                    self._titles = pl.concat([self._titles, named]).group_by("code").min()
            if progress is not None:
                progress("read", self.read_rows, 0)

    def good(
        self, table: Source, roles: Roles, types: Types | None = None, prefix: str = ""
    ) -> Iterator[pl.DataFrame]:
        """The rows that can be used, in batches; the first of the others is an error, or all are counted."""
        row = 0
        for batch in table.batches(roles, types or {}):
            columns, faults = _rules(batch, table, roles, types or {})
            bad = pl.repeat(False, len(batch), eager=True)
            for fault in faults:
                bad |= fault.where.fill_null(False)
            if bad.any():
                first = int(bad.arg_true()[0])
                if self.on_bad == "refuse":
                    words = next(fault.words for fault in faults if fault.where[first])
                    shown = batch[first : first + 1].select(words).item()
                    raise DataError(
                        f"{table.name}, row {row + first + 1:,}: {shown}. Mend it, or leave such rows out: "
                        'read_interactions(…, on_bad="skip"), or --on-bad skip of mrfrec fit.'
                    )
                left = bad
                for fault in faults:  # a row counts once, for the first thing that is wrong with it
                    mine = left & fault.where.fill_null(False)
                    reasons = (
                        batch.filter(mine)[FAULT]
                        if fault.reason is None
                        else [fault.reason] * int(mine.sum())
                    )
                    for reason, count in Counter(reasons).items():
                        self.skipped[prefix + reason] = self.skipped.get(prefix + reason, 0) + count
                    left &= ~mine
            row += len(batch)
            self.read_rows += len(batch)
            typed = pl.DataFrame(columns)
            yield typed.filter(~bad) if bad.any() else typed

    def finish(self) -> None:
        if not self._parts["user"]:
            skipped = f", of which {sum(self.skipped.values()):,} were bad" if self.skipped else ""
            raise DataError(f"the table has no interactions: {self.read_rows:,} rows{skipped}.")
        self.users.finish(self._parts["user"])
        self.items.finish(self._parts["item"])

    def _joined(self, role: str) -> npt.NDArray[Any]:
        parts = self._parts.pop(role)
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def to_matrix(self, duplicates: str, *, counted: bool) -> sp.csr_array:
        """Ones, or values where the table has them; several rows of one pair combined."""
        rows = self.users.rank[self._joined("user")]
        columns = self.items.rank[self._joined("item")]
        # Booleans take the least room while the rows are sorted; their sums stay 1.
        kind = np.int32 if counted else np.bool_
        data = self._joined("value") if self._parts["value"] else np.ones(len(rows), kind)
        return combined(rows, columns, data, self.users.ids, self.items.ids, duplicates)

    def titles(self) -> Texts | None:
        """Of several titles of one item, the first by the alphabet: the order of rows changes nothing."""
        texts = [""] * len(self.items.ids)
        for code, text in self._titles.iter_rows():
            texts[self.items.rank[code]] = text
        return Texts.of(texts) if any(texts) else None


class _Fault(NamedTuple):
    where: pl.Series
    words: pl.Expr  # with what the row holds
    reason: str | None  # without: the same for all such rows; None where the batch itself says it


def _rules(
    batch: pl.DataFrame, table: Source, roles: Roles, types: Types
) -> tuple[dict[str, pl.Series], list[_Fault]]:
    """user, item, value and title as they are stored; and what makes a row one that cannot be used."""
    columns: dict[str, pl.Series] = {}
    faults = []
    if FAULT in batch.columns:
        faults.append(_Fault(batch[FAULT].is_not_null(), pl.col(FAULT), None))
    for role, name in roles.items():
        raw = batch[role]
        is_numbered = role in types and raw.dtype == types[role]
        if isinstance(raw.dtype, pl.Categorical | pl.Enum | pl.Null) and not is_numbered:
            raw = raw.cast(pl.String)
        kind = raw.dtype
        is_text = kind == pl.String
        is_number = kind.is_integer() or kind.is_float()
        if not (
            is_text or is_numbered or is_number or (role == "value" and kind in (pl.Boolean, pl.Decimal))
        ):
            rule = {"value": "values must be numbers", "title": "titles must be text"}.get(
                role, f"{role} ids must be integers or strings"
            )
            raise DataError(f"{table.name}: {rule}; column {name!r} is {kind}.")
        if role == "title":
            columns[role] = raw.cast(pl.String)
            continue
        noun = "value" if role == "value" else f"{role} id"
        missing = raw.is_null() | (raw == "") if is_text else raw.is_null()
        wrong: list[tuple[pl.Series, str]] = []
        if role == "value":
            number = raw.cast(pl.Float64, strict=False)
            if is_text and number.null_count():
                stripped = raw.str.strip_chars()
                number, missing = stripped.cast(pl.Float64, strict=False), missing | (stripped == "")
            columns[role] = small = number.cast(pl.Float32)
            wrong = [
                (number.is_null() | ~number.is_finite(), "not a finite number"),
                (~small.is_finite() | ((small == 0) & (number != 0)), "beyond single precision"),
            ]
        elif is_text or is_numbered:
            columns[role] = raw
        else:
            columns[role] = raw.cast(pl.UInt64 if kind == pl.UInt64 else pl.Int64, strict=False)
            if kind.is_float():  # what pandas makes of integers as soon as one is missing
                missing |= raw.is_nan()
                wrong = [
                    (raw != raw.round(), "not a whole number"),
                    (raw.abs() >= _EXACT[str(kind)], "too large for a float to be exact"),
                ]
            wrong.append((columns[role].is_null(), "not a whole number of 64 bits"))
        faults.append(_Fault(missing, pl.lit(f"no {noun}"), f"no {noun}"))
        for where, what in wrong:
            words = pl.format(f"{noun} {{}} is {what}", pl.col(role).cast(pl.String))
            faults.append(_Fault(where, words, f"{noun} {what}"))
    return columns, faults


def _titles_from(table: object, items: Ids, item: str | None, title: str | None, rows: _Rows) -> Texts:
    """Titles of these items, out of a table of items: ids are compared as text."""
    places = {str(name): place for place, name in enumerate(items)}
    texts = [""] * len(items)
    for source in open_sources(table):
        for batch in rows.good(source, find_titles(source, item, title), prefix="items: "):
            named = batch.select(pl.col("item").cast(pl.String), "title").filter(pl.col("title") != "")
            for name, text in named.iter_rows():
                place = places.get(name)
                if place is not None:
                    texts[place] = min(texts[place] or text, text)
    if not any(texts):
        raise DataError("the table of items names none of the items that were used: are the ids the same?")
    return Texts.of(texts)
