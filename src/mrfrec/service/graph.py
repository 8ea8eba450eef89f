"""Draw an item and its neighbors as a graph: positions and widths of nodes and edges, in pixels.

Nothing is random: the same model and item give the same picture.
"""

import unicodedata
from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]

EDGES_PER_ITEM = 1  # lines from a neighbor to other neighbors; more of them hide each other
_THIN, _THICK = 0.8, 7.0  # widths of edges in pixels
_HEIGHT = 27.0  # height of a box
_GAP = 12  # space between boxes
_FONT = 13
_NARROW_LETTERS = frozenset(" !'()*,-./:;I[]`fijlrt{|}")
_BROAD_LETTERS = frozenset("%@MWmw—")


class Canvas(NamedTuple):
    """The size of a drawing, in pixels, and how much it shows."""

    width: int
    height: int
    label: int  # width of the widest label
    positive: int  # number of neighbors with positive weights
    negative: int


WIDE = Canvas(960, 600, 180, 18, 6)
NARROW = Canvas(360, 540, 100, 9, 3)


class Node(NamedTuple):
    """A labelled box; x and y are its middle."""

    item: Mapping[str, Any]
    x: float
    y: float
    width: float
    label: str
    sign: str  # "positive" or "negative", as the edge to the item in the middle; or "middle"
    height: float = _HEIGHT


class Edge(NamedTuple):
    """A line between two boxes."""

    x1: float
    y1: float
    x2: float
    y2: float
    width: float
    sign: str
    is_inner: bool  # begins at the item in the middle


def draw(
    items: Sequence[Mapping[str, Any]], weights: npt.NDArray[Any], canvas: Canvas
) -> tuple[list[Node], list[Edge]]:
    """Lay out items by the weights between them, n × n and symmetric, around the first item.

    Items have a `name` and an `id`. If two names are equal once they are cut, the ids label these items.
    """
    cut = [_shortened(item["name"], canvas.label) for item in items]
    seen = Counter(cut)
    labels = [
        _shortened(str(item["id"]), canvas.label) if seen[name] > 1 else name
        for item, name in zip(items, cut, strict=True)
    ]
    widths = [sum(map(_letter_width, label)) + 20 for label in labels]
    share = np.abs(weights) / (np.abs(weights).max() or 1.0)
    x, y = _ring(share, max(widths), canvas).T.tolist()
    thick = (_THIN + (_THICK - _THIN) * np.sqrt(share)).round(2).tolist()
    edges = [
        Edge(x[a], y[a], x[b], y[b], thick[a][b], _sign(weights[a, b]), a == 0)
        for a, b in _edges_to_draw(share)
    ]
    signs = ["middle", *map(_sign, weights[0, 1:])]
    return [Node(*each) for each in zip(items, x, y, widths, labels, signs, strict=True)], edges


def _edges_to_draw(share: Array) -> list[tuple[int, int]]:
    """Return the edges to draw: the strongest of every neighbor, weakest first, then all to the middle."""
    between = share.copy()
    between[0] = between[:, 0] = 0
    strongest = np.argsort(-between, axis=1, kind="stable")[:, :EDGES_PER_ITEM].tolist()
    kept = {(min(a, b), max(a, b)) for a, row in enumerate(strongest) for b in row if between[a, b] > 0}
    inner = [(0, b) for b in range(len(share) - 1, 0, -1)]
    return [*sorted(kept, key=lambda edge: (between[edge], edge)), *inner]


def _ring(share: Array, widest: float, canvas: Canvas) -> Array:
    """Return the positions of the items, n × 2: the first in the middle, its neighbors around it.

    Linked neighbors stand beside each other, as many on the left as on the right. The number of rows is even,
    so that no row meets the box in the middle.
    """
    order = _chain(share)
    middle = np.array([canvas.width, canvas.height]) / 2
    rows = 2 * -(-len(order) // 4)
    at = np.tile(middle, (len(share), 1))
    for index, item in enumerate(order):
        # Down on the right, up on the left.
        row = index if index < rows else 2 * rows - 1 - index
        height = (row + 0.5) / rows * 2 - 1
        least = widest / 2 + _GAP / 2
        most = middle[0] - widest / 2 - 2
        across = least + (most - least) * np.sqrt(1 - height**2)
        at[item] += (across if index < rows else -across, height * middle[1])
    return at.round(1)


def _chain(share: Array) -> list[int]:
    """Order the neighbors: the next one has the strongest link to the last, among all that are left."""
    left = np.ones(len(share), bool)
    left[0] = False
    order: list[int] = []
    while left.any():
        order.append(int(np.argmax(np.where(left, share[order[-1] if order else 0], -1))))
        left[order[-1]] = False
    return order


def _sign(weight: float) -> str:
    return "negative" if weight < 0 else "positive"


def _shortened(name: str, width: int) -> str:
    """Replace the middle of a name by an ellipsis, to fit a width in pixels.

    Names that begin alike often differ at their ends.
    """
    name = " ".join(name.split())
    if sum(map(_letter_width, name[:100])) <= width and len(name) <= 100:
        return name
    half = (width - _FONT) / 2
    begin = bisect_right(list(accumulate(map(_letter_width, name[:100]))), half)
    end = bisect_right(list(accumulate(map(_letter_width, name[:-101:-1]))), half)
    return f"{name[:begin].rstrip()}…{name[len(name) - end :].lstrip()}"


@lru_cache(maxsize=4096)
def _letter_width(letter: str) -> float:
    """Estimate the width of a letter in pixels, in a broad font."""
    if letter in _NARROW_LETTERS:
        return 0.42 * _FONT
    is_broad = letter in _BROAD_LETTERS or unicodedata.east_asian_width(letter) in "WF"
    return (1.05 if is_broad else 0.66) * _FONT
