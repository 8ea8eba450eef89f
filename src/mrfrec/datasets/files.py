"""Open the original files of a data set: downloaded, in a folder, a zip, a tar or a tar inside a tar.

Archives are read without unpacking.
"""

import gzip
import hashlib
import tarfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from fnmatch import fnmatchcase
from functools import partial
from http.client import HTTPException
from pathlib import Path, PurePosixPath
from typing import IO, TYPE_CHECKING, Any, NamedTuple, cast
from urllib.error import HTTPError
from urllib.request import urlopen
from zipfile import BadZipFile, ZipFile

from mrfrec.checks import warn
from mrfrec.datasets.registry import DataSet
from mrfrec.errors import DataError
from mrfrec.io.atomic import writing

if TYPE_CHECKING:
    from mrfrec.core.engine import Progress

_PIECE = 2**20  # bytes
_PATIENCE = 60  # seconds to wait for the server
_TARS = (".tar", ".tar.gz", ".tgz")
_DAMAGE = (BadZipFile, tarfile.TarError, gzip.BadGzipFile, zlib.error, EOFError)


class Original(NamedTuple):
    """An open original file."""

    place: str  # path to show in messages
    is_titles: bool
    file: IO[bytes]


def advice(data_set: DataSet, folder: object = None) -> str:
    """Say how to get and prepare a data set."""
    options = "" if folder is None else f" --folder {folder}"
    command = f"mrfrec paper datasets prepare {data_set.name} --from PATH{options}"
    if data_set.url is None:
        return f"Get {data_set.archive}, or Kaggle's zip, by way of {data_set.page} and run: {command}."
    return f"Get {data_set.url} and run: {command}. Without --from PATH it is downloaded."


def download(data_set: DataSet, folder: Path, progress: "Progress | None" = None) -> Path:
    """Return the archive in `folder`, downloaded if missing, after checking its MD5."""
    path, url = folder / data_set.archive, data_set.url
    if path.exists():
        _check_md5(data_set, path, f"{path} is not the published file. Delete it or replace it.")
        return path
    if url is None:
        raise DataError(
            f"{data_set.title} cannot be downloaded from here. {advice(data_set)}. Or put {data_set.archive} "
            f"into {folder}."
        )
    try:
        with writing(path) as unfinished:
            done = 0
            with urlopen(url, timeout=_PATIENCE) as answer, unfinished.open("wb") as file:
                total = int(answer.headers.get("Content-Length") or 0)
                while piece := answer.read(_PIECE):
                    done += file.write(piece)
                    if progress is not None:
                        progress("downloading", done, total)
            if done < total:
                raise OSError(f"the download stopped after {done:,} of {total:,} bytes")
            complaint = f"{url} returned a different file than the published one. Try again."
            md5 = _check_md5(data_set, unfinished, complaint)
    except (OSError, HTTPException) as error:
        reason = getattr(error, "reason", error)
        if isinstance(error, HTTPError):  # the server answered with an error status
            reason = str(error)
            error.close()
        raise DataError(
            f"{url} could not be downloaded to {folder}: {reason}. Without a network, copy the "
            f"archive from elsewhere and run: mrfrec paper datasets prepare {data_set.name} --from PATH"
        ) from error
    if data_set.md5 is None:
        warn(f"{data_set.archive} has no published checksum; the MD5 of the download is {md5}.")
    return path


def _check_md5(data_set: DataSet, path: Path, complaint: str) -> str:
    with path.open("rb") as file:
        found = hashlib.file_digest(file, partial(hashlib.md5, usedforsecurity=False)).hexdigest()
    if data_set.md5 not in (None, found):
        raise DataError(f"{complaint} Its MD5 should be {data_set.md5}; it is {found}.")
    return found


def open_originals(data_set: DataSet, source: Path) -> Iterator[Original]:
    """Yield the files with ratings and titles; each is open until the next is requested."""
    if not source.exists():
        raise DataError(f"there is no file or folder {source}. {advice(data_set)}")
    if source.is_dir():
        yield from _in_folder(data_set, source)
    elif source.name.endswith((".zip", *_TARS)):
        yield from _in_archive(data_set, source)
    elif data_set.form == "netflix":  # one of many files in the same folder
        yield from _in_folder(data_set, source.parent)
    else:  # the ratings, whatever their name
        yield from _opened(_titles_beside(data_set, [source.parent]), is_titles=True)
        yield from _opened([source], is_titles=False)


