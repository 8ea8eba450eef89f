"""Find the original files of a data set: downloaded, in a folder, a zip or a tar."""

import gzip
import hashlib
import shutil
import tarfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from fnmatch import fnmatchcase
from functools import partial
from http.client import HTTPException
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import IO
from urllib.error import HTTPError
from urllib.request import urlopen
from zipfile import BadZipFile, ZipFile

from mrfrec.errors import DataError
from mrfrec_lab.datasets.registry import DataSet
from mrfrec_lab.places import writing

_PIECE = 2**20  # bytes
_TIMEOUT = 60  # seconds to wait for the server
_ARCHIVES = (".zip", ".tar", ".tar.gz", ".tgz")
_DAMAGE_ERRORS = (BadZipFile, tarfile.TarError, gzip.BadGzipFile, zlib.error, EOFError)


def advice(data_set: DataSet, folder: object = None) -> str:
    """Say how to get and prepare a data set."""
    options = "" if folder is None else f" --folder {folder}"
    command = f"python -m mrfrec_lab datasets prepare {data_set.name} --from PATH{options}"
    if data_set.url is None:
        return f"Get {data_set.archive}, or Kaggle's zip, by way of {data_set.page} and run: {command}."
    return f"Get {data_set.url} and run: {command}. Without --from PATH it is downloaded."


def download(data_set: DataSet, folder: Path) -> Path:
    """Return the archive in `folder`, downloaded if missing, after checking its MD5."""
    path = folder / data_set.archive
    url = data_set.url
    if not path.exists():
        if url is None:
            raise DataError(f"{data_set.title} cannot be downloaded from here. {advice(data_set)}")
        try:
            with (
                writing(path) as unfinished,
                urlopen(url, timeout=_TIMEOUT) as response,
                unfinished.open("wb") as file,
            ):
                shutil.copyfileobj(response, file, _PIECE)
                if response.length:
                    raise OSError(f"the download ended {response.length:,} bytes too early")
        except (OSError, HTTPException) as error:
            if isinstance(error, HTTPError):
                error.close()
            raise DataError(f"{url} could not be downloaded: {error}. {advice(data_set)}") from error
    with path.open("rb") as file:
        md5 = hashlib.file_digest(file, partial(hashlib.md5, usedforsecurity=False)).hexdigest()
    if data_set.md5 not in (None, md5):
        raise DataError(
            f"{path} is not the published file: its MD5 should be {data_set.md5}; it is {md5}. Delete it."
        )
    return path


@contextmanager
def original_files(data_set: DataSet, source: Path) -> Iterator[tuple[list[Path], Path | None]]:
    """Yield the files with ratings and the one with titles, if there is one.

    The files of an archive are copied to a temporary folder.
    """
    if not source.exists():
        raise DataError(f"there is no file or folder {source}. {advice(data_set)}")
    with TemporaryDirectory() as temporary:
        folder = source
        ratings = [source]
        if source.name.endswith(_ARCHIVES):
            folder = Path(temporary)
            try:
                _unpack(data_set, source, folder)
            except (*_DAMAGE_ERRORS, RuntimeError) as error:  # a RuntimeError asks for a password
                reason = str(error).rstrip(".") or type(error).__name__
                raise DataError(f"{source} is damaged or incomplete: {reason}. Get it again.") from error
        if folder.is_dir():
            patterns = [inside + name for inside in ("", "*/", "*/*/") for name in data_set.ratings]
            ratings = next(filter(None, (sorted(folder.glob(each)) for each in patterns)), [])
        if not ratings:
            wanted = " or ".join(data_set.ratings)
            raise DataError(f"{data_set.title} is not in {source}: no {wanted} in it. {advice(data_set)}")
        beside = ratings[0].parent
        titles = (place / name for place in (beside, beside.parent) for name in data_set.titles)
        yield ratings, next(filter(Path.is_file, titles), None)


def _unpack(data_set: DataSet, path: Path, folder: Path) -> None:
    """Copy the files that are wanted from an archive, and from archives in it, without their folders."""

    def copy(name: str, member: IO[bytes] | None) -> None:
        target = folder / PurePosixPath(name).name
        assert member is not None  # since it is a file
        with member:
            if target.exists():
                raise DataError(f"{path} holds several files {target.name}. Unpack it, and pass one of them.")
            with target.open("wb") as file:
                shutil.copyfileobj(member, file, _PIECE)
        if target.name in data_set.inner:
            _unpack(data_set, target, folder)

    def is_wanted(name: str) -> bool:
        names = (*data_set.ratings, *data_set.titles, *data_set.inner)
        return any(fnmatchcase(PurePosixPath(name).name, wanted) for wanted in names)

    if path.suffix == ".zip":
        with ZipFile(path) as archive:
            for name in filter(is_wanted, archive.namelist()):
                copy(name, archive.open(name))
    else:
        with tarfile.open(path) as tar:
            for info in tar:
                if info.isfile() and is_wanted(info.name):
                    copy(info.name, tar.extractfile(info))
