"""Write splits in the file layout of Liang et al. (2018), byte for byte as the notebook of vae_cf does.

https://github.com/dawenl/vae_cf
"""

from collections.abc import Iterator

import numpy as np

from mrfrec.data.events import Events
from mrfrec.data.ids import Places, positions_in
from mrfrec.evaluation.splits import strong_rows

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
    uid, sid = positions_in(rows["users"], events.n_users), positions_in(items, events.n_items)

    def pairs(chosen: Places) -> Iterator[bytes]:
        yield b"uid,sid\n"
        for start in range(0, len(chosen), _ROWS):
            part = chosen[start : start + _ROWS]
            numbers = zip(uid[events.user[part]].tolist(), sid[events.item[part]].tolist(), strict=True)
            yield "".join(map("%d,%d\n".__mod__, numbers)).encode()

    lines = (f"{events.items[item]}\n".encode() for item in items.tolist())
    return {"unique_sid.txt": lines} | {name: pairs(rows[part]) for name, part in _PARTS.items()}