@contextmanager
def damage_named(source: Path) -> Iterator[None]:
    """Turn errors of a damaged archive into a `DataError`."""
    try:
        yield
    except _DAMAGE as error:
        reason = str(error).rstrip(".") or type(error).__name__
        raise DataError(
            f"{source} is damaged, incomplete, or not the type its name says: {reason}. Get it again."
        ) from error


def _in_folder(data_set: DataSet, folder: Path) -> Iterator[Original]:
    places = [folder, *(folder / inside for inside in data_set.folders)]
    for place in places:
        paths = sorted(path for name in data_set.ratings for path in place.glob(name) if path.is_file())
        if paths:
            yield from _opened(_titles_beside(data_set, [place, *places]), is_titles=True)
            yield from _opened(paths, is_titles=False)
            return
    archives = (data_set.archive, *data_set.inner)
    for archive in (place / name for place in places for name in archives):
        if archive.is_file():
            yield from _in_archive(data_set, archive)
            return
    wanted = " or ".join((*data_set.ratings, *archives))
    inside = f", nor in its {' or '.join(data_set.folders)}" if data_set.folders else ""
    raise DataError(
        f"{data_set.title} is not in {folder}: there is no {wanted} in it{inside}. {advice(data_set)}"
    )


def _titles_beside(data_set: DataSet, places: list[Path]) -> list[Path]:
    """Return the first file of titles that exists, as a list of at most one."""
    paths = (place / name for place in places for name in data_set.titles)
    return [path for path in paths if path.is_file()][:1]


def _opened(paths: list[Path], is_titles: bool) -> Iterator[Original]:
    for path in paths:
        with path.open("rb") as file:
            yield Original(str(path), is_titles, file)


def _in_archive(data_set: DataSet, path: Path) -> Iterator[Original]:
    kinds = set()
    members = _zipped if path.suffix == ".zip" else _tarred
    # Decompress here: tarfile would take a truncated file for a complete one.
    opened = gzip.open if path.suffix in (".gz", ".tgz") else open
    with opened(path, "rb") as file:
        for original in members(data_set, cast(IO[bytes], file), str(path)):
            kinds.add(original.is_titles)
            yield original
    if False not in kinds:
        wanted = " or ".join((*data_set.ratings, *data_set.inner))
        raise DataError(f"{data_set.title} is not in {path}: there is no {wanted} in it. {advice(data_set)}")
    if True not in kinds:
        yield from _opened(_titles_beside(data_set, [path.parent]), is_titles=True)


def _zipped(data_set: DataSet, file: IO[bytes], place: str) -> Iterator[Original]:
    with ZipFile(file) as archive:
        for name in archive.namelist():
            try:
                yield from _member(data_set, name, partial(archive.open, name), place)
            except RuntimeError as error:  # a password or an unsupported compression
                raise DataError(
                    f"{place}: {name} cannot be read: {error}. Unpack it and pass the folder."
                ) from error


def _tarred(data_set: DataSet, file: IO[bytes], place: str) -> Iterator[Original]:
    with tarfile.open(fileobj=file, mode="r|") as archive:  # as a stream, without seeking back
        for info in archive:
            if info.isfile():
                yield from _member(data_set, info.name, partial(archive.extractfile, info), place)
    while file.read(_PIECE):  # to the end: gzip's checksum comes last
        pass


def _member(data_set: DataSet, path: str, opened: Callable[[], Any], place: str) -> Iterator[Original]:
    """Yield a member of an archive if it is one of the files wanted, or those in an archive within it."""
    name, place = PurePosixPath(path).name, f"{place}: {path}"
    is_ratings = any(fnmatchcase(name, wanted) for wanted in data_set.ratings)
    if path.endswith("/") or not (is_ratings or name in (*data_set.titles, *data_set.inner)):
        return
    with opened() as member:
        if name in data_set.inner:
            yield from _tarred(data_set, member, place)
        else:
            yield Original(place, not is_ratings, member)
