"""Prepare data sets: filter once, store as Parquet, load, split and verify."""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.resources import as_file, files
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

from mrfrec.datasets.registry import DATA_SETS, EMBEDDED, DataSet, find
from mrfrec.errors import DataError, ParameterError

if TYPE_CHECKING:
    from mrfrec.core.engine import Progress
    from mrfrec.data.events import Events
    from mrfrec.data.interactions import Interactions
    from mrfrec.evaluation.splits import Split

__all__ = [
    "Check",
    "Listed",
    "available",
    "events",
    "load",
    "prepare",
    "split",
    "verify",
    "write_vae_cf",
]

Folder = str | PathLike[str] | None


@dataclass(frozen=True)
class Listed:
    """A data set and whether it is prepared."""

    name: str
    title: str
    prepared: bool
    size: int | None  # bytes of the prepared file


@dataclass(frozen=True)
class Check:
    """A published fact about a data set and the value found; None if it could not be computed."""

    what: str
    expected: int | str
    found: int | str | None

    @property
    def ok(self) -> bool:
        return self.expected == self.found


def available(folder: Folder = None) -> list[Listed]:
    """List the data sets: those included in the package and those that can be prepared."""
    listed = []
    for name, title in EMBEDDED.items():
        with _tables(name, folder) as (table, _):
            listed.append(Listed(name, title, True, table.stat().st_size))
    for name, data_set in DATA_SETS.items():
        path = _path(data_set, folder)
        prepared = path.is_file()
        listed.append(Listed(name, data_set.title, prepared, path.stat().st_size if prepared else None))
    return listed


def prepare(
    name: str, source: Folder = None, folder: Folder = None, progress: "Progress | None" = None
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
        Called as `progress("download", bytes_done, bytes_total)` and `progress("read", rows_done,
        rows_total)`.
    """
    from mrfrec.datasets.files import download
    from mrfrec.datasets.originals import read_original, write_events, write_titles
    from mrfrec.evaluation.splits import filtered
    from mrfrec.io.atomic import check_writable, expanded

    data_set, path = find(name), _path(find(name), folder)
    if source is None and path.is_file():
        return path
    _make(path.parent, "folder")
    check_writable(path)
    original = download(data_set, path.parent, progress) if source is None else expanded(source)
    kept = filtered(
        read_original(data_set, original, progress),
        min_users=data_set.min_users,
        min_items=data_set.min_items,
    )
    titles = _titles_path(path)
    if kept.titles is None:
        titles.unlink(missing_ok=True)
    else:
        write_titles(kept.items, kept.titles, titles)
    write_events(kept, path)  # written last: its presence means that everything is
    return path


def events(name: str, folder: Folder = None) -> "Events":
    """Load a data set as `Events`, with rows in the order of the original."""
    from mrfrec.io.tables import read_events

    with _tables(name, folder) as (table, titles):
        return read_events(table, time=name not in EMBEDDED and find(name).has_times, items=titles)


def load(name: str, folder: Folder = None) -> "Interactions":
    """Load a data set as `Interactions`.

    "debian" is included in the package: the users are the source packages of Debian 12, the items the
    packages they are built with, and the titles their one-line descriptions. Every user has at least five
    items and every item at least five users. tools/build_debian.py builds it from Debian's package index.
    """
    from mrfrec.io.tables import read_interactions

    with _tables(name, folder) as (table, titles):
        return read_interactions(table, items=titles)


def split(name: str, folder: Folder = None) -> "Split":
    """Return the published split of a prepared data set, by strong generalisation."""
    from mrfrec.evaluation.splits import strong_generalisation

    data_set = find(name)
    return strong_generalisation(events(name, folder), data_set.heldout, min_items=0, min_users=0)


def verify(name: str, folder: Folder = None) -> list[Check]:
    """Compare a prepared data set and its split with the published numbers."""
    import numpy as np

    from mrfrec.datasets.vae_cf import vae_cf_files

    data_set, found = find(name), events(name, folder)
    few = int((np.bincount(found.user) < data_set.min_items).sum())
    checks = [
        Check("rows of a pair that was there before", 0, found.repeated),
        Check(f"users with fewer than {data_set.min_items} items", 0, few),
    ]
    counts = (
        ("events", data_set.events, len(found)),
        ("users", data_set.users, found.n_users),
        ("items", data_set.items, found.n_items),
    )
    checks += [Check(what, known, count) for what, known, count in counts if known is not None]
    made = vae_cf_files(found, data_set.heldout) if found.n_users > 2 * data_set.heldout else {}
    wanted = {"unique_sid.txt", *data_set.split}
    contents = {file: b"".join(pieces) for file, pieces in made.items() if file in wanted}
    if data_set.training_items is not None:
        count = contents["unique_sid.txt"].count(b"\n") if made else None
        checks.append(Check("items of the training users", data_set.training_items, count))
    for file, known in data_set.split.items():
        content = contents.get(file)
        if known.rows is not None:
            rows = None if content is None else content.count(b"\n") - 1
            checks.append(Check(f"rows of {file}", known.rows, rows))
        md5 = None if content is None else hashlib.md5(content, usedforsecurity=False).hexdigest()
        checks.append(Check(f"MD5 of {file}", known.md5, md5))
    return checks


def write_vae_cf(name: str, target: str | PathLike[str], folder: Folder = None) -> list[Path]:
    """Write the split of a prepared data set in the file layout of Liang et al.'s vae_cf."""
    from mrfrec.datasets.vae_cf import vae_cf_files, write_files
    from mrfrec.io.atomic import expanded

    data_set = find(name)
    made = vae_cf_files(events(name, folder), data_set.heldout)
    _make(expanded(target), "target")
    return write_files(made, expanded(target))


# ── paths ────────────────────────────────────────────────────────────────────────────────────────


def _path(data_set: DataSet, folder: Folder) -> Path:
    from mrfrec.io.atomic import expanded

    place = Path.home() / ".cache" / "mrfrec" / "datasets" if folder is None else expanded(folder)
    return place / f"{data_set.name}.parquet"


def _titles_path(path: Path) -> Path:
    return path.with_name(f"{path.stem}.items.parquet")


@contextmanager
def _tables(name: str, folder: Folder) -> Iterator[tuple[Path, Path | None]]:
    """Yield the paths of the tables of events and of titles; None if there is no separate table of titles."""
    from mrfrec.datasets.files import advice

    if name in tuple(EMBEDDED):
        with as_file(files("mrfrec.datasets") / f"{name}.parquet") as path:
            yield path, None
        return
    data_set = find(name)
    path = _path(data_set, folder)
    if not path.is_file():
        raise DataError(f"{data_set.title} is not prepared: there is no {path}. {advice(data_set, folder)}")
    titles = _titles_path(path)
    yield path, titles if titles.is_file() else None


def _make(folder: Path, parameter: str) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise ParameterError(
            parameter, "a folder, new or old", str(folder), "A file is in its way."
        ) from None
