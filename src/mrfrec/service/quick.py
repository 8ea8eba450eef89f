"""Answer one history by the weights of a model, with everything prepared: in .4 ms, 2 with a low-rank part.

The rows are those of `answers.recommend`, to the bit: the same compiled code, without what it takes to ask
for many people, of many kinds of models, in many ways.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from threading import Lock
from typing import Any

import numpy as np

from mrfrec.core.kernels import ranking as kernels
from mrfrec.core.sparse import DenseRows, Rows
from mrfrec.data.ids import Id
from mrfrec.models.answers.histories import LARGEST_VALUE
from mrfrec.models.answers.scorers import Selection, for_kernels
from mrfrec.models.answers.selection import base_of
from mrfrec.models.linear import Linear
from mrfrec.models.recommender import Recommender


class QuickAnswers(ABC):
    """Recommends to one history at a time, without what it contains."""

    def __init__(self, model: Linear) -> None:
        self._catalogue = model.catalogue
        self._places = model.items_._table
        self._kind = str if model.items_.is_text else int
        self._usual = model.usual_value_
        self._base = base_of(model, stranger=False)
        self._dtype = self._base.scores.dtype
        self._lock = Lock()

    @staticmethod
    def of(model: Recommender) -> "QuickAnswers | None":
        """Return what answers for a model quickly; None if it is not one of weights."""
        if not isinstance(model, Linear):
            return None
        if model._low_rank is not None:
            return _OfLowRank(model)
        weights = model._weights
        return _OfSparse(model, weights) if isinstance(weights, Rows) else _OfDense(model, weights)

    def recommend(
        self, history: Mapping[Id, float | None], k: int, exclude: Sequence[Id], most: int
    ) -> tuple[list[dict[str, Any]], list[Id]] | None:
        """Return rows with `most` reasons each, and the unknown ids.

        None if nothing of the history is known, or another thread is being answered: ask the model itself.
        """
        kind, places, unknown = self._kind, self._places, []
        known: dict[int, float] = {}
        names: dict[int, Id] = {}
        for item, value in history.items():
            place = places.get(item) if type(item) is kind else None
            if place is None:
                unknown.append(item)
            elif value is None:
                known[place], names[place] = self._usual, item
            elif abs(value) > LARGEST_VALUE:  # is refused
                return None
            elif value != 0:
                known[place], names[place] = value, item
        hidden = dict.fromkeys(known)
        for item in dict.fromkeys(exclude):
            place = places.get(item) if type(item) is kind else None
            if place is None:
                unknown.append(item)
            else:
                hidden[place] = None
        if not known or not self._lock.acquire(blocking=False):
            return None
        try:
            had = sorted(known)
            x = np.array([known[place] for place in had])
            places_had = np.array(had, np.int32)
            rows, chosen = self._rows(places_had, x, hidden, min(k, len(self._base.scores)))
        finally:
            self._lock.release()
        if most:
            self._add_reasons(rows, places_had, x, chosen, min(most, len(had)), [names[i] for i in had])
        return rows, unknown

    def _rows(self, had: Any, x: Any, hidden: dict[int, None], k: int) -> tuple[list[dict[str, Any]], Any]:
        """Return the rows, and the items by position."""
        items, scores = np.empty((1, k), np.int32), np.empty((1, k), self._dtype)
        hide = np.array(list(hidden), np.int32).view(np.uint32)
        evidence = self._choose(had, x.astype(self._dtype), np.array([0, len(hide)]), hide, items, scores)
        chosen = items[0][items[0] >= 0]
        columns = self._catalogue.columns(chosen)
        rows = [
            {"item": item, "title": title, "score": float(str(score)), "rank": rank, "source": _SOURCES[sure]}
            for rank, (item, title, score, sure) in enumerate(
                zip(columns["item"], columns["title"], scores[0], evidence.tolist(), strict=False), 1
            )
        ]
        return rows, chosen

    @abstractmethod
    def _choose(self, had: Any, x: Any, hide_ptr: Any, hide: Any, items: Any, scores: Any) -> Any:
        """Write the best items and their scores; return which of them the history holds evidence for."""

    @abstractmethod
    def _largest_parts(self, had: Any, x: Any, chosen: Any, owners: Any, parts: Any) -> None:
        """Write the largest contributions to each chosen item, and whose they are, −1 for nobody's."""

    def _add_reasons(
        self, rows: list[dict[str, Any]], had: Any, x: Any, chosen: Any, most: int, names: list[Id]
    ) -> None:
        """Add the largest positive contributions to each row."""
        owners, parts = np.empty((len(rows), most), np.int32), np.empty((len(rows), most))
        self._largest_parts(had, x, chosen, owners, parts)
        for row, whose, amounts in zip(rows, owners.tolist(), parts.tolist(), strict=True):
            row["reasons"] = [
                {"item": names[owner], "contribution": amount}
                for owner, amount in zip(whose, amounts, strict=True)
                if owner >= 0
            ]


