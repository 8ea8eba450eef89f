"""One file per model: arrays in the safetensors format, facts as JSON in its header. docs/format.md.

Opening a model maps the file and reads the header alone. Every block of every array has a checksum, which is
compared the first time the block is read: what was altered is noticed before it is used, and a large model
still opens at once. The header carries a seal over itself, these checksums included.
"""

import hashlib
import json
import mmap
import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, safe_open

from mrfrec.errors import ModelFileError
from mrfrec.io.atomic import expanded, writing

__all__ = ["FORMAT_VERSION", "Stored", "describe", "open_file", "write_file"]

FORMAT = "mrfrec"
FORMAT_VERSION = 1
_BLOCK = 1 << 20  # bytes with a checksum of their own; a multiple of every type's size
_TYPES = {
    "F32": "<f4", "F64": "<f8", "I32": "<i4", "I64": "<i8", "U8": "|u1", "U32": "<u4", "U64": "<u8",
}  # fmt: skip
_NO_RESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000)  # of Linux; not every Python knows its name


class Stored:
    """An array in a file, checked block by block as it is first read."""

    def __init__(
        self, name: str, path: Path, array: npt.NDArray[Any], checksums: list[str], block: int
    ) -> None:
        self.name, self.path, self.array = name, path, array
        self._flat = array.reshape(-1)
        self._checksums = checksums
        self._size = array.itemsize
        self._block = block // array.itemsize  # in elements
        self._below: int | None = None
        self._checked = np.zeros(len(checksums), np.bool_)
        if self._block < 1 or len(checksums) != -(-array.size // self._block):
            raise self.damaged()

    def __reduce__(self) -> tuple[Any, ...]:  # to another process it goes whole, and checked
        return Stored, (
            self.name,
            self.path,
            np.array(self.read()),
            self._checksums,
            self._block * self._size,
        )

    def bound(self, below: int) -> "Stored":
        """Also make sure that every element that is read is a position below this.

        Compiled code goes where positions lead without looking, and a checksum is no proof of origin.
        """
        if self.array.dtype.kind not in "iu":
            raise self.damaged()
        self._below = below
        return self

    def read(self) -> npt.NDArray[Any]:
        """All of it."""
        self.check(0, self.array.size)
        return self.array

    def check(self, start: int, stop: int) -> None:
        """Make sure that the elements from start to stop are what was written."""
        blocks = range(start // self._block, -(-stop // self._block) if stop > start else 0)
        unread = [block for block in blocks if not self._checked[block]]
        if len(unread) > 16:
            with ThreadPoolExecutor(os.cpu_count()) as pool:  # hashing leaves the interpreter's lock
                list(pool.map(self._check_block, unread))
        else:
            for block in unread:
                self._check_block(block)

    def _check_block(self, block: int) -> None:
        part = self._flat[block * self._block : (block + 1) * self._block]
        if _checksum(part.view(np.uint8)) != self._checksums[block]:
            raise self.damaged()
        if self._below is not None and not (part.min() >= 0 and part.max() < self._below):
            raise self.damaged()
        self._checked[block] = True

    def damaged(self) -> ModelFileError:
        """What to raise where the array is not what it should be."""
        return ModelFileError(
            f"{self.path} is damaged: {self.name!r} is not what was written. Use another copy, or train "
            "again."
        )


def _checksum(block: npt.NDArray[np.uint8]) -> str:
    return hashlib.sha256(block.data).hexdigest()[:16]


def _seal(metadata: Mapping[str, str]) -> str:
    sealed = {name: text for name, text in metadata.items() if name != "seal"}
    return hashlib.sha256(json.dumps(sealed, sort_keys=True).encode()).hexdigest()


def write_file(
    path: str | os.PathLike[str], tensors: Mapping[str, npt.NDArray[Any]], facts: Mapping[str, Any]
) -> None:
    """Write arrays and facts (anything JSON can say) to a file, whole or not at all.

    The same arrays and facts make the same bytes: that is why the header is not left to the library, which
    puts it in an order of its own every time.
    """
    names = {np.dtype(kind): name for name, kind in _TYPES.items()}
    # The widest types first, so that every array lies where its type may.
    ordered = sorted(tensors, key=lambda name: (-tensors[name].itemsize, name))
    arrays = {name: np.ascontiguousarray(tensors[name]) for name in ordered}
    bytes_of = {name: array.reshape(-1).view(np.uint8) for name, array in arrays.items()}
    table, placed, end = {}, {}, 0
    for name, array in arrays.items():
        data = bytes_of[name]
        checksums = [_checksum(data[start : start + _BLOCK]) for start in range(0, len(data), _BLOCK)]
        entry = {"dtype": names[array.dtype], "shape": array.shape}
        table[name] = {**entry, "checksums": checksums}
        placed[name] = {**entry, "data_offsets": [end, end + len(data)]}
        end += len(data)
    metadata = {
        "block": str(_BLOCK),
        "facts": json.dumps(facts, sort_keys=True, allow_nan=False),
        "format": FORMAT,
        "format_version": str(FORMAT_VERSION),
        "tensors": json.dumps(table, sort_keys=True),
    }
    metadata["seal"] = _seal(metadata)
    header = json.dumps({"__metadata__": metadata, **placed}, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)
    try:
        with writing(path) as unfinished, unfinished.open("wb") as file:
            file.write(len(header).to_bytes(8, "little") + header)
            for data in bytes_of.values():
                for start in range(0, len(data), _BLOCK):  # so that Ctrl-C is heard in between
                    file.write(data[start : start + _BLOCK].data)
    except OSError as error:
        reason = error.strerror or error
        raise ModelFileError(
            f"{path} could not be written: {reason}. What was there before is untouched."
        ) from error


def open_file(path: str | os.PathLike[str]) -> tuple[dict[str, Any], dict[str, Stored]]:
    """Facts and arrays of a file; refuses everything that is not a whole model this version knows."""
    file = expanded(path)
    try:
        if file.is_dir():
            raise ModelFileError(f"{path} is a folder, not a model file.")
        if not file.is_file():
            raise ModelFileError(f"there is no model file {path}. Relative paths start from {Path.cwd()}.")
        with safe_open(file, framework="np"):  # refuses what is not of the format, to the last byte
            raw = _mapped(file)
        length = int.from_bytes(raw[:8].tobytes(), "little")
        header = json.loads(raw[8 : 8 + length].tobytes())
    except (SafetensorError, OSError) as error:
        raise ModelFileError(f"{path} is not a model of mrfrec, or not a whole one: {error}.") from error
    metadata = header.get("__metadata__") or {}
    if metadata.get("format") != FORMAT:
        raise ModelFileError(f"{path} is a safetensors file, but not a model of mrfrec.")
    version = metadata.get("format_version", "")
    if not version.isdecimal() or len(version) > 9 or int(version) > FORMAT_VERSION:
        raise ModelFileError(
            f"{path} has format version {version}; this mrfrec reads up to {FORMAT_VERSION}. Upgrade mrfrec."
        )
    if _seal(metadata) != metadata.get("seal"):
        raise ModelFileError(f"{path} is damaged: its header is not what was written. Use another copy.")
    try:
        facts, table, block = (json.loads(metadata[name]) for name in ("facts", "tensors", "block"))
        return facts, _placed(file, raw[8 + length :], header, table, block)
    except ModelFileError:
        raise
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError) as error:
        raise ModelFileError(f"{path} lacks a part of a model: {error!r}.") from error


def describe(path: str | os.PathLike[str]) -> dict[str, Any]:
    """What a file holds, for people: its facts, and the type and shape of each array."""
    facts, arrays = open_file(path)
    shapes = {
        name: f"{stored.array.dtype} {list(stored.array.shape)}" for name, stored in sorted(arrays.items())
    }
    return {
        **facts,
        "file": {"format_version": FORMAT_VERSION, "bytes": expanded(path).stat().st_size},
        "arrays": shapes,
    }


def _mapped(file: Path) -> npt.NDArray[np.uint8]:
    """The bytes of a file, read when they are looked at.

    Copy on write, though never written: to numba a read-only array is another type, to be compiled for anew.
    No memory is reserved for such copies, or a model larger than the memory could not be opened.
    """
    with file.open("rb") as opened:
        mapping = mmap.mmap(
            opened.fileno(), 0, flags=mmap.MAP_PRIVATE | _NO_RESERVE, prot=mmap.PROT_READ | mmap.PROT_WRITE
        )
    return np.frombuffer(mapping, np.uint8)


def _placed(
    file: Path, data: npt.NDArray[np.uint8], header: dict[str, Any], table: dict[str, Any], block: int
) -> dict[str, Stored]:
    """Every array where it lies; the header must place it as the sealed table says."""
    stored = {}
    for name, entry in table.items():
        found = header.get(name, {})
        if [found.get("dtype"), found.get("shape")] != [entry["dtype"], entry["shape"]]:
            raise ModelFileError(
                f"{file} is damaged: {name!r} is not where it was written. Use another copy."
            )
        start, stop = found["data_offsets"]
        array = data[start:stop].view(_TYPES[entry["dtype"]]).reshape(entry["shape"])
        stored[name] = Stored(name, file, array, entry["checksums"], block)
    return stored
