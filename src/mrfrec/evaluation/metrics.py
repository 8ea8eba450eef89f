"""Metrics of ranked lists: one number per user, means with standard errors, and paired differences.

nDCG and Recall are defined as in Liang et al. (2018), whose protocol the paper follows.
"""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
from scipy.special import stdtr

from mrfrec.core.accuracy import discounts, ideal_gains, mean_and_error
from mrfrec.data.interactions import Interactions
from mrfrec.errors import DataError, ParameterError

DEFAULTS = ("ndcg@100", "recall@20", "recall@50")  # as in the paper's tables
_HEAD = 0.8  # share of the interactions with items outside the long tail

_ITEMS_AT_ONCE = 256  # items whose cosines to all items are in memory at once

Numbers = npt.NDArray[np.float64]


class Lists:
    """Ranked items of test users and their targets.

    Parameters
    ----------
    ranked
        Indices of items, users × k, the best first; −1 where a list is shorter than k.
    targets
        Users × items: the hidden items.
    popularity
        Number of training users of each item.
    users
        Number of training users.
    data
        A function that returns the training data, from which variety takes the similarity of items. It is
        called only for variety.
    """

    def __init__(
        self,
        ranked: npt.NDArray[np.int32],
        targets: sp.csr_array,
        popularity: npt.NDArray[np.int64],
        users: int,
        data: Callable[[], Interactions] | None = None,
    ) -> None:
        self.ranked = ranked
        self._data = data
        self.popularity = popularity
        self.users = users
        self.counts = np.diff(targets.indptr)  # number of targets per user
        if not len(ranked) or not self.counts.all():
            raise DataError("every user must have a target: leave out users without one.")
        # A pair of user and item is encoded as one number: user × number of items + item.
        owner = np.repeat(np.arange(len(ranked), dtype=np.int64), self.counts)
        wanted = np.sort(owner * targets.shape[1] + targets.indices)
        listed = np.arange(len(ranked), dtype=np.int64)[:, None] * targets.shape[1] + ranked
        nearest = np.minimum(np.searchsorted(wanted, listed), len(wanted) - 1)
        self.hits: npt.NDArray[np.bool_] = (wanted[nearest] == listed) & (ranked >= 0)

    def most(self, k: int) -> npt.NDArray[np.int64]:
        """Return, per user, the largest possible number of hits among the first k."""
        return np.asarray(np.minimum(self.counts, k))

    @cached_property
    def is_tail(self) -> npt.NDArray[np.bool_]:
        """Boolean per item: it belongs to the long tail."""
        return long_tail(self.popularity)

    @cached_property
    def vectors(self) -> sp.csc_array:
        """Unit vectors of the items, in columns: their features or, without features, their users."""
        if self._data is None:
            raise DataError("variety needs the training data, which says how alike items are.")
        data = self._data()
        X = data.matrix if data.features is None else data.features.matrix
        X = sp.csc_array(X.astype(np.float64))
        length = np.sqrt(
            np.bincount(np.repeat(np.arange(X.shape[1]), np.diff(X.indptr)), X.data**2, X.shape[1])
        )
        X.data = X.data / np.repeat(length, np.diff(X.indptr))
        return X

    def mean_over(self, per_item: npt.NDArray[np.generic], k: int) -> Numbers:
        """Return each user's mean of `per_item` over the first k items; 0 without items."""
        ranked = self.ranked[:, :k]
        filled = ranked >= 0
        total = np.where(filled, per_item[ranked], 0).sum(axis=1)
        return np.asarray(total / np.maximum(filled.sum(axis=1), 1))


