"""Read original files, write their pairs to Parquet, and splits as vae_cf does."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt
import polars as pl

from mrfrec import Interactions, read_interactions
from mrfrec.errors import DataError
from mrfrec.evaluation import Questions, strong_generalisation
from mrfrec_lab.datasets.files import original_files
from mrfrec_lab.datasets.registry import DataSet
from mrfrec_lab.places import Progress, writing

_SEED = 98765  # of the published splits, and so of those of mrfrec
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
        with paths[0].open("rb") as file:
            lines = sum(1 for _ in file)
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
    pair = data.matrix.tocoo()
    users, items = pl.Series(list(data.users)), pl.Series(list(data.items))
    tables: dict[Path, dict[str, pl.Series]] = {}
    if data.titles is None:
        titles.unlink(missing_ok=True)
    else:
        tables[titles] = {"item": items, "title": pl.Series(list(data.titles))}
    # Written last: its presence means that everything is there.
    tables[path] = {"user": users.gather(pair.row), "item": items.gather(pair.col)}
    if data.times is not None:
        tables[path]["time"] = pl.Series(data.times // 1_000_000)
    for target, columns in tables.items():
        with writing(target) as unfinished, unfinished.open("r+b") as file:
            pl.DataFrame(columns).write_parquet(file)


def vae_cf_tables(data: Interactions, heldout: int) -> Iterator[tuple[str, pl.DataFrame]]:
    """Yield the files of a split in the layout of Liang et al. (2018), as the notebook of vae_cf writes them.

    The notebook reads tables that are sorted by user and item, and these are too. unique_sid.txt lists item
    ids in the order of their first training row. The other files number users in the order of the permutation
    and items by their line in unique_sid.txt.

    https://github.com/dawenl/vae_cf
    """
    split = strong_generalisation(data, heldout, min_items=0)
    pair = data.matrix.tocoo()
    # The split draws its users by the same numbers, the last of them for the test.
    uid = np.argsort(np.random.RandomState(_SEED).permutation(data.n_users))[pair.row]
    first_held_out, first_tested = data.n_users - 2 * heldout, data.n_users - heldout
    trained = uid < first_held_out
    found, first = np.unique(pair.col[trained], return_index=True)
    items = found[np.argsort(first)]
    sid = np.full(data.n_items, -1)
    sid[items] = np.arange(len(items))
    sid = sid[pair.col]
    yield "unique_sid.txt", pl.DataFrame({"sid": pl.Series(list(data.items)).gather(items)})
    files = {"train.csv": trained}
    of_test = uid >= first_tested
    for name, asked, part in (
        ("validation", split.validation, ~trained & ~of_test), ("test", split.test, of_test)
    ):  # fmt: skip
        hidden = _targets(data, asked)
        files |= {f"{name}_tr.csv": part & (sid >= 0) & ~hidden, f"{name}_te.csv": hidden}
    for file, chosen in files.items():
        yield file, pl.DataFrame({"uid": uid[chosen], "sid": sid[chosen]})


def _targets(data: Interactions, asked: Questions | None) -> npt.NDArray[np.bool_]:
    """Return for each pair of the data whether it is to be guessed."""
    assert asked is not None
    assert asked.items is not None
    users, items = data.users.find(list(asked.users), "user"), data.items.find(list(asked.items), "item")
    target = asked.targets.tocoo()
    pair = data.matrix.tocoo()
    return np.isin(
        pair.row.astype(np.int64) * data.n_items + pair.col,
        users[target.row].astype(np.int64) * data.n_items + items[target.col],
    )


def write_vae_cf_table(file: str, table: pl.DataFrame, target: IO[bytes]) -> None:
    """Write a file of vae_cf; that of the items has no header."""
    table.write_csv(target, include_header=file.endswith(".csv"), quote_style="never")
