"""One file per model: arrays in the safetensors format, facts as JSON in its header. docs/format.md.

Opening a model maps the file and reads the header alone. Every block of every array has a checksum, which is
compared the first time the block is read: what was altered is noticed before it is used, and a large model
still opens at once. The header carries a seal over itself, these checksums included.
"""

import hashlib
import json
import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, safe_open

from mrfrec.errors import ModelFileError
from mrfrec.io.atomic import writing

__all__ = ["FORMAT_VERSION", "Stored", "describe", "open_file", "write_file"]

FORMAT = "mrfrec"
FORMAT_VERSION = 1
_BLOCK = 1 << 20  # bytes with a checksum of their own
_TYPES = {
    "F32": "<f4", "F64": "<f8", "I32": "<i4", "I64": "<i8", "U8": "|u1", "U32": "<u4", "U64": "<u8",
}  # fmt: skip


class Stored:
    """An array in a file, checked block by block as it is first read."""

    def __init__(self, name: str, path: Path, array: npt.NDArray[Any], checksums: list[str]) -> None:
        self.name, self.path, self.array = name, path, array
        self._bytes = array.reshape(-1).view(np.uint8)
        self._checksums = checksums
        self._checked = np.zeros(len(checksums), np.bool_)

    def read(self) -> npt.NDArray[Any]:
        """All of it."""
        self.check(0, self.array.size)
        return self.array

    def check(self, start: int, stop: int) -> None:
        """Make sure that the elements from start to stop are what was written."""
        size = self.array.itemsize
        blocks = range(start * size // _BLOCK, -(-stop * size // _BLOCK) if stop > start else 0)
        unread = [block for block in blocks if not self._checked[block]]
        if len(unread) > 16:
            with ThreadPoolExecutor(os.cpu_count()) as pool:  # hashing leaves the interpreter's lock
                list(pool.map(self._check_block, unread))
        else:
            for block in unread:
                self._check_block(block)

    def _check_block(self, block: int) -> None:
        if _checksum(self._bytes[block * _BLOCK : (block + 1) * _BLOCK]) != self._checksums[block]:
            raise ModelFileError(
                f"{self.path} is damaged: {self.name!r} is not what was written. Use another copy, or "
                "train again."
            )
        self._checked[block] = True


def _checksum(block: npt.NDArray[np.uint8]) -> str:
    return hashlib.sha256(block.data).hexdigest()[:16]


def _seal(metadata: Mapping[str, str]) -> str:
    sealed = {name: text for name, text in metadata.items() if name != "seal"}
    return hashlib.sha256(json.dumps(sealed, sort_keys=True).encode()).hexdigest()


def write_file(
    path: str | os.PathLike[str], tensors: Mapping[str, npt.NDArray[Any]], facts: Mapping[str, Any]
) -> None:
    """Write arrays and facts (anything JSON can say) to a file, whole or not at all."""
    from safetensors.numpy import save_file

    names = {np.dtype(kind): name for name, kind in _TYPES.items()}
    arrays = {name: np.ascontiguousarray(array) for name, array in tensors.items()}
    table = {}
    for name, array in arrays.items():
        data = array.reshape(-1).view(np.uint8)
        checksums = [_checksum(data[start : start + _BLOCK]) for start in range(0, len(data), _BLOCK)]
        table[name] = {"dtype": names[array.dtype], "shape": array.shape, "checksums": checksums}
    metadata = {
        "format": FORMAT,
        "format_version": str(FORMAT_VERSION),
        "facts": json.dumps(facts, sort_keys=True, allow_nan=False),
        "tensors": json.dumps(table, sort_keys=True),
    }
    metadata["seal"] = _seal(metadata)
    try:
        with writing(path) as unfinished:
            save_file(arrays, unfinished, metadata)
    except (OSError, SafetensorError) as error:
        raise ModelFileError(
            f"{path} could not be written: {error}. What was there before is untouched."
        ) from error


def open_file(path: str | os.PathLike[str]) -> tuple[dict[str, Any], dict[str, Stored]]:
    """Facts and arrays of a file; refuses everything that is not a whole model this version knows."""
    file = Path(path).expanduser()
    if not file.is_file():
        raise ModelFileError(f"there is no model file {path}. Relative paths start from {Path.cwd()}.")
    try:
        with safe_open(file, framework="np") as opened:
            metadata = opened.metadata() or {}
    except (SafetensorError, OSError) as error:
        raise ModelFileError(f"{path} is not a model, or not a whole one: {error}.") from error
    if metadata.get("format") != FORMAT:
        raise ModelFileError(f"{path} is a safetensors file, but not a model of mrfrec.")
    version = metadata.get("format_version", "")
    if not version.isdecimal() or int(version) > FORMAT_VERSION:
        raise ModelFileError(
            f"{path} has format version {version}; this mrfrec reads up to {FORMAT_VERSION}. Upgrade mrfrec."
        )
    if _seal(metadata) != metadata.get("seal"):
        raise ModelFileError(f"{path} is damaged: its header is not what was written. Use another copy.")
    return json.loads(metadata["facts"]), _map(file, json.loads(metadata["tensors"]))


def describe(path: str | os.PathLike[str]) -> dict[str, Any]:
    """What a file holds, for people: its facts, and the type and shape of each array."""
    facts, arrays = open_file(path)
    shapes = {
        name: f"{stored.array.dtype} {list(stored.array.shape)}" for name, stored in sorted(arrays.items())
    }
    return {
        **facts,
        "file": {"format_version": FORMAT_VERSION, "bytes": Path(path).expanduser().stat().st_size},
        "arrays": shapes,
    }


def _map(file: Path, table: dict[str, Any]) -> dict[str, Stored]:
    """Every array where it lies; the header must place it as the sealed table says."""
    # Copy on write, never written: to numba a read-only array is another type, to be compiled for anew.
    raw = np.memmap(file, np.uint8, "c")
    length = int.from_bytes(raw[:8].tobytes(), "little")
    header = json.loads(raw[8 : 8 + length].tobytes())
    stored = {}
    for name, entry in table.items():
        found = header.get(name, {})
        if [found.get("dtype"), found.get("shape")] != [entry["dtype"], entry["shape"]]:
            raise ModelFileError(
                f"{file} is damaged: {name!r} is not where it was written. Use another copy."
            )
        start, stop = (8 + length + offset for offset in found["data_offsets"])
        array = np.asarray(raw[start:stop]).view(_TYPES[entry["dtype"]]).reshape(entry["shape"])
        stored[name] = Stored(name, file, array, entry["checksums"])
    return stored
