"""The data sets of the paper: filtered once and stored as Parquet, then read, split and verified."""

import hashlib
from io import BytesIO
from os import PathLike
from pathlib import Path
from typing import NamedTuple

import numpy as np

from mrfrec import Interactions, read_interactions
from mrfrec.errors import DataError, ParameterError
from mrfrec.evaluation import Split, strong_generalisation
from mrfrec_lab.datasets.files import advice, download
from mrfrec_lab.datasets.originals import read_original, vae_cf_tables, write_pairs, write_vae_cf_table
from mrfrec_lab.datasets.registry import DATA_SETS, find
from mrfrec_lab.places import Progress, writing

Folder = str | PathLike[str] | None


class Listed(NamedTuple):
    """A data set and whether it is prepared."""

    name: str
    title: str
    prepared: bool
    size: int | None  # bytes of the prepared file


class Check(NamedTuple):
    """A published fact about a data set and the value found; None if it could not be computed."""

    what: str
    expected: int | str
    found: int | str | None

    @property
    def ok(self) -> bool:
        return self.expected == self.found

    @property
    def texts(self) -> list[str | None]:
        """What was expected and what was found, as texts."""
        return [f"{x:,}" if isinstance(x, int) else x for x in (self.expected, self.found)]


def available(folder: Folder = None) -> list[Listed]:
    """List the data sets that can be prepared, and whether they are."""
    listed = []
    for name, data_set in DATA_SETS.items():
        path, _ = _paths(name, folder)
        is_prepared = path.is_file()
        size = path.stat().st_size if is_prepared else None
        listed.append(Listed(name, data_set.title, is_prepared, size))
    return listed


def prepare(
    name: str, source: Folder = None, folder: Folder = None, progress: Progress | None = None
) -> Path:
    """Prepare a data set: read its original files, filter, and write one Parquet file.

    Parameters
    ----------
    name
        A name listed by `available`.
    source
        The published archive, the folder it unpacks to, or the file with the ratings. If None, use the
        archive in the folder or download it there; if the data set is already prepared, do nothing.
    folder
        Where prepared data sets are stored; ~/.cache/mrfrec/datasets if None. Created if missing.
    progress
        Called as `progress("reading", rows_done, rows_total)`.
    """
    data_set = find(name)
    path, titles = _paths(name, folder)
    if source is None and path.is_file():
        return path
    _make_folder(path.parent, "folder")
    original = download(data_set, path.parent) if source is None else Path(source).expanduser()
    read = read_original(data_set, original, progress)
    write_pairs(read.filtered(min_users=data_set.min_users, min_items=data_set.min_items), path, titles)
    return path


def load(name: str, folder: Folder = None) -> Interactions:
    """Load a data set as `Interactions`."""
    table, titles = _tables(name, folder)
    return read_interactions(table, items=titles)


def split(name: str, folder: Folder = None) -> Split:
    """Return the published split of a prepared data set, by strong generalisation."""
    heldout = find(name).heldout
    return strong_generalisation(load(name, folder), heldout, min_items=0, min_users=0)


def verify(name: str, folder: Folder = None) -> list[Check]:
    """Compare a prepared data set and its split with what is published about them."""
    data_set = find(name)
    data = load(name, folder)
    few = int((np.diff(data.matrix.indptr) < data_set.min_items).sum())
    can_be_split = data.n_users > 2 * data_set.heldout
    rows: dict[str, int] = {}  # of the files of the split
    sums: dict[str, str] = {}
    for file, table in vae_cf_tables(data, data_set.heldout) if can_be_split else ():
        rows[file] = table.height
        if file in data_set.split:
            content = BytesIO()
            write_vae_cf_table(file, table, content)
            sums[file] = hashlib.md5(content.getbuffer(), usedforsecurity=False).hexdigest()
    checks: list[tuple[str, int | str | None, int | str | None]] = [
        (f"users with fewer than {data_set.min_items} items", 0, few),
        ("events", data_set.events, len(data)),
        ("users", data_set.users, data.n_users),
        ("items", data_set.items, data.n_items),
        ("items of the training users", data_set.training_items, rows.get("unique_sid.txt")),
    ]
    for file, known in data_set.split.items():
        checks += [
            (f"rows of {file}", known.rows, rows.get(file)),
            (f"MD5 of {file}", known.md5, sums.get(file)),
        ]
    return [Check(what, known, value) for what, known, value in checks if known is not None]


def write_vae_cf(name: str, target: str | PathLike[str], folder: Folder = None) -> list[Path]:
    """Write the split of a prepared data set in the file layout of Liang et al.'s vae_cf."""
    data = load(name, folder)
    place = Path(target).expanduser()
    written = []
    for file, table in vae_cf_tables(data, find(name).heldout):
        _make_folder(place, "target")  # not if there is no split
        with writing(place / file) as unfinished, unfinished.open("wb") as out:
            write_vae_cf_table(file, table, out)
        written.append(place / file)
    return written


def _paths(name: str, folder: Folder) -> tuple[Path, Path]:
    """Return the paths of the events of a data set and of their titles."""
    place = Path.home() / ".cache" / "mrfrec" / "datasets" if folder is None else Path(folder).expanduser()
    return place / f"{name}.parquet", place / f"{name}.items.parquet"


def _tables(name: str, folder: Folder) -> tuple[Path, Path | None]:
    """Return the tables of events and of titles; None if there is no separate table of titles."""
    data_set = find(name)
    path, titles = _paths(name, folder)
    if not path.is_file():
        raise DataError(f"{data_set.title} is not prepared: there is no {path}. {advice(data_set, folder)}")
    return path, titles if titles.is_file() else None


def _make_folder(folder: Path, parameter: str) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise ParameterError(parameter, "a folder", str(folder), "A file has that name.") from None
