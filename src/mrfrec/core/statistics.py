"""The S of Eq. 4: means, scales, and rows of the centered, rescaled item-item matrix S, streamed.

    S = (XᵀWX + ω²·FᵀF − n·μμᵀ) ⊘ (s sᵀ),    s = v^(α/2),    v = n × (weighted) column variance + ω²·ΣF²

F, features × items, are features of the items: further rows under X, which do not count for n and μ.

m × m is never held here. Row i of S comes from both sides of X: the users of item i, and the items of these
users, added up in one accumulator of length m per thread. Counting a row again is cheaper than keeping it, so
the pattern and the blocks both stream the rows that they need.
"""

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from mrfrec.core.ages import UserAges
from mrfrec.core.engine import Array, Engine, Floats, split_evenly
from mrfrec.core.kernels import order as of_order
from mrfrec.core.kernels import rows as kernels
from mrfrec.core.plan import Settings, Sizes
from mrfrec.errors import NumericalError

# Two passes over the values give v to about 1e-15 of the sum of squares. A smaller share is rounding.
_NO_VARIANCE = 1e-12
# `l2="auto"` starts here; lab/results/defaults.md tells how the number was chosen.
_RIDGE = 25.0
# This is two orders below the range of float32, for sums of a few products.
_LARGEST = 1e36
# An earlier entry of an ordered pair counts this much less for every step between.
_DELTA = 0.8
# So many ranges of users are transposed at one time, with a count for every item.
TRANSPOSE_PARTS = 8
# With so many ranges of items of equal cost, any number of threads finishes together.
_ROW_TASKS = 512


