"""Tables of who-used-what → `Interactions`: which column is which, what a bad row is, ids → numbers.

Rows stream through in batches; of each only two small integers and a value are kept, so that reading holds a
few times what the matrix takes, whatever the size of the file.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import polars as pl
import scipy.sparse as sp

from mrfrec.core.resources import Progress
from mrfrec.errors import DataError, ParameterError
from mrfrec.ids import Id, Ids, Texts
from mrfrec.interactions import Interactions
from mrfrec.io.columns import check_that_rows_may_be_counted, find_roles, find_titles
from mrfrec.io.sources import FAULT, Source, open_sources

__all__ = ["as_interactions", "read_interactions", "read_users"]


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
        integers or strings and stay what they are; in CSV files a column is integers if all of it is.
    items
        A table of items, of any of these kinds, with ids and titles.
    min_value
        Leave out pairs whose value, duplicates combined, is below this: 4 keeps ratings of 4 and more.
    binary
        Every pair counts 1. With False it counts its value (or its rows, where the table has users and
        items only).
    duplicates
        For several rows of one user and item: "sum" their values, keep the "last", or take it as an "error".
    on_bad
        A row without ids or with a value that is no number: "refuse" the table and name the row, or "skip"
        it and count it in `Interactions.skipped`.
    separator
        Of text files; found out if None.
    columns
        Names of the columns of text files that have no header.
    progress
        Called as `progress("read", rows, 0)`.
    """
    _one_of("duplicates", duplicates, ("sum", "last", "error"))
    _one_of("on_bad", on_bad, ("refuse", "skip"))
    if not isinstance(binary, bool):
        raise ParameterError("binary", "True or False", binary)
    if min_value is not None and (isinstance(min_value, bool) or not isinstance(min_value, int | float)):
        raise ParameterError("min_value", "a number or None", min_value)
    if isinstance(source, Interactions) or sp.issparse(source):
        given = (user, item, value, separator, columns)
        if any(name is not None for name in given):
            raise ParameterError(
                "user, item, value", "None for a matrix", given, "It has no columns to name."
            )
        matrix = source if isinstance(source, Interactions) else Interactions(source)
        return _finish(
            matrix.matrix,
            matrix.users,
            matrix.items,
            matrix.titles,
            items,
            title,
            min_value,
            binary,
            {},
            None,
        )

    sources = open_sources(source, separator=separator, columns=columns)
    rows = _Rows(on_bad)
    wants_values = value is not None or min_value is not None or not binary
    for table in sources:
        roles = find_roles(
            table, user, item, value if wants_values else None, None if items is not None else title
        )
        if wants_values and "value" not in roles:
            check_that_rows_may_be_counted(table, roles)
        rows.read(table, roles, progress)
    rows.finish()
    library = sources[0].library if sources else None
    matrix = rows.to_matrix(duplicates)
    titles = None if items is not None else rows.titles()
    return _finish(
        matrix, rows.users.ids, rows.items.ids, titles, items, title, min_value, binary, rows.skipped, library
    )


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
        name = find_roles(source, None, None, None, None, needed=("user",))["user"]
        for batch in source.batches([name]):
            column = batch[name].drop_nulls()
            if known.is_text:
                found += column.cast(pl.String).to_list()
            else:
                found += [known.parse(str(value), "user") for value in column]
    return found


