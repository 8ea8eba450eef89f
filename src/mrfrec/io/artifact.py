"""One file per model: safetensors arrays, and facts as JSON in its header (docs/reference/format.md).

Opening a model maps the file and reads only the header. Every block of an array has a checksum, which is
compared when the block is first read, so that no altered block is used and a large model opens at once. The
header carries a hash of itself, these checksums included: the file hash, which differs if anything in the
file does. Numbers must be finite.
"""

import hashlib
import json
import mmap
import os
import re
import sys
from collections.abc import Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from errno import ENAMETOOLONG, ENOENT
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, safe_open

from mrfrec.checks import shortened
from mrfrec.data.erasures import Erasures
from mrfrec.errors import ModelFileError, ParameterError
from mrfrec.io.atomic import file_path, keep_owner, writing, written_file

FORMAT = "mrfrec"
FORMAT_VERSION = 3
# The bytes of a block, a multiple of the size of every type.
_BLOCK = 1 << 20
_TYPES = {
    "F32": "<f4", "F64": "<f8", "I32": "<i4", "I64": "<i8", "U8": "|u1", "U32": "<u4", "U64": "<u8",
}  # fmt: skip
_NAMES = {np.dtype(kind): name for name, kind in _TYPES.items()}
# Not every Python has a name for this flag.
_NO_RESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000 if sys.platform == "linux" else 0)


