"""What a model can say about its items: which go together, and what a history adds to a score."""

from abc import ABC, abstractmethod
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from mrfrec.checks import check_count
from mrfrec.core.sparse import Rows
from mrfrec.data.catalogue import NEIGHBOR_COLUMNS, REASON_COLUMNS, Catalogue, Contribution
from mrfrec.data.ids import Id
from mrfrec.errors import DataError, ParameterError
from mrfrec.models.histories import Query

__all__ = ["Explaining"]


class Explaining(ABC):
    """What goes with an item; and, of a model whose scores are sums over a history, what each item adds."""

    explains: ClassVar[bool] = True  # whether scores are such sums
    _catalogue: Catalogue

    @abstractmethod
    def _fitted(self) -> Catalogue:
        """The items, of a model that has learned something."""

    @abstractmethod
    def _query(self, users: object = None, history: object = None) -> Query:
        """For whom."""

    @property
    @abstractmethod
    def _library(self) -> str | None:
        """Of the data frames that results go back in."""

    @abstractmethod
    def _weights_between(
        self, had: npt.NDArray[Any], values: npt.NDArray[Any], targets: npt.NDArray[Any]
    ) -> npt.NDArray[np.float64]:
        """had × targets: how much each item of a history weighs in the score of each target."""

    def _base_score(self, item: int, *, stranger: bool) -> float:
        """What a score is before a history adds to it; of a stranger, whose history is empty, all of it."""
        return 0.0

    @abstractmethod
    def _neighbors(self, item: int) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        """Items that go with an item, and how strongly."""

    def similar_items(self, item: Id, k: int = 10) -> Any:
        """The items that go with an item most strongly, as a table of item, title, score and rank."""
        from mrfrec.io.frames import table

        found = self._nearest(item, k)
        return table(
            NEIGHBOR_COLUMNS,
            self._catalogue.neighbor_rows(found),
            self._fitted().items.is_text,
            self._library,
        )

    def _nearest(self, item: Id, k: int) -> list[tuple[int, float]]:
        """Positions and strengths of the items that go with an item, strongest first."""
        k = check_count("k", k)
        items, strength = self._neighbors(self._position(item))
        order = np.lexsort((self._catalogue.by_popularity[items], -strength))
        return [(int(items[i]), float(strength[i])) for i in order[:k] if strength[i] > 0]

    def explain(self, item: Id, *, user: Id | None = None, history: object = None) -> Any:
        """What a user's history adds to the score of one item: a table of item, title, value, weight and
        contribution, the largest contribution first.

        The contributions are exact, and their sum is the score (to the precision of the weights, the one
        `recommend` gives). A model with `offset=True` adds a last row, without an item, for the base score.
        """
        from mrfrec.io.frames import table

        rows = self._catalogue.reason_rows(*self._explanation(item, user=user, history=history))
        return table(REASON_COLUMNS, rows, self._fitted().items.is_text, self._library)

    def _explanation(
        self, item: Id, *, user: Id | None = None, history: object = None
    ) -> tuple[list[Contribution], float]:
        """The contributions of a history to an item's score, largest first, and the item's base score."""
        self._fitted()
        self._check_explains()
        if (user is None) == (history is None):
            raise ParameterError(
                "user", "given, or else a history", user, "Exactly one of them says whose score."
            )
        asked = self._query(None if user is None else [user], history)
        if len(asked) != 1:
            raise ParameterError("history", "of one person", history)
        position = self._position(item)
        _, rows = next(asked.pieces())
        found = self._contributions(rows.items, rows.values, np.array([position]))[0]
        return found, self._base_score(position, stranger=not len(rows.items))

    def _check_explains(self) -> None:
        if not self.explains:
            raise DataError(
                f"a {type(self).__name__} cannot explain: its scores are no sums over the items of a "
                "history. MRF, EASE, EDLAE, SLIM, FsSLIM, ItemKNN and WMF can."
            )

    def _position(self, item: Id) -> int:
        place = int(self._fitted().items.find([item], "item")[0])
        if place < 0:
            raise DataError(f"item {item!r} is unknown to the model.")
        return place

    def _reasons(
        self, histories: Rows, items: npt.NDArray[np.int32], most: int
    ) -> list[list[list[Contribution]]]:
        """For each user and each recommended item, what speaks most for it."""
        reasons = []
        for u, recommended in enumerate(items):
            span = slice(int(histories.ptr[u]), int(histories.ptr[u + 1]))
            had, values = histories.items[span], histories.values[span]
            found = self._contributions(had, values, recommended[recommended >= 0], most)
            positive = [[c for c in each if c.amount > 0] for each in found]
            reasons.append(positive + [[] for _ in range(len(recommended) - len(positive))])
        return reasons

    def _contributions(
        self,
        had: npt.NDArray[Any],
        values: npt.NDArray[Any],
        targets: npt.NDArray[Any],
        most: int | None = None,
    ) -> list[list[Contribution]]:
        """For each target, x_j·B_ji of the items j of one history: the largest first, `most` of them."""
        weights = self._weights_between(had, values, targets)
        x = values.astype(np.float64)
        # In float64, where a product of two float32 is exact.
        order = np.lexsort((np.broadcast_to(had[:, None], weights.shape), -x[:, None] * weights), axis=0)[
            :most
        ]
        return [
            [Contribution(int(had[j]), float(x[j]), float(weights[j, i])) for j in order[:, i]]
            for i in range(len(targets))
        ]
