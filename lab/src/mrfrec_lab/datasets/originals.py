"""Read original files, write their pairs to Parquet, and splits as vae_cf does."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np
import polars as pl

from mrfrec import Interactions, read_interactions
from mrfrec.data.ids import Ids, Texts, positions_in
from mrfrec.errors import DataError
from mrfrec.evaluation.splits import owners, strong_parts
from mrfrec.io.batches import reading
from mrfrec_lab.datasets.files import original_files
from mrfrec_lab.datasets.registry import DataSet
from mrfrec_lab.places import Progress, writing

_RATING = ("user", "item", "value", "time")
_FORMS: dict[str, dict[str, Any]] = {  # of the ratings, as parameters of `read_interactions`
    "csv": {"user": "userId", "item": "movieId", "value": "rating", "time": "timestamp", "separator": ","},
    "dat": {"columns": _RATING, "time": True, "separator": "::"},
    "tab": {"columns": _RATING, "time": True, "separator": "\t"},
    "triplets": {"columns": _RATING[:3], "separator": "\t"},
}
_TITLES = {  # number and title in a line
    "dat": r"(\d+)::(.*)::.*",  # titles may contain the separator; the last field holds genres
    "tab": r"(\d+)\|(.*?)(?:\|.*)?",
    "netflix": r"(\d+),.*?,(.*)",  # number, year, title
}


def read_original(data_set: DataSet, source: Path, progress: Progress | None = None) -> Interactions:
    """Read all rows with a value that counts, each pair once."""
    with original_files(data_set, source) as (paths, titles):
        items = None if titles is None else _read_titles(data_set, titles)
        options: dict[str, Any] = {"min_value": data_set.min_value, "items": items, "progress": progress}
        if data_set.form == "netflix":
            count = 0
            kept = []
            for path in paths:
                rows = _read_netflix(path)
                count += len(rows)
                kept.append(rows.filter(pl.col("value") >= data_set.min_value))
            _check_rows(data_set, source, count)
            return read_interactions(pl.concat(kept), time=True, **options)
        if len(paths) > 1:
            raise DataError(f"both {paths[0]} and {paths[1]} hold ratings: pass one of them.")
        with reading(str(paths[0])):
            lines = int(pl.scan_lines(paths[0], glob=False).select(pl.len()).collect().item())
        _check_rows(data_set, source, lines - (data_set.form == "csv"))
        data = read_interactions(paths[0], input_format="csv", **_FORMS[data_set.form], **options)
    if data_set.form != "triplets" and (data.users.is_text or data.items.is_text):
        raise DataError(f"{source}: not all ids are integers. It is damaged, or another data set.")
    return data


def _check_rows(data_set: DataSet, source: Path, count: int) -> None:
    if data_set.rows not in (None, count):
        raise DataError(
            f"{source} has {count:,} rows, but {data_set.title} has {data_set.rows:,}: it is another data "
            "set, or incomplete."
        )


def _read_netflix(path: Path) -> pl.DataFrame:
    """Read a file in which the rows of a movie come after a line with its number, "7:"."""
    line = pl.col("line")
    rule = f"{path}: each line must be user,value,date, or item:"
    try:
        rows = (
            pl.scan_lines(path, glob=False)
            .with_columns(item=line.str.extract(r"^(\d+):$").cast(pl.Int32).forward_fill())
            .filter(~line.str.contains(r"^\d+:$"))
            .select("item", line.str.splitn(",", 3).struct.rename_fields(["user", "value", "time"]))
            .unnest("line")
            .with_columns(
                pl.col("user").cast(pl.Int32),
                pl.col("value").cast(pl.Float32),
                pl.col("time").str.to_date("%Y-%m-%d").dt.epoch("s"),
            )
            .collect()
        )
    except pl.exceptions.PolarsError as error:
        raise DataError(f"{rule}. {str(error).splitlines()[0][:200]}") from error
    if any(column.null_count() for column in rows):
        raise DataError(f"{rule}.")
    return rows


def _read_titles(data_set: DataSet, path: Path) -> Path | pl.DataFrame:
    """Return the table of titles: the file itself if it is CSV."""
    if data_set.form == "csv":
        return path
    try:
        text = path.read_bytes().decode(data_set.encoding).replace("\r\n", "\n").removesuffix("\n")
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not text in {data_set.encoding}: {error}.") from error
    pairs = []
    for number, line in enumerate(text.split("\n"), 1):
        found = re.fullmatch(_TITLES[data_set.form], line)
        if found is None:
            raise DataError(f"{path}, line {number:,}: it must have an item number and a title.")
        pairs.append((int(found[1]), found[2]))
    return pl.DataFrame(pairs, schema=["item", "title"], orient="row")


def write_pairs(data: Interactions, path: Path, titles: Path) -> None:
    """Write user, item and, if known, time (seconds since 1970) of each pair; titles to their own file."""
    items = _series(data.items)
    tables: dict[Path, dict[str, pl.Series]] = {}
    if data.titles is None:
        titles.unlink(missing_ok=True)
    else:
        tables[titles] = {"item": items, "title": pl.Series(list(data.titles))}
    # Written last: its presence means that everything is there.
    user, item = owners(data.matrix), data.matrix.indices
    tables[path] = {"user": _series(data.users).gather(user), "item": items.gather(item)}
    if data.times is not None:
        tables[path]["time"] = pl.Series(data.times // 1_000_000)
    for target, columns in tables.items():
        with writing(target) as unfinished, unfinished.open("r+b") as file:
            pl.DataFrame(columns).write_parquet(file)


def _series(ids: Ids) -> pl.Series:
    return pl.Series(list(ids.values) if isinstance(ids.values, Texts) else ids.values)


def vae_cf_tables(data: Interactions, heldout: int) -> Iterator[tuple[str, pl.DataFrame]]:
    """Yield the files of a split in the layout of Liang et al. (2018), as the notebook of vae_cf writes them.

    The notebook reads tables that are sorted by user and item, and these are too. unique_sid.txt lists item
    ids in the order of their first training row. The other files number users in the order of the permutation
    and items by their line in unique_sid.txt.

    https://github.com/dawenl/vae_cf
    """
    parts = strong_parts(data, heldout)
    user, item = owners(data.matrix), data.matrix.indices
    found, first = np.unique(item[parts.training], return_index=True)
    items = found[np.argsort(first)]
    uid, sid = positions_in(parts.users, data.n_users), positions_in(items, data.n_items)
    yield "unique_sid.txt", pl.DataFrame({"sid": _series(data.items).gather(items)})
    files = {"train.csv": parts.training}
    for name, (shown, targets) in (("validation", parts.validation), ("test", parts.test)):
        files |= {f"{name}_tr.csv": shown, f"{name}_te.csv": targets}
    for file, chosen in files.items():
        yield file, pl.DataFrame({"uid": uid[user[chosen]], "sid": sid[item[chosen]]})


def write_vae_cf_table(file: str, table: pl.DataFrame, target: IO[bytes]) -> None:
    """Write a file of vae_cf; that of the items has no header."""
    table.write_csv(target, include_header=file.endswith(".csv"), quote_style="never")
