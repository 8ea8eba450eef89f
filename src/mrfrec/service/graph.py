"""Draw an item and its neighbors as a graph: positions and widths of nodes and edges, in pixels.

The layout has nothing random in it: the same model and item give the same picture.
"""

import unicodedata
from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from html import escape
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]

_STEPS, _PUSHES = 40, 120  # of the layout, and to part labels that overlap
_EDGES_PER_NODE = 2  # between neighbors; more of them hide each other
_THIN, _THICK = 0.8, 7.0  # edges, in pixels
_HEIGHT, _GAP, _LEAST_GAP = 27, 12, 4  # a box, and between boxes
_FONT = 13
_NARROW_LETTERS, _BROAD_LETTERS = frozenset(" !'()*,-./:;I[]`fijlrt{|}"), frozenset("%@MWmw—")


class Canvas(NamedTuple):
    """The size of a drawing, in pixels, and how much it shows."""

    width: int
    height: int
    label: int  # the widest
    positive: int  # neighbors
    negative: int


WIDE = Canvas(960, 600, 180, 18, 6)
NARROW = Canvas(360, 540, 100, 9, 3)


class Node(NamedTuple):
    """A labelled box; x and y are its middle."""

    place: int  # among the names that were given
    x: float
    y: float
    width: float
    label: str
    sign: str  # of its edge to the item in the middle: "positive", "negative", or "middle"

    @property
    def svg(self) -> str:
        """Its rectangle and label."""
        x, y = round(self.x - self.width / 2, 1), round(self.y - _HEIGHT / 2, 1)
        return (
            f'<rect x="{x}" y="{y}" width="{self.width:.1f}" height="{_HEIGHT}" rx="{_HEIGHT / 2}"/>'
            f'<text x="{self.x}" y="{self.y}" dy=".34em">{escape(self.label)}</text>'
        )


class Edge(NamedTuple):
    """A line between two boxes."""

    x1: float
    y1: float
    x2: float
    y2: float
    width: float
    sign: str
    is_inner: bool  # begins at the item in the middle

    @property
    def svg(self) -> str:
        """Its line."""
        kind = f"{self.sign} inner" if self.is_inner else self.sign
        return (
            f'<line class="edge {kind}" x1="{self.x1}" y1="{self.y1}" x2="{self.x2}" y2="{self.y2}" '
            f'stroke-width="{self.width}"/>'
        )


class Drawing(NamedTuple):
    """A graph that is laid out."""

    canvas: Canvas
    nodes: list[Node]
    edges: list[Edge]


def distinct_names(names: Sequence[str], ids: Sequence[object], canvas: Canvas) -> list[str]:
    """Return names, or the ids of items whose names are the same once they are cut."""
    cut = [_shortened(name, canvas.label) for name in names]
    seen = Counter(cut)
    return [str(one) if seen[short] > 1 else name for name, one, short in zip(names, ids, cut, strict=True)]


def draw(names: Sequence[str], weights: npt.NDArray[Any], canvas: Canvas) -> Drawing:
    """Lay out items by the weights between them, n × n and symmetric; the first is in the middle."""
    labels = [_shortened(name, canvas.label) for name in names]
    sizes = np.array([[sum(map(_letter_width, label)) + 20, _HEIGHT] for label in labels])
    share = np.abs(weights) / (np.abs(weights).max() or 1.0)
    at = _parted(_layout(share), sizes, canvas)
    x, y, widths = at[:, 0].tolist(), at[:, 1].tolist(), sizes[:, 0].tolist()
    thick = (_THIN + (_THICK - _THIN) * np.sqrt(share)).round(2).tolist()
    edges = [
        Edge(x[a], y[a], x[b], y[b], thick[a][b], _sign(weights[a, b]), a == 0) for a, b in _drawn(share)
    ]
    signs = ["middle", *map(_sign, weights[0, 1:])]
    nodes = [Node(i, x[i], y[i], widths[i], labels[i], signs[i]) for i in range(len(names))]
    return Drawing(canvas, nodes, edges)


def _drawn(share: Array) -> list[tuple[int, int]]:
    """Return the edges to draw, the weakest first: all to the middle, the strongest between neighbors."""
    n = len(share)
    a, b = np.triu_indices(n, 1)
    strength = share[a, b]
    between = np.flatnonzero((a > 0) & (strength > 0))
    kept = between[np.argsort(-strength[between], kind="stable")[: _EDGES_PER_NODE * n]]
    order = [*kept[::-1].tolist(), *np.flatnonzero(a == 0)[::-1].tolist()]
    return [(int(a[e]), int(b[e])) for e in order]


