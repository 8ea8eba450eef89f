"""Turn queries into ranked items, a batch at a time: what `Recommender` makes its tables of."""

from abc import abstractmethod
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt

from mrfrec.checks import check_count, check_flag, check_number, warn
from mrfrec.core.sparse import Rows
from mrfrec.data.catalogue import Columns, Recommendations
from mrfrec.data.ids import Id
from mrfrec.errors import DataError, ParameterError
from mrfrec.models.explaining import WeightsBetween, reasons
from mrfrec.models.filters import Filters, ItemFilter, Request
from mrfrec.models.histories import Query, Unknown, query_histories, query_users, unknown_item
from mrfrec.models.scorers import novelty_factors
from mrfrec.models.updating import UpdatableModel

if TYPE_CHECKING:
    from mrfrec.core.engine import Progress

_ITEMS_AT_ONCE = 1024  # whose neighbors are written as one batch


class RankingModel(UpdatableModel):
    """A model that ranks items for histories, and the items that go with an item."""

    explains: ClassVar[bool] = True  # whether a score is a sum over the items of a history

    @abstractmethod
    def _neighbors(self, item: int) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        """Return the items that go with an item, and how strongly."""

    def _weights_between(
        self, had: npt.NDArray[Any], values: npt.NDArray[Any], targets: npt.NDArray[Any]
    ) -> npt.NDArray[np.float64]:
        """Return the weight of each item of a history in the score of each target, had × targets."""
        raise NotImplementedError  # never called where `explains` is False

    def _batches(
        self,
        query: Query,
        k: int,
        *,
        progress: "Progress | None" = None,
        unknown: list[Unknown] | None = None,
        **options: Any,
    ) -> Iterator[Recommendations]:
        """Recommend to a few thousand users at a time.

        Unknown ids and users with fewer than k items are warned of; with `unknown`, the ids go there instead.
        """
        wanted = self._request(query, k, unknown=unknown, **options)
        return self._ranked(query, wanted, progress, warns=unknown is None)

    def _request(
        self,
        query: Query,
        k: int,
        *,
        exclude_seen: bool = True,
        allow: ItemFilter = None,
        exclude: ItemFilter = None,
        novelty: float | None = None,
        explain: int = 0,
        unknown: list[Unknown] | None = None,
    ) -> Request:
        """Check the options of `recommend`, and look up the items in them."""
        k = check_count("k", k)
        check_flag("exclude_seen", exclude_seen)
        explain = check_count("explain", explain, least=0)
        if explain:
            self._check_explains()
        filters = Filters.of(query, self.items_, allow, exclude)
        for each in (*query.unknown, *filters.unknown):
            each.warn() if unknown is None else unknown.append(each)
        return Request(k, exclude_seen, filters, self._more_novelty(novelty), explain)

    def _ranked(
        self,
        query: Query,
        wanted: Request,
        progress: "Progress | None",
        warns: bool,
        span: tuple[int, int | None] = (0, None),
    ) -> Iterator[Recommendations]:
        k, exclude_seen, filters, more_novelty, explain = wanted
        places = min(k, len(self.items_))
        short = done = 0
        for start, names, histories in query.batches(*span):
            items, scores, evidence = self._rank(
                histories, places, "popularity", filters.hide(start, histories, exclude_seen), filters.hidden,
                filters.allow(start, len(names)), more_novelty,
            )  # fmt: skip
            short += int((items < 0).any(axis=1).sum()) if places == k else len(names)
            base = because = None
            if explain:
                base = self._base_of(histories, items, more_novelty)
                because = reasons(self._scaled_weights(more_novelty), histories, items, explain)
            yield Recommendations(names, items, scores, evidence, base, because)
            done += len(names)
            if progress is not None:
                progress("recommending", done, len(query))
        if short and warns:
            warn(
                f"{short:,} of {len(query):,} users get fewer than k={k} items: no more are left that they "
                "have not seen and that are not excluded."
            )

    def _base_of(
        self, histories: Rows, items: npt.NDArray[np.int32], more_novelty: float
    ) -> npt.NDArray[Any]:
        """Return the base scores of recommended items, users × k."""
        known, stranger = (self._base("popularity", each, more_novelty).scores for each in (False, True))
        return np.where(np.diff(histories.ptr)[:, None] > 0, known[items], stranger[items])

    def _more_novelty(self, novelty: float | None) -> float:
        """Return what to add to the novelty that the model was fitted with."""
        if novelty is None:
            return 0.0
        asked = check_number("novelty", novelty, "between -1 and 1", lambda x: -1 <= x <= 1)
        if not self.scales_scores:
            raise DataError(
                f"a {type(self).__name__} takes no novelty: its scores are no sums of weights, and dividing "
                "them by popularity means nothing. MRF, EASE, EDLAE, SLIM, FsSLIM and ItemKNN do."
            )
        return asked - float(self.fitted_parameters_.get("novelty", 0.0))

    def _scaled_weights(self, more_novelty: float) -> WeightsBetween:
        """Return `_weights_between`, with more novelty."""
        if not more_novelty:
            return self._weights_between
        factors = novelty_factors(self.popularity_, more_novelty)
        return lambda had, values, targets: self._weights_between(had, values, targets) * factors[targets]

    def _query(self, users: object = None, history: object = None) -> Query:
        """Read the users or histories that recommendations are asked for."""
        self._fitted()
        if users is not None and history is not None:
            raise ParameterError(
                "history", "None when users are given", history, "One of them says for whom."
            )
        if history is None:
            return query_users(users, self._trained_on("recommending by user id"))
        # Models saved before this was recorded count an item without a value as 1.
        return query_histories(history, self.items_, None if self._facts["binary"] else self._usual_value)

    @property
    def _usual_value(self) -> float:
        """What an item of a history counts that is given without a value."""
        return 1.0 if self._facts["binary"] else float(self._facts.get("mean_value", 1.0))

    def _part(self, query: Query, wanted: Request, span: tuple[int, int]) -> Iterator[dict[str, Any]]:
        """Yield the columns of recommendations for a range of users."""
        for batch in self._ranked(query, wanted, None, warns=False, span=span):
            yield self._catalogue.recommendation_columns(batch)

    # ── items ─────────────────────────────────────────────────────────────────────────────────────

    def _all_neighbors(
        self, k: int, progress: "Progress | None", items: Iterable[Id] | None = None
    ) -> Iterator[Columns]:
        """Return columns of the k nearest of items, in batches, with the item in front as `similar_to`."""
        k = check_count("k", k)
        wanted = np.arange(len(self._fitted().items)) if items is None else self._positions(items)
        return self._neighbor_batches(wanted, k, progress)

    def _neighbor_batches(
        self, items: npt.NDArray[np.int64], k: int, progress: "Progress | None"
    ) -> Iterator[Columns]:
        short = 0
        for start in range(0, len(items), _ITEMS_AT_ONCE):
            batch = items[start : start + _ITEMS_AT_ONCE]
            nearest, strengths = zip(*(self._nearest(item, k) for item in batch.tolist()), strict=True)
            counts = [len(found) for found in nearest]
            short += sum(count < k for count in counts)
            yield {
                "similar_to": self.items_.take(np.repeat(batch, counts)),
                **self._catalogue.columns(np.concatenate(nearest)),
                "score": np.concatenate(strengths),
                "rank": np.concatenate([np.arange(1, count + 1, dtype=np.int32) for count in counts]),
            }
            if progress is not None:
                progress("finding similar items", start + len(batch), len(items))
        if short:
            warn(
                f"{short:,} of {len(items):,} items have fewer than k={k} similar items: the model knows no "
                "more."
            )

    def _nearest(self, item: int, k: int) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        """Return the items that go with an item, by position, and how strongly: strongest first."""
        items, strengths = self._neighbors(item)
        least = np.partition(strengths, -k)[-k] if len(items) > k else -np.inf
        keep = (strengths > 0) & (strengths >= least)
        items, strengths = items[keep], strengths[keep]
        order = np.lexsort((self._catalogue.by_popularity[items], -strengths))[:k]
        return items[order], strengths[order].astype(self._score_type)

    def _check_explains(self) -> None:
        if not self.explains:
            raise DataError(
                f"a {type(self).__name__} cannot explain: its scores are no sums over the items of a "
                "history. MRF, EASE, EDLAE, SLIM, FsSLIM, ItemKNN and WMF can."
            )

    def _position(self, item: Id) -> int:
        return int(self._positions([item])[0])

    def _positions(self, items: Iterable[Id]) -> npt.NDArray[np.int64]:
        wanted = list(items)
        places = self._fitted().items.find(wanted, "item")
        if (places < 0).any():
            raise unknown_item(wanted[int(np.argmax(places < 0))])
        return places