def _one_of(name: str, value: object, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ParameterError(name, " or ".join(f'"{choice}"' for choice in allowed), value)


# ── rows ──────────────────────────────────────────────────────────────────────────────────────────


class _Numbering:
    """Ids → 0, 1, 2, … as they come; in ascending order once all have."""

    def __init__(self, role: str) -> None:
        self.role = role
        self.known: pl.DataFrame | None = None  # id, code
        self.may_be_numbers = True  # text that is integers if all of it looks like it
        self.ids: Ids
        self.rank: npt.NDArray[np.int32]

    def encode(self, ids: pl.Series, table: Source) -> npt.NDArray[np.int32]:
        new = ids.unique().to_frame("id")
        if self.known is None:
            self.known = new.clear().with_columns(code=pl.lit(0, pl.UInt32))
        elif ids.dtype != self.known["id"].dtype:
            if {ids.dtype, self.known["id"].dtype} != {pl.Int64, pl.UInt64}:
                raise DataError(
                    f"{table.name}: {self.role} ids are {_kind(ids.dtype)} here and "
                    f"{_kind(self.known['id'].dtype)} in the files before it. Make them the same."
                )
            self.known = self.known.with_columns(pl.col("id").cast(pl.UInt64))
            return self.encode(ids.cast(pl.UInt64), table)
        new = new.join(self.known, on="id", how="anti")
        codes = pl.int_range(len(self.known), len(self.known) + len(new), dtype=pl.UInt32, eager=True)
        self.known = pl.concat([self.known, new.with_columns(code=codes)])
        found = ids.to_frame("id").join(self.known, on="id", how="left", maintain_order="left")
        return found["code"].to_numpy().astype(np.int32)

    def finish(self) -> None:
        assert self.known is not None
        ids = self.known["id"]
        if ids.dtype == pl.String and self.may_be_numbers:
            numbers = ids.cast(pl.Int64, strict=False)
            if bool((numbers.cast(pl.String) == ids).fill_null(False).all()):
                ids = numbers
        order = ids.arg_sort()
        self.rank = np.empty(len(ids), np.int32)
        self.rank[order.to_numpy()] = np.arange(len(ids), dtype=np.int32)
        ids = ids.gather(order)
        self.ids = Ids(Texts.of(ids) if ids.dtype == pl.String else ids.to_numpy())
        self.known = None


def _kind(dtype: pl.DataType) -> str:
    return "strings" if dtype == pl.String else "integers"


@dataclass
class _Rows:
    """What is kept of the rows that went through."""

    on_bad: str
    users: _Numbering = field(default_factory=lambda: _Numbering("user"))
    items: _Numbering = field(default_factory=lambda: _Numbering("item"))
    skipped: dict[str, int] = field(default_factory=dict)
    read_rows: int = 0
    _parts: dict[str, list[npt.NDArray[Any]]] = field(
        default_factory=lambda: {"user": [], "item": [], "value": []}
    )
    _titles: list[pl.DataFrame] = field(default_factory=list)

    def read(self, table: Source, roles: dict[str, str], progress: Progress | None) -> None:
        before = self.read_rows
        for numbering, role in ((self.users, "user"), (self.items, "item")):
            numbering.may_be_numbers &= roles[role] in table.numbers_in_text
        for batch in table.batches(list(roles.values())):
            first_row = self.read_rows - before
            self.read_rows += len(batch)
            batch = self._good(_typed(batch, table, roles), table, first_row)
            if len(batch):
                self._parts["user"].append(self.users.encode(batch["user"], table))
                codes = self.items.encode(batch["item"], table)
                self._parts["item"].append(codes)
                if "value" in roles:
                    self._parts["value"].append(batch["value"].to_numpy())
                if "title" in roles:
                    named = pl.DataFrame({"code": codes, "title": batch["title"]}).drop_nulls()
                    self._titles.append(named.unique("code", keep="first", maintain_order=True))
            if progress is not None:
                progress("read", self.read_rows, 0)

    def _good(self, batch: pl.DataFrame, table: Source, first_row: int) -> pl.DataFrame:
        """The rows that can be used; what is wrong with the first of the others is an error, or counted."""
        bad = batch.filter(pl.col("fault").is_not_null())
        if not len(bad):
            return batch
        if self.on_bad == "refuse":
            where = first_row + int(batch["fault"].is_not_null().arg_true()[0]) + 1
            raise DataError(
                f"{table.name}, row {where:,}: {bad['fault'][0]}. Mend it, or leave such rows out with "
                'on_bad="skip" (--on-bad skip at the command line).'
            )
        for reason, count in bad["kind"].value_counts().sort("kind").iter_rows():
            self.skipped[reason] = self.skipped.get(reason, 0) + count
        return batch.filter(pl.col("fault").is_null())

    def finish(self) -> None:
        if not self._parts["user"]:
            skipped = f", of which {sum(self.skipped.values()):,} were bad" if self.skipped else ""
            raise DataError(f"the table has no interactions: {self.read_rows:,} rows{skipped}.")
        self.users.finish()
        self.items.finish()

    def _joined(self, role: str) -> npt.NDArray[Any]:
        parts = self._parts.pop(role)
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def to_matrix(self, duplicates: str) -> sp.csr_array:
        """Ones, or values where the table has them; several rows of one pair combined."""
        rows = self.users.rank[self._joined("user")]
        columns = self.items.rank[self._joined("item")]
        shape = (len(self.users.ids), len(self.items.ids))
        has_values = bool(self._parts["value"])
        # Booleans take the least room while the rows are sorted.
        data = self._joined("value") if has_values else np.ones(len(rows), np.bool_)
        if duplicates == "last" and has_values:
            rows, columns, data = _last_of_each(rows, columns, data, shape[1])
        matrix = sp.coo_array((data, (rows, columns)), shape=shape).tocsr()
        if duplicates == "error" and matrix.nnz < len(rows):
            u, i = _first_repeated(rows, columns, shape[1])
            raise DataError(
                f"the table has {len(rows) - matrix.nnz:,} rows too many: user {self.users.ids[u]!r} has "
                f'item {self.items.ids[i]!r} more than once. Combine them with duplicates="sum" or "last".'
            )
        return matrix

    def titles(self) -> Texts | None:
        """The first title that was given for each item."""
        if not self._titles:
            return None
        named = pl.concat(self._titles).unique("code", keep="first", maintain_order=True)
        texts = [""] * len(self.items.ids)
        for code, text in named.iter_rows():
            texts[self.items.rank[code]] = text
        return Texts.of(texts) if any(texts) else None


def _typed(batch: pl.DataFrame, table: Source, roles: dict[str, str]) -> pl.DataFrame:
    """user, item, value and title as they are stored, and of each row that cannot be used why not.

    `fault` names the row's own content, `kind` only what sort of fault it is.
    """
    shape = pl.col(FAULT) if FAULT in batch.columns else pl.lit(None, pl.String)
    columns, faults = {}, [(shape, shape)]
    for role in ("user", "item"):
        raw = pl.col(roles[role])
        columns[role], missing, odd = _id_column(raw, batch.schema[roles[role]], table, role)
        no_id = pl.when(missing).then(pl.lit(f"no {role} id"))
        faults.append((no_id, no_id))
        if odd is not None:
            shown = pl.when(odd).then(pl.format(f"{role} id {{}} is not a whole number", raw))
            faults.append((shown, pl.when(odd).then(pl.lit(f"{role} id not a whole number"))))
    if "value" in roles:
        raw = pl.col(roles["value"])
        kind = batch.schema[roles["value"]]
        if not (kind.is_numeric() or kind in (pl.String, pl.Boolean, pl.Null)):
            raise DataError(f"{table.name}: values must be numbers; column {roles['value']!r} is {kind}.")
        stripped = raw.str.strip_chars() if kind == pl.String else raw
        number = stripped.cast(pl.Float32, strict=False)
        columns["value"] = number
        missing = raw.is_null() | (stripped == "") if kind == pl.String else raw.is_null()
        absent = pl.when(missing).then(pl.lit("no value"))
        faults.append((absent, absent))
        odd = number.is_null() | ~number.is_finite()
        shown = pl.when(odd).then(pl.format("value {} is not a finite number", raw.cast(pl.String)))
        faults.append((shown, pl.when(odd).then(pl.lit("value not a finite number"))))
    if "title" in roles:
        text = pl.col(roles["title"]).cast(pl.String)
        columns["title"] = pl.when(text != "").then(text)
    fault, reason = (pl.coalesce([pair[side] for pair in faults]) for side in (0, 1))
    return batch.select(**columns, fault=fault, kind=reason)


def _id_column(
    raw: pl.Expr, kind: pl.DataType, table: Source, role: str
) -> tuple[pl.Expr, pl.Expr, pl.Expr | None]:
    """Ids as 64-bit integers or strings; which are missing; which are neither."""
    if kind == pl.Null:
        return raw.cast(pl.String), raw.is_null(), None
    if kind.is_integer():
        return raw.cast(pl.UInt64 if kind == pl.UInt64 else pl.Int64), raw.is_null(), None
    if kind.is_float():  # what pandas makes of integers as soon as one is missing
        whole = raw.cast(pl.Int64, strict=False)
        missing = raw.is_null() | raw.is_nan()
        return whole, missing, ~missing & (whole.is_null() | (whole.cast(kind) != raw))
    if kind == pl.String or isinstance(kind, pl.Categorical | pl.Enum):
        text = raw.cast(pl.String)
        return text, text.is_null() | (text == ""), None
    raise DataError(f"{table.name}: {role} ids must be integers or strings; the column is {kind}.")


def _last_of_each(
    rows: npt.NDArray[Any], columns: npt.NDArray[Any], data: npt.NDArray[Any], width: int
) -> tuple[npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[Any]]:
    pair = rows.astype(np.int64) * width + columns
    order = np.argsort(pair, kind="stable")
    last = order[np.append(pair[order[1:]] != pair[order[:-1]], True)]
    return rows[last], columns[last], data[last]


def _first_repeated(rows: npt.NDArray[Any], columns: npt.NDArray[Any], width: int) -> tuple[int, int]:
    pair = np.sort(rows.astype(np.int64) * width + columns)
    u, i = divmod(int(pair[1:][pair[1:] == pair[:-1]][0]), width)
    return u, i


# ── the result ────────────────────────────────────────────────────────────────────────────────────


def _finish(
    matrix: sp.csr_array,
    users: Ids,
    items: Ids,
    titles: Texts | None,
    table: object,
    title: str | None,
    min_value: float | None,
    binary: bool,
    skipped: dict[str, int],
    library: str | None,
) -> Interactions:
    """Values below the least dropped, and with them the users and items that have nothing left."""
    pairs = matrix.nnz
    if min_value is not None or (matrix.data.dtype != np.bool_ and not matrix.data.all()):
        keep = matrix.data != 0
        if min_value is not None:
            keep &= matrix.data >= min_value
        ends = np.concatenate([[0], np.cumsum(keep)])[matrix.indptr]
        matrix = sp.csr_array((matrix.data[keep], matrix.indices[keep], ends), shape=matrix.shape)
        if not matrix.nnz:
            why = f"of {pairs:,} pairs, all have a value of 0 or below min_value={min_value}"
            raise DataError(f"the table has no interactions left: {why}.")
        some_user = np.flatnonzero(np.diff(matrix.indptr))
        some_item = np.flatnonzero(np.bincount(matrix.indices, minlength=matrix.shape[1]))
        if len(some_user) < len(users):
            matrix, users = matrix[some_user], _subset(users, some_user)
        if len(some_item) < len(items):
            matrix, items = matrix[:, some_item], _subset(items, some_item)
            titles = None if titles is None else Texts.of(titles[i] for i in some_item.tolist())
    if binary:
        matrix = sp.csr_array(
            (np.ones(matrix.nnz, np.float32), matrix.indices, matrix.indptr), shape=matrix.shape
        )
    if table is not None:
        titles = _titles_from(table, items, title)
    out = Interactions(matrix, users, items, titles)
    out.skipped, out.library = skipped, library
    return out


def _subset(ids: Ids, keep: npt.NDArray[np.int64]) -> Ids:
    values = ids.values
    if isinstance(values, Texts):
        return Ids.of([values[i] for i in keep.tolist()], "kept")
    return Ids.of(values[keep], "kept")


def _titles_from(table: object, items: Ids, title: str | None) -> Texts | None:
    """Titles of these items, out of a table of items."""
    texts = [""] * len(items)
    for source in open_sources(table):
        item_column, title_column = find_titles(source, title)
        for batch in source.batches([item_column, title_column]):
            ids, named = batch[item_column], batch[title_column].cast(pl.String)
            ids = ids.cast(pl.String) if items.is_text else ids.cast(pl.Int64, strict=False)
            known = (
                pl.DataFrame({"id": ids, "title": named})
                .drop_nulls()
                .unique("id", keep="first", maintain_order=True)
            )
            for place, text in zip(items.find(known["id"].to_list(), "item"), known["title"], strict=True):
                if place >= 0 and not texts[place]:
                    texts[place] = text
    if not any(texts):
        raise DataError("the table of items names none of the items that were used: are the ids the same?")
    return Texts.of(texts)