class Stored:
    """An array in a file, checked block by block when it is first read."""

    def __init__(
        self, name: str, path: Path, array: npt.NDArray[Any], checksums: list[str], block: int
    ) -> None:
        self.name, self.path, self.array = name, path, array
        self._flat = array.reshape(-1)
        self._checksums = checksums
        # The elements of a block.
        self._block = block // array.itemsize
        self._below: int | None = None
        # 1 for a block that was checked.
        self._checked = bytearray(len(checksums))
        if self._block < 1 or len(checksums) != -(-array.size // self._block):
            raise self.damaged()

    def __reduce__(self) -> tuple[Any, ...]:
        # A pickle holds the checked array itself, since the file may be gone when it is read.
        size = self._block * self.array.itemsize
        return Stored, (self.name, self.path, np.array(self.read()), self._checksums, size)

    def bound(self, below: int) -> "Stored":
        """Also check that every element is an index from 0 to `below`, exclusive.

        Compiled code does not check indices, and a checksum does not prove who wrote the file.
        """
        if self.array.dtype not in (np.int32, np.int64):
            raise self.damaged()
        self._below = below
        return self

    def read(self) -> npt.NDArray[Any]:
        """Check the whole array and return it."""
        self.check(0, self.array.size)
        return self.array

    def check(self, start: int, stop: int) -> None:
        """Check the blocks of the elements from start to stop."""
        blocks = range(start // self._block, -(-stop // self._block) if stop > start else 0)
        unread = [block for block in blocks if not self._checked[block]]
        if len(unread) > 16:
            # Hashing releases the interpreter's lock.
            with ThreadPoolExecutor(os.cpu_count()) as pool:
                list(pool.map(self._check_block, unread))
        else:
            list(map(self._check_block, unread))

    def _check_block(self, block: int) -> None:
        part = self._flat[block * self._block : (block + 1) * self._block]
        is_bound = self._below is None or (part.min() >= 0 and part.max() < self._below)
        if _checksum(part.view(np.uint8)) != self._checksums[block] or not is_bound:
            raise self.damaged()
        if part.dtype.kind == "f" and not np.isfinite(part).all():
            raise self.damaged("holds numbers that are not finite")
        self._checked[block] = True

    def damaged(self, how: str = "is not what was written") -> ModelFileError:
        """Return the error that says what is wrong with the array."""
        return ModelFileError(
            f"{self.path} is damaged: {self.name!r} {how}. Use another copy, or train again."
        )


class StoredArrays(dict[str, Stored]):
    """The arrays of a file by name; a missing name raises a `ModelFileError`."""

    def __init__(self, path: Path, arrays: Mapping[str, Stored], file_hash: str) -> None:
        super().__init__(arrays)
        self.path, self.file_hash = path, file_hash

    def __missing__(self, name: str) -> Stored:
        raise ModelFileError(f"{self.path} lacks a part of a model: there is no array {name!r}.")

    def under(self, *prefixes: str) -> "StoredArrays":
        """Return the arrays whose names begin with one of the prefixes."""
        kept = {name: self[name] for name in self if name.startswith(prefixes)}
        return StoredArrays(self.path, kept, self.file_hash)


def _checksum(block: npt.NDArray[np.uint8]) -> str:
    return hashlib.sha256(block.data).hexdigest()[:16]


def _file_hash(metadata: Mapping[str, str]) -> str:
    hashed = {name: text for name, text in metadata.items() if name != "file_hash"}
    return hashlib.sha256(json.dumps(hashed, sort_keys=True).encode()).hexdigest()


def write_file(
    path: str | os.PathLike[str],
    tensors: Mapping[str, npt.NDArray[Any]],
    facts: Mapping[str, Any],
    *,
    mode: int | None = None,
    file_hashes: Collection[str] | None = None,
) -> str:
    """Write arrays and facts (anything JSON can hold) to a file, atomically; return the file hash.

    An old file is replaced only if it has one of the `file_hashes`; None replaces any. `mode` is as for
    `writing`. The same arrays and facts give the same bytes; the safetensors library would order the header
    differently every time.
    """
    _check_arrays(path, tensors)
    try:
        encoded_facts = json.dumps(facts, sort_keys=True, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ModelFileError(
            f"{path}: parameters and state must be what JSON can hold (numbers, strings, lists, "
            f"dictionaries): {error}."
        ) from error
    # The widest types come first, so that every array is aligned.
    ordered = sorted(tensors, key=lambda name: (-tensors[name].itemsize, name))
    arrays = {name: np.ascontiguousarray(tensors[name]) for name in ordered}
    bytes_of = {name: array.reshape(-1).view(np.uint8) for name, array in arrays.items()}
    table, offsets, end = {}, {}, 0
    for name, array in arrays.items():
        data = bytes_of[name]
        checksums = [_checksum(data[start : start + _BLOCK]) for start in range(0, len(data), _BLOCK)]
        entry = {"dtype": _NAMES[array.dtype], "shape": array.shape}
        table[name] = {**entry, "checksums": checksums}
        offsets[name] = {**entry, "data_offsets": [end, end + len(data)]}
        end += len(data)
    metadata = {
        "block": str(_BLOCK),
        "facts": encoded_facts,
        "format": FORMAT,
        "format_version": str(FORMAT_VERSION),
        "tensors": json.dumps(table, sort_keys=True),
    }
    metadata["file_hash"] = _file_hash(metadata)
    header = json.dumps({"__metadata__": metadata, **offsets}, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)
    try:
        check = None if file_hashes is None else partial(check_unchanged, path, file_hashes)
        with writing(path, mode=mode, check=check) as unfinished, unfinished.open("wb") as file:
            file.write(len(header).to_bytes(8, "little") + header)
            for data in bytes_of.values():
                # Ctrl-C works between two blocks.
                for start in range(0, len(data), _BLOCK):
                    file.write(data[start : start + _BLOCK].data)
    except OSError as error:
        reason = error.strerror or error
        raise ModelFileError(
            f"{path} could not be written: {reason}. What was there before is untouched."
        ) from error
    return metadata["file_hash"]


def check_unchanged(path: str | os.PathLike[str], file_hashes: Collection[str]) -> None:
    """Refuse to replace a file that has none of these file hashes: it is not the file that was read."""
    try:
        file_hash = open_file(path)[1].file_hash
    except ModelFileError:
        # The file is no model, or there is none.
        file_hash = ""
    if file_hash not in file_hashes and file_path(path).exists():
        raise ModelFileError(
            f"{path} was replaced, by another process or model, since it was loaded or saved. Nothing was "
            "written. Load it again and repeat the change (run the command again), or save under another "
            "name; save(…, replace_changed=True) replaces the file all the same."
        )


def _check_arrays(path: str | os.PathLike[str], arrays: Mapping[str, npt.NDArray[Any]]) -> None:
    for name, array in arrays.items():
        if array.dtype not in _NAMES:
            raise ModelFileError(f"{path}: {name!r} has the type {array.dtype}, which a file cannot hold.")
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            raise ModelFileError(f"{path}: {name!r} holds numbers that are not finite. Train again.")


def model_file(path: str | os.PathLike[str]) -> Path:
    """Return the path of a model file; refuse a folder, or a pipe, for which a reader would wait forever."""
    file = file_path(path)
    if file.is_dir():
        raise ModelFileError(f"{path} is a folder, not a model file.")
    if not file.is_file():
        start = "" if file.is_absolute() else f" Relative paths start from {Path.cwd()}."
        raise ModelFileError(f"there is no model file {path}.{start}")
    return file


def open_file(path: str | os.PathLike[str]) -> tuple[dict[str, Any], StoredArrays]:
    """Return the facts and arrays of a file; refuse everything but a whole model of this version."""
    try:
        file = model_file(path)
        # If the file may not be read, this error says why.
        file.open("rb").close()
        # safetensors checks the header and the length of the file.
        with safe_open(file, framework="np"):
            raw = _mapped(file)
        length = int.from_bytes(raw[:8].tobytes(), "little")
        header = json.loads(raw[8 : 8 + length].tobytes())
    except OSError as error:
        raise ModelFileError(f"{path} could not be read: {error.strerror or error}.") from error
    except (SafetensorError, ValueError, RecursionError) as error:
        if isinstance(error, ModelFileError | ParameterError):
            raise
        raise ModelFileError(
            f"{path} is not a model of mrfrec, or not a whole one. Use another copy, or train again."
        ) from error
    metadata = header.get("__metadata__") or {}
    if metadata.get("format") != FORMAT:
        raise ModelFileError(f"{path} is a safetensors file, but not a model of mrfrec.")
    version = shortened(str(metadata.get("format_version")), 20)
    if version != str(FORMAT_VERSION):
        raise ModelFileError(
            f"{path} was written by another version of mrfrec, in the format {version}, where this one reads "
            f"{FORMAT_VERSION}: fit the model again."
        )
    if _file_hash(metadata) != metadata.get("file_hash"):
        raise ModelFileError(f"{path} is damaged: its header is not what was written. Use another copy.")
    try:
        facts, table, block = (json.loads(metadata[name]) for name in ("facts", "tensors", "block"))
        if not isinstance(facts, dict) or type(block) is not int:
            raise TypeError("facts or block")
        stored = StoredArrays(file, {}, metadata["file_hash"])
        for name, entry in table.items():
            stands = header.get(name, {})
            if [stands.get("dtype"), stands.get("shape")] != [entry["dtype"], entry["shape"]]:
                raise ModelFileError(
                    f"{path} is damaged: {name!r} is not where it was written. Use another copy."
                )
            start, stop = (8 + length + offset for offset in stands["data_offsets"])
            array = raw[start:stop].view(_TYPES[entry["dtype"]]).reshape(entry["shape"])
            stored[name] = Stored(name, file, array, list(entry["checksums"]), block)
        return facts, stored
    except ModelFileError:
        raise
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError) as error:
        raise ModelFileError(f"{path} lacks a part of a model, or has one that is not valid.") from error


def _mapped(file: Path) -> npt.NDArray[np.uint8]:
    """Map a file into memory; its bytes are read when they are used.

    The mapping is copy on write, though nothing writes to it, since numba compiles again for read-only
    arrays. It reserves no memory for copies, so that a model may be larger than the memory.
    """
    flags, access = mmap.MAP_PRIVATE | _NO_RESERVE, mmap.PROT_READ | mmap.PROT_WRITE
    with file.open("rb") as opened:
        return np.frombuffer(mmap.mmap(opened.fileno(), 0, flags=flags, prot=access), np.uint8)


def describe(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Describe a file: its facts, and the types and shapes of its arrays."""
    facts, arrays = open_file(path)
    shapes = {name: f"{one.array.dtype} {list(one.array.shape)}" for name, one in sorted(arrays.items())}
    file = {"format_version": FORMAT_VERSION, "bytes": file_path(path).stat().st_size}
    return {**facts, "file": file, "arrays": shapes}


# The earlier models that a nightly job keeps have a time in their names, and share the file of erasures.
_KEPT = re.compile(r"\.\d{8}T\d{6}\.\d+Z(?=\.[^.]*$|$)")


def erasures_file(model: str | os.PathLike[str]) -> Path:
    """Return the file of erasures beside a model; a link has the file of its target.

    The file outlives all versions of the model, also when one is restored from a back-up.
    """
    target = written_file(model)
    return target.with_name(f"{_KEPT.sub('', target.name)}.erased")


def read_erasures(model: str | os.PathLike[str]) -> Erasures | None:
    """Read the file of erasures beside a model; return None if there is none.

    Raises a `ModelFileError` if the file is damaged, and a `PermissionError` if this user may not read it.
    """
    path = erasures_file(model)
    try:
        return Erasures.of_facts(json.loads(path.read_bytes()))
    except PermissionError:
        raise
    except (OSError, ValueError, TypeError, AttributeError, RecursionError) as error:
        if isinstance(error, OSError) and error.errno in (ENOENT, ENAMETOOLONG):
            return None
        raise ModelFileError(
            f"{path} does not hold the people who were forgotten, as mrfrec forget writes them. Restore it "
            "from a back-up: without it, they may come back with old events."
        ) from error


def write_erasures(model: str | os.PathLike[str], erasures: Erasures) -> None:
    """Add erasures to the file beside a model. Only its owner can read it."""
    if not len(erasures) or not erasures.beyond(old := read_erasures(model) or Erasures()):
        return
    path, target = erasures_file(model), written_file(model)
    with writing(path, mode=0o600) as unfinished:
        unfinished.write_text(json.dumps(erasures.joined(old).days, indent=1, sort_keys=True) + "\n")
        if target.exists():
            keep_owner(target, unfinished)