class _OfSparse(QuickAnswers):
    def __init__(self, model: Linear, weights: Rows) -> None:
        super().__init__(model)
        self._arrays = for_kernels(weights, self._dtype)
        self._best_first = self._base.best_first
        # What the kernels write to, and leave as it was.
        self._scores = self._base.scores.copy()
        self._marked, self._marks = (np.zeros(weights.width, kind) for kind in (np.bool_, np.uint8))
        self._found = np.empty(weights.width, np.int32)
        self._of_found = np.empty(weights.width, self._dtype)

    def _choose(self, had: Any, x: Any, hide_ptr: Any, hide: Any, items: Any, scores: Any) -> Any:
        start, evidence = np.zeros(2, np.int64), np.empty(items.shape, np.bool_)
        kernels.score_sparse(
            np.array([0, len(had)]), had.view(np.uint32), x, 0, 1, *self._arrays, self._base.scores,
            self._scores, self._marked, start, self._found, self._of_found,
        )  # fmt: skip
        kernels.select_sparse(
            start, self._found[: start[1]], self._of_found[: start[1]], hide_ptr, hide, self._base.scores,
            self._best_first, self._base.order, self._marks, items, scores, evidence,
        )  # fmt: skip
        return evidence[0]

    def _largest_parts(self, had: Any, x: Any, chosen: Any, owners: Any, parts: Any) -> None:
        kernels.largest_parts(*self._arrays, had, x, chosen, owners, parts)


class _OfDense(QuickAnswers):
    def __init__(self, model: Linear, weights: DenseRows) -> None:
        super().__init__(model)
        self._B = np.asarray(weights.array)
        self._scores = np.empty((1, weights.width), self._dtype)

    def _choose(self, had: Any, x: Any, hide_ptr: Any, hide: Any, items: Any, scores: Any) -> Any:
        ends = np.array([0, len(had)])
        kernels.score_dense(ends, had.view(np.uint32), x, 0, 1, self._B, self._base.scores, self._scores)
        kernels.select_dense(self._scores, hide_ptr, hide, self._base.order, items, scores)
        return (self._B[np.ix_(had[x != 0], items[0])] != 0).any(axis=0)

    def _largest_parts(self, had: Any, x: Any, chosen: Any, owners: Any, parts: Any) -> None:
        _write_largest(self._B[np.ix_(had, chosen)] * x[:, None], owners, parts)


class _OfLowRank(QuickAnswers):
    def __init__(self, model: Linear) -> None:
        super().__init__(model)
        self._model = model

    def _choose(self, had: Any, x: Any, hide_ptr: Any, hide: Any, items: Any, scores: Any) -> Any:
        width = len(self._base.scores)
        scorer = self._model._scorer(Rows(np.array([0, len(had)]), had, x, width))
        hidden = Rows(hide_ptr, hide.view(np.int32), np.empty(0), width)
        scored = scorer.scores(0, 1, self._base.scores, Selection(items.shape[1], hidden))
        assert not isinstance(scored, Rows)
        left = np.flatnonzero(scored[0] > -np.inf)  # some hundreds: those that may be among the best
        none = np.zeros(2, np.int64)
        kernels.select_dense(scored[:, left], none, hide[:0], self._base.order[left], items, scores)
        items[:] = np.where(items >= 0, left[items], -1) if len(left) else -1
        return scorer.has_evidence(0, 1, items)[0]

    def _largest_parts(self, had: Any, x: Any, chosen: Any, owners: Any, parts: Any) -> None:
        _write_largest(self._model._weights_between(had, x, chosen) * x[:, None], owners, parts)


def _write_largest(each: Any, owners: Any, parts: Any) -> None:
    order = np.argsort(-each, axis=0, kind="stable")[: parts.shape[1]]  # of equals, the first item
    parts[:] = np.take_along_axis(each, order, axis=0).T
    owners[:] = np.where(parts > 0, order.T, -1)


_SOURCES = {True: "model", False: "popular"}