def _layout(share: Array) -> Array:
    """Place nodes so that strong edges are short: minimize the stress by majorization (SMACOF)."""
    n = len(share)
    wanted = np.where(share > 0, 1.5 - 0.9 * np.sqrt(share), 2.0)
    wanted[0] = wanted[:, 0] = 1.5 - 0.5 * np.sqrt(share[0])  # never too near to the middle
    order = _chain(share)
    angle = np.zeros(n)
    angle[order] = 2 * np.pi * (np.arange(n - 1) / max(n - 1, 1) - 0.25)  # from the top
    z = np.exp(1j * angle)  # x + iy: half the steps of numpy
    z[0] = 0
    np.fill_diagonal(wanted, 0)
    for _ in range(_STEPS):
        apart = z[:, None] - z
        # The Guttman transform: z_i ← Σ_j wanted_ij·(z_i − z_j)/|z_i − z_j| / n
        z = (wanted / np.maximum(np.abs(apart), 1e-12) * apart).sum(axis=1) / n
    z = z - z[0]
    return np.stack([z.real, z.imag], axis=1)


def _chain(share: Array) -> list[int]:
    """Return the neighbors in an order in which each follows the one it is linked to most strongly."""
    left = np.ones(len(share), bool)
    left[0] = False
    order: list[int] = []
    while left.any():
        order.append(int(np.argmax(np.where(left, share[order[-1] if order else 0], -1))))
        left[order[-1]] = False
    return order


def _parted(X: Array, sizes: Array, canvas: Canvas) -> Array:
    """Scale positions to the canvas, and push apart the boxes that overlap."""
    half = np.array([canvas.width, canvas.height]) / 2
    room = half - sizes / 2 - 2  # how far from the middle a box may be
    side = np.where(X > 0, X.max(axis=0), -X.min(axis=0))  # both sides of the middle are used up
    ranks = np.argsort(np.argsort(X, axis=0, kind="stable"), axis=0) / max(len(X) - 1, 1) * 2 - 1
    # Half by position, half by rank: a few that are far off do not squeeze the others together.
    at = ((X / np.maximum(side, 1e-9) + ranks) / 2 * room.min(axis=0)).T
    at[:, 0] = 0
    at = at + 1e-3 * np.arange(len(X))  # no two at the same place
    room, sizes = room.T, sizes.T
    needed = (sizes[:, :, None] + sizes[:, None]) / 2  # 2 × n × n: what two boxes take, across and down
    needed[:, range(len(X)), range(len(X))] = -np.inf
    one_column = needed[0] > half[0] - _GAP  # two boxes that have no room side by side
    for gap in np.linspace(_GAP, _LEAST_GAP, _PUSHES):  # less and less: it ends well in a crowd too
        apart = at[:, :, None] - at[:, None]
        short = needed + gap - np.abs(apart)
        hit = (short[0] > 0) & (short[1] > 0)
        if not hit.any():
            break
        # Push along the shorter way out.
        down = hit & (one_column | (short[1] <= short[0]))
        at += 0.35 * np.where([hit & ~down, down], np.copysign(short, apart), 0).sum(axis=2)
        at = np.clip(at, -room, room)
        at[:, 0] = 0
    return np.asarray((at.T + half).round(1))


def _sign(weight: float) -> str:
    return "negative" if weight < 0 else "positive"


def _shortened(name: str, width: int) -> str:
    """Cut a name to a width in pixels, an ellipsis included."""
    name = " ".join(name[:100].split())
    ends = list(accumulate(map(_letter_width, name)))
    if not ends or ends[-1] <= width:
        return name
    return f"{name[: bisect_right(ends, width - _FONT)].rstrip()}…"


@lru_cache(maxsize=4096)
def _letter_width(letter: str) -> float:
    """Estimate the width of a letter in pixels, in a broad font."""
    if letter in _NARROW_LETTERS:
        return 0.42 * _FONT
    is_broad = letter in _BROAD_LETTERS or unicodedata.east_asian_width(letter) in "WF"
    return (1.05 if is_broad else 0.66) * _FONT
