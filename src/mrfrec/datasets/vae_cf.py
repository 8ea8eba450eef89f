"""Write splits in the file layout of Liang et al. (2018), byte for byte as the notebook of vae_cf does.

https://github.com/dawenl/vae_cf
"""

from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from mrfrec.data.events import Events, Places
from mrfrec.evaluation.splits import strong_rows
from mrfrec.io.atomic import writing

__all__ = ["vae_cf_files", "write_files"]

_ROWS = 100_000  # rows per chunk
_PARTS = {
    "train.csv": "training",
    "validation_tr.csv": "validation shown",
    "validation_te.csv": "validation targets",
    "test_tr.csv": "test shown",
    "test_te.csv": "test targets",
}


def vae_cf_files(events: Events, heldout: int) -> dict[str, Iterator[bytes]]:
    """Return the content of each file as an iterator of chunks.

    unique_sid.txt lists item ids in the order of their first training row. The other files number users in
    the order of the permutation and items by their line in unique_sid.txt.
    """
    rows = strong_rows(events, heldout)
    found, first = np.unique(events.item[rows["training"]], return_index=True)
    items = found[np.argsort(first)]
    uid, sid = _places(rows["users"], events.n_users), _places(items, events.n_items)

    def pairs(chosen: Places) -> Iterator[bytes]:
        yield b"uid,sid\n"
        for start in range(0, len(chosen), _ROWS):
            part = chosen[start : start + _ROWS]
            numbers = zip(uid[events.user[part]].tolist(), sid[events.item[part]].tolist(), strict=True)
            yield "".join(map("%d,%d\n".__mod__, numbers)).encode()

    lines = (f"{events.items[item]}\n".encode() for item in items.tolist())
    return {"unique_sid.txt": lines} | {name: pairs(rows[part]) for name, part in _PARTS.items()}


def _places(order: Places, count: int) -> Places:
    place = np.full(count, -1)
    place[order] = np.arange(len(order))
    return place


def write_files(files: dict[str, Iterator[bytes]], folder: Path) -> list[Path]:
    """Write each file atomically."""
    return [_write(folder / name, pieces) for name, pieces in files.items()]


def _write(path: Path, pieces: Iterable[bytes]) -> Path:
    with writing(path) as unfinished, unfinished.open("wb") as file:
        file.writelines(pieces)
    return path