def long_tail(popularity: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """Return True for all items but the most popular ones with 80 % of the interactions; ties by index."""
    order = np.argsort(-popularity, kind="stable")
    before = np.cumsum(popularity[order]) - popularity[order]  # interactions with the more popular items
    tail = np.empty(len(popularity), np.bool_)
    tail[order] = before >= _HEAD * popularity.sum()
    return tail


def _ndcg(lists: Lists, k: int) -> Numbers:
    """A hit of rank p counts 1/log₂(p + 1); the sum is divided by that of a perfect list."""
    hits = lists.hits[:, :k]
    return np.asarray((hits * discounts(hits.shape[1])).sum(axis=1) / ideal_gains(lists.counts, k))


def _recall(lists: Lists, k: int) -> Numbers:
    """Hits among the first k ÷ min(k, targets)."""
    return np.asarray(lists.hits[:, :k].sum(axis=1) / lists.most(k))


def _recall_all(lists: Lists, k: int) -> Numbers:
    """Hits among the first k ÷ all targets, as in LightGCN."""
    return np.asarray(lists.hits[:, :k].sum(axis=1) / lists.counts)


def _precision(lists: Lists, k: int) -> Numbers:
    """Hits among the first k ÷ k."""
    return np.asarray(lists.hits[:, :k].sum(axis=1) / k)


def _hit(lists: Lists, k: int) -> Numbers:
    """1 if there is a hit among the first k, else 0."""
    return np.asarray(lists.hits[:, :k].any(axis=1), np.float64)


def _mrr(lists: Lists, k: int) -> Numbers:
    """1 ÷ rank of the first hit among the first k; 0 without a hit."""
    hits = lists.hits[:, :k]
    first = hits.argmax(axis=1) + 1.0
    return np.asarray(hits.any(axis=1) / first)


def _map(lists: Lists, k: int) -> Numbers:
    """Sum of the precision at each hit among the first k ÷ min(k, targets)."""
    hits = lists.hits[:, :k]
    precision = np.cumsum(hits, axis=1) / np.arange(1, hits.shape[1] + 1)
    return np.asarray((hits * precision).sum(axis=1) / lists.most(k))


def _coverage(lists: Lists, k: int) -> Numbers:
    """Share of the catalogue recommended to at least one user; one number for all users."""
    ranked = lists.ranked[:, :k]
    return np.array([len(np.unique(ranked[ranked >= 0])) / len(lists.popularity)])


def _gini(lists: Lists, k: int) -> Numbers:
    """Gini coefficient of how often each item of the catalogue is recommended; one number for all users."""
    ranked = lists.ranked[:, :k]
    m = len(lists.popularity)
    often = np.sort(np.bincount(ranked[ranked >= 0], minlength=m))
    weights = 2 * np.arange(1, m + 1) - m - 1
    return np.array([(weights * often).sum() / max(m * often.sum(), 1)])


def _novelty(lists: Lists, k: int) -> Numbers:
    """Mean self-information of the first k items: −log₂ of the share of training users who have the item."""
    share = np.maximum(lists.popularity, 1) / max(lists.users, 1)
    return lists.mean_over(-np.log2(share), k)


def _popularity(lists: Lists, k: int) -> Numbers:
    """Mean number of training users of the first k items."""
    return lists.mean_over(lists.popularity, k)


def _tail(lists: Lists, k: int) -> Numbers:
    """Share of long-tail items among the first k."""
    return lists.mean_over(lists.is_tail, k)


def _variety(lists: Lists, k: int) -> Numbers:
    """1 − the mean cosine of two of the first k items, by their features or else by their users."""
    ranked = lists.ranked[:, :k]
    used, index = np.unique(ranked, return_inverse=True)
    ranked = index.reshape(ranked.shape).astype(np.int32) - int(used[0] < 0)  # −1 stays −1
    unit = lists.vectors[:, used[used >= 0]]
    users, ranks = np.nonzero(ranked >= 0)
    items = ranked[users, ranks]
    order = np.argsort(items, kind="stable")
    alike = np.zeros(len(ranked))
    for first in range(0, unit.shape[1], _ITEMS_AT_ONCE):
        some = order[slice(*np.searchsorted(items[order], [first, first + _ITEMS_AT_ONCE]))]
        cosines = (unit[:, first : first + _ITEMS_AT_ONCE].T @ unit).toarray()
        np.fill_diagonal(cosines[:, first:], 0.0)  # an item is not compared with itself
        cosines = np.pad(cosines, ((0, 0), (0, 1)))  # index −1 has cosine 0
        rows = cosines[(items[some] - first)[:, None], ranked[users[some]]]
        alike += np.bincount(users[some], rows.sum(axis=1), len(ranked))
    count = (ranked >= 0).sum(axis=1)
    return np.asarray(np.where(count > 1, 1 - alike / np.maximum(count * (count - 1), 1), 0.0))


_FUNCTIONS: tuple[Callable[[Lists, int], Numbers], ...] = (
    _ndcg, _recall, _recall_all, _precision, _hit, _mrr, _map, _coverage, _gini, _novelty,
    _popularity, _tail, _variety,
)  # fmt: skip
_METRICS = {function.__name__[1:]: function for function in _FUNCTIONS}
_SHOWN = {"ndcg": "nDCG", "mrr": "MRR", "map": "MAP", "recall_all": "Recall (all)", "tail": "Long tail"}
NAMES = tuple(_METRICS)


@dataclass(frozen=True)
class Metric:
    """A metric over the first k items of a list, such as `parse("ndcg@100")`."""

    kind: str
    k: int

    def __str__(self) -> str:
        return f"{self.kind}@{self.k}"

    @property
    def title(self) -> str:
        """The name as papers write it, such as "nDCG@100"."""
        return f"{_SHOWN.get(self.kind, self.kind.capitalize())}@{self.k}"

    @property
    def meaning(self) -> str:
        """The definition of the metric, in one sentence."""
        return _METRICS[self.kind].__doc__ or ""

    @property
    def is_overall(self) -> bool:
        """Whether there is one number for all users, without standard error."""
        return self.kind in ("coverage", "gini")

    @property
    def is_accuracy(self) -> bool:
        """Whether larger is better."""
        return self.kind not in ("coverage", "gini", "novelty", "popularity", "tail", "variety")

    def per_user(self, lists: Lists) -> Numbers:
        """Return one number per user."""
        return _METRICS[self.kind](lists, self.k)


def parse(name: "str | Metric") -> Metric:
    """Return the metric with this name, such as "ndcg@100"."""
    if isinstance(name, Metric):
        return name
    if not isinstance(name, str):
        own = "Numbers per user for a metric of your own: model.top_k(split.test.shown, k)."
        raise ParameterError("metrics", f"names, such as ndcg@20 ({', '.join(NAMES)})", name, own)
    kind, _, length = name.strip().lower().partition("@")
    kind = kind.replace("-", "_")
    if kind in _METRICS and length.isdecimal() and not int(length):
        raise ParameterError("metrics", f"such as {kind}@20, over at least 1 item", name)
    if kind not in _METRICS or not re.fullmatch(r"[1-9][0-9]{0,8}", length):
        raise ParameterError("metrics", f"such as ndcg@20, and one of {', '.join(NAMES)}", name)
    return Metric(kind, int(length))


def within(names: Iterable[str], items: int) -> list[str]:
    """Return the distinct names of metrics, with k lowered to the number of items."""
    return list(dict.fromkeys(f"{each.kind}@{min(each.k, items)}" for each in map(parse, names)))


def parse_all(names: "Iterable[str | Metric] | str", items: int) -> list[Metric]:
    """Parse several metrics; raise if k exceeds the number of items, but lower the k of the defaults."""
    if names is DEFAULTS:
        names = within(DEFAULTS, items)
    if not isinstance(names, Iterable):
        raise ParameterError("metrics", "names such as ndcg@20, in a list or with commas between", names)
    metrics = [parse(name) for name in (names.split(",") if isinstance(names, str) else names)]
    if not metrics:
        raise ParameterError("metrics", "at least one", [])
    for metric in metrics:
        if metric.k > items:
            rule = f"of at most the {items:,} items there are"
            raise ParameterError("metrics", rule, str(metric), f"Use {metric.kind}@{items}.")
    return list(dict.fromkeys(metrics))


class Mean(NamedTuple):
    """A mean over users and its standard error, which is nan if there is none."""

    mean: float
    error: float

    def __str__(self) -> str:
        digits = _digits(self.mean)
        mean = f"{self.mean:,.{digits}f}"
        return f"{mean} ± {self.error:,.{digits}f}" if np.isfinite(self.error) else mean


def _digits(number: float) -> int:
    """Return the number of decimals: four for a share, one for numbers from 10 on."""
    return 1 if abs(number) >= 10 else 4


def mean_of(values: Numbers, user: npt.NDArray[np.int64] | None = None) -> Mean:
    """Return the mean of `values`, one per user, with its standard error.

    If users have several values, `user` has the user's index for each of them. The error is then clustered by
    user: √(c/(c − 1)·Σ_u (Σ of the deviations of user u)²)/n, for n values of c users.
    """
    if not len(values):
        raise DataError("cannot average over no users.")
    if user is None:
        return Mean(*mean_and_error(values))
    mean = float(np.mean(values))
    users, cluster = np.unique(user, return_inverse=True)
    if len(users) < 2:
        return Mean(mean, float("nan"))
    deviations = np.bincount(cluster, values - mean)
    scale = len(users) / (len(users) - 1)
    return Mean(mean, float(np.sqrt(scale * (deviations**2).sum())) / len(values))


class Paired(NamedTuple):
    """The mean difference of two models on the same users, the standard error, and a t-test's p-value."""

    difference: float
    error: float
    p: float

    def __str__(self) -> str:
        if np.isnan(self.error):  # a single user
            return f"{self.difference:+.4f}"
        p = "< 0.001" if self.p < 0.001 else f"= {self.p:.3f}"
        digits = _digits(self.difference)
        return f"{self.difference:+,.{digits}f} ± {self.error:,.{digits}f} (p {p})"


def paired(values: Numbers, others: Numbers, user: npt.NDArray[np.int64] | None = None) -> Paired:
    """Compare two models user by user with a paired t-test; `user` is as for `mean_of`."""
    values, others = np.asarray(values, np.float64), np.asarray(others, np.float64)
    if len(values) != len(others):
        raise DataError(f"{len(values):,} users cannot be paired with {len(others):,}.")
    difference, error = mean_of(values - others, user)
    users = len(values) if user is None else len(np.unique(user))
    if not error > 0:  # The difference is the same for all users, or there is a single user.
        p = 1.0 if difference == 0 else 0.0
        return Paired(difference, error, float("nan") if np.isnan(error) else p)
    # stdtr is Student's t distribution; scipy.stats would take seconds to import.
    return Paired(difference, error, float(2 * stdtr(users - 1, -abs(difference / error))))