@dataclass(frozen=True)
class Statistics:
    """What the rest of the core knows of X, in the letters of the paper."""

    m: int
    X: kernels.Incidence
    popularity: npt.NDArray[np.int64]  # users per item
    mu: Floats
    s: Floats
    S_diagonal: Floats
    scaling: kernels.Scaling
    order: of_order.Order | None = None  # None if ordered pairs do not count

    @property
    def active(self) -> npt.NDArray[np.bool_]:
        """Boolean per item: the item takes part. Other items have no weights in or out."""
        return np.asarray(self.scaling.a > 0.0)

    def accumulator(self) -> Array:
        """Return zeros for one row of XᵀX: integers for binary data, else floats."""
        return np.zeros(self.m, np.float64 if len(self.X.values) else np.int32)

    def ordered_accumulator(self) -> Array:
        """Return zeros for one row of XᵀX and of the ordered pairs."""
        return np.zeros((self.m, of_order.PLANES))

    def ridge(self, l2: float, dropout: float) -> Floats:
        """Return what the diagonal of S gets: `l2 + p/(1 − p)·diag(S)`."""
        return np.asarray(l2 + dropout / (1 - dropout) * self.S_diagonal)

    def with_order(
        self, user_ptr: npt.NDArray[np.int64], steps: npt.NDArray[np.uint16], order: float, engine: Engine
    ) -> "Statistics":
        """Return these statistics with ordered pairs, which have `order` times the weight of pairs in S.

        `steps` holds the steps of the entries of X. Features, which come after them, have none.
        """
        step, after = np.zeros(len(self.X.items), np.uint16), np.zeros(len(self.X.items), np.float32)
        step[: len(steps)] = steps
        lags = np.arange(of_order.LAGS + 1)
        decay, decay_before = order * _DELTA**lags, order * _DELTA ** (lags - 1.0)
        decay[-1] = decay_before[-1] = decay_before[0] = 0.0
        made = of_order.Order(step, after, decay, decay_before, np.zeros(self.m))
        longest = int(steps.max(initial=0)) + 1
        with engine.stage("statistics", 2, (2, 2)):
            engine.run(
                lambda t, weight: of_order.sum_what_follows(
                    user_ptr, self.X.values, step, _DELTA**2, *t, after, weight
                ),
                split_evenly(np.diff(user_ptr) + 1, _ROW_TASKS),
                scratch=lambda: np.empty(longest),
                scratch_bytes=8 * longest,
            )
            engine.run(lambda t: of_order.sum_diagonal(self.X, made, *t), self.row_tasks())
        return replace(self, order=made)

    def first_twins(self, engine: Engine) -> npt.NDArray[np.int32]:
        """Return the first identical item, with the same users and values, of every item: mostly itself."""
        hashes = np.empty(self.m, np.uint64)
        engine.run(lambda t: kernels.hash_columns(self.X, *t, hashes), self.row_tasks())
        twin = np.arange(self.m, dtype=np.int32)
        kernels.first_twins(self.X, hashes, np.argsort(hashes, kind="stable"), twin)
        return twin

    def row_tasks(self) -> list[tuple[int, int]]:
        """Cut the items into ranges that cost about the same to stream."""
        cost = self.X.item_ptr[1:] - self.X.item_ptr[:-1] + max(1, len(self.X.items) // (4 * self.m))
        return split_evenly(cost, _ROW_TASKS)


@dataclass(frozen=True)
class BothSides:
    """Both sides of X without its values: what does not depend on the weights of users and features."""

    user_ptr: npt.NDArray[np.int64]
    X: kernels.Incidence
    popularity: npt.NDArray[np.int64]

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays that do not belong to the matrix."""
        return sum(int(array.nbytes) for array in (*self.X[2:5], self.popularity))


@dataclass(frozen=True)
class Moments:
    """Both sides of X and the sums of its columns: what does not depend on alpha and centering."""

    n: float  # users; with user weights, their sum
    X: kernels.Incidence
    popularity: npt.NDArray[np.int64]
    mu: Floats
    squares: Floats  # Σ w·x², the diagonal of XᵀWX
    v: Floats  # Σ w·(x − μ)²
    of_features: Floats  # the diagonal of ω²·FᵀF

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays that belong neither to the matrix nor to `BothSides`."""
        own = (self.X.values, self.mu, self.squares, self.v, self.of_features)
        return sum(int(array.nbytes) for array in own)

    def typical_ridge(self, settings: Settings) -> float:
        """Return what `l2="auto"` stands for: 25·q^(1−α)·(v̄/q)^(½−α).

        v̄ is the mean v of all items that have one, and q the mean square of an entry, 1 if all are ones. For
        items that few users have, v̄/q is about the number of users of an average item.
        """
        alpha, kept = settings.alpha, self.squares > 0.0
        v = self.v[self.v > _NO_VARIANCE * self.squares] if settings.center else self.squares[kept]
        q = float(self.squares.sum() / self.popularity.sum())
        return float(_RIDGE * q ** (1 - alpha) * (v.mean() / q) ** (0.5 - alpha)) if len(v) else _RIDGE

    def scaled(self, settings: Settings) -> Statistics:
        """Return the statistics for one alpha, centered or not.

        Without centering v is the diagonal of XᵀWX, so that an item everybody has takes part, as in EASE.
        """
        center = settings.center
        with np.errstate(over="ignore", invalid="ignore"):  # `check_range` looks at the result
            active = ~(self.v <= _NO_VARIANCE * self.squares) if center else self.squares > 0.0
            v = np.where(active, self.v if center else self.squares, 0.0) + self.of_features
            active |= self.of_features > 0.0
            s = v ** (settings.alpha / 2)
            a = np.zeros(len(v))
            np.divide(1.0, s, out=a, where=active)
            g = np.sqrt(self.n) * self.mu * a if center else np.zeros(len(v))
            diagonal = v * a**2
        return Statistics(
            m=len(v),
            X=self.X,
            popularity=self.popularity,
            mu=self.mu,
            s=s,
            S_diagonal=diagonal,
            scaling=kernels.Scaling(a, g, np.argsort(-np.abs(g), kind="stable")),
        )


def planned_bytes(sizes: Sizes) -> int:
    """Return the bytes of a fit while X is transposed and its columns are added up."""
    per_user = 0 if sizes.binary else 24
    return sizes.held + per_user * sizes.users + (24 * TRANSPOSE_PARTS + 64) * sizes.items


def is_binary(X: sp.csr_array, settings: Settings, features: sp.csr_array | None = None) -> bool:
    """Return whether every entry is 1 and counts as 1, so that integers do."""
    return settings.counts_alike and features is None and bool((X.data == 1).all())


def both_sides(X: sp.csr_array, engine: Engine, features: sp.csr_array | None = None) -> BothSides:
    """Transpose X; with features, X and these."""
    m = X.shape[1]
    user_ptr = X.indptr.astype(np.int64, copy=False)
    items = X.indices.astype(np.int32, copy=False).view(np.uint32)
    alike, further = bool((X.data == 1).all()), np.zeros(m, np.int64)
    with engine.stage("statistics", 2, (0, 1)):
        if features is not None:
            user_ptr = np.concatenate([user_ptr, user_ptr[-1] + features.indptr[1:]])
            items = np.concatenate([items, features.indices.astype(np.uint32)])
            further = np.bincount(features.indices, minlength=m)
            alike = alike and _rows_are_even(features)
        item_ptr, begin, rank = transposed(user_ptr, items, m, engine)
    incidence = kernels.Incidence(items, np.empty(0), item_ptr, begin, rank, alike)
    return BothSides(user_ptr, incidence, np.diff(item_ptr) - further)


def moments(
    X: sp.csr_array,
    settings: Settings,
    engine: Engine,
    features: sp.csr_array | None = None,
    sides: BothSides | None = None,
    ages: UserAges | None = None,
) -> Moments:
    """Add up the columns of X; with features, of X and these. Without `sides`, transpose first.

    ω² is `feature_weight`² times the mean square of an entry of X, so that it has no unit.
    """
    n_users, m = X.shape
    sides = sides or both_sides(X, engine, features)
    user_ptr, items, popularity = sides.user_ptr, sides.X.items, sides.popularity
    of_features = np.zeros(m)
    with engine.stage("statistics", 2, (1, 2)):
        if ages is None and is_binary(X, settings, features):
            n = float(n_users)
            values = np.empty(0)
            squares = popularity.astype(np.float64)
            mu = squares / n
            v = squares * ((n - squares) / n)
        else:
            values = np.empty(len(items))
            x = values[: X.nnz]
            x[:] = X.data  # a copy: the weights are worked into it below
            w = _user_weights(np.diff(X.indptr), settings.user_weight, ages)
            n = float(w.sum())
            # Σw·(x − μ)² over an item's users, and μ² for everybody else: no cancellation.
            sums, squares, around, weights = np.zeros((4, m))
            kernels.weighted_sums(user_ptr, items, x, w, np.zeros(m), sums, squares, weights)
            mu = sums / n
            kernels.weighted_sums(user_ptr, items, x, w, mu, np.zeros(m), around, np.zeros(m))
            others = np.where(popularity < n_users, np.maximum(n - weights, 0.0), 0.0)
            with np.errstate(over="ignore", invalid="ignore"):  # `check_range` looks at the result
                v = around + others * mu**2
            kernels.scale_users(user_ptr, np.sqrt(w), x)
        if features is not None:
            scale = settings.feature_weight * (squares.sum() / popularity.sum()) ** 0.5
            values[X.nnz :] = scale * features.data
            of_features = np.bincount(features.indices, (scale * features.data) ** 2, m)
    return Moments(n, sides.X._replace(values=values), popularity, mu, squares, v, of_features)


def _rows_are_even(X: sp.csr_array) -> bool:
    """Return whether the entries of a row are all equal, in every row."""
    lengths = np.diff(X.indptr)
    return bool((X.data == np.repeat(X.data[X.indptr[:-1][lengths > 0]], lengths[lengths > 0])).all())


def check_range(diagonal: Floats, ridge: Floats) -> None:
    """Refuse what float32 cannot hold; no entry of S is larger than the largest on its diagonal."""
    largest = float(np.max(diagonal + ridge))
    if not largest < _LARGEST:
        raise NumericalError(
            f"the item-item matrix reaches {largest:.3g}, too large to compute with. The values of X or the "
            "ridge are too large: divide the values by a constant, or use a smaller ridge."
        )


def not_positive_definite(matrix: str, dtype: str) -> NumericalError:
    return NumericalError(
        f"{matrix} is not positive definite in {dtype}. It may be because (a) l2 is too small for items that "
        "are copies of each other, or nearly so: raise l2; or (b) the precision is too low for this data: "
        'use dtype="float64".'
    )


def _user_weights(lengths: Array, beta: float, ages: UserAges | None) -> Floats:
    """w_u ∝ ω_u·|x_u|₀^(−β), scaled so that Σ w_u·|x_u|₀ = nnz(X); an empty history counts as one item.

    In the sum, a history that fades is as long as its entries that have not.
    """
    counted = np.maximum(lengths, 1).astype(np.float64)
    w = (counted / counted[lengths > 0].min()) ** -beta
    if ages is None:
        return np.asarray(w * (lengths.sum() / (w @ lengths)))
    w *= ages.weight
    return np.asarray(w * (lengths.sum() / (w @ ages.length)))


def transposed(
    ptr: npt.NDArray[np.int64], items: Array, m: int, engine: Engine, values: Array | None = None
) -> tuple[npt.NDArray[np.int64], Array, Array]:
    """Return the entries of a matrix by item instead of row: the row and the value of each, without zeros.

    Without values, these are where the row begins and the rank of the item in it. This is a counting sort
    over a few ranges of rows.
    """
    ranges = split_evenly(np.diff(ptr) + 1, TRANSPOSE_PARTS)
    counts = np.zeros((len(ranges), m), np.int64)
    given = ptr, items, np.empty(0) if values is None else values
    numbers = range(len(ranges))
    engine.run(lambda t: kernels.count_items(*ranges[t], *given, counts[t]), numbers)
    item_ptr = np.concatenate([[0], np.cumsum(counts.sum(axis=0))])
    # A range of rows begins at these indices of the items.
    slots = item_ptr[:-1] + np.cumsum(counts, axis=0) - counts
    rows = np.int32 if values is not None else np.uint32 if len(items) < 2**32 else np.uint64
    out = np.empty(item_ptr[-1], rows), np.empty(item_ptr[-1], np.uint32 if values is None else values.dtype)
    engine.run(lambda t: kernels.transpose(*ranges[t], *given, slots[t], *out), numbers)
    return item_ptr, *out
