"""Ask a model by ids: recommendations, similar items, explanations, search."""

from abc import abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from os import PathLike
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypedDict, Unpack

import numpy as np
import numpy.typing as npt

from mrfrec.checks import check_count, check_flag, check_number, warn
from mrfrec.data.catalogue import Contribution, Recommendations, rows_of
from mrfrec.data.ids import Id
from mrfrec.errors import DataError, ParameterError
from mrfrec.models.explaining import WeightsBetween, contributions, reasons
from mrfrec.models.filters import Filters, ItemFilter, Request
from mrfrec.models.histories import Query, Unknown, query_histories, query_users
from mrfrec.models.model import FitContext
from mrfrec.models.scorers import novelty_factors
from mrfrec.models.updating import UpdatableModel

if TYPE_CHECKING:
    from mrfrec.core.engine import Progress

__all__ = ["Answer", "FitContext", "Recommender"]

_COLUMNS = ("user", "item", "title", "score", "rank", "source")
_NEIGHBOR_COLUMNS = ("item", "title", "score", "rank")
_REASON_COLUMNS = ("item", "title", "value", "weight", "contribution")
_SEARCH_COLUMNS = ("item", "title", "users")


class Options(TypedDict, total=False):
    """What `Recommender.recommend` takes besides users, histories and k."""

    exclude_seen: bool
    allow: ItemFilter
    exclude: ItemFilter
    novelty: float | None
    explain: int
    progress: "Progress | None"


@dataclass(frozen=True)
class Answer:
    """Recommendations as data: plain rows, and the ids that the model does not know."""

    rows: list[dict[str, Any]]  # user, item, title, score, rank, source [, because]
    unknown: dict[str, list[Id]]  # by the parameter they were given as: users, history, allow, exclude


class Recommender(UpdatableModel):
    """A model that is asked by the ids of users and items. A fitted one may be asked by several threads."""

    explains: ClassVar[bool] = True  # whether a score is a sum over the items of a history

    @abstractmethod
    def _neighbors(self, item: int) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        """Return the items that go with an item, and how strongly."""

    def _weights_between(
        self, had: npt.NDArray[Any], values: npt.NDArray[Any], targets: npt.NDArray[Any]
    ) -> npt.NDArray[np.float64]:
        """Return the weight of each item of a history in the score of each target, had × targets."""
        raise NotImplementedError  # never called where `explains` is False

    # ── recommending ──────────────────────────────────────────────────────────────────────────────

    def recommend(
        self,
        users: object = None,
        *,
        history: object = None,
        k: int = 10,
        exclude_seen: bool = True,
        allow: ItemFilter = None,
        exclude: ItemFilter = None,
        novelty: float | None = None,
        explain: int = 0,
        progress: "Progress | None" = None,
    ) -> Any:
        """Return the k best items of each user: a table of user, item, title, score, rank and source.

        Parameters
        ----------
        users
            Ids of training users: one, or several in any iterable. All of them if neither users nor
            histories are given.
        history
            Instead of `users`, what somebody has used: item ids in any iterable; or a mapping from item to
            value; or, for several people, a mapping from each one's name to such a history, a list of
            histories, a data frame with users and items, or a `scipy.sparse` matrix. Nobody has to be known
            from training.
        k
            Items for each. There are fewer only where no more exist, with a warning.
        exclude_seen
            Leave out the items of the history.
        allow, exclude
            Recommend only these items; never these. Item ids for everybody, or a mapping from users (as the
            table names them) to item ids; users who are not in the mapping are not limited.
        novelty
            γ: divide the score of an item with p users by (p/p̄)^γ, instead of the γ that the model was fitted
            with; p̄ is the p of a typical interaction. More favours rarer items, less than 0 popular ones.
            Only for models that score by weights, such as `MRF`.
        explain
            How many reasons to give in a further column `because`: the items of the history that add most
            to the score.
        progress
            Called as `progress("recommend", users done, users)`.

        Notes
        -----
        `source` is "model" where some item of the history has a weight for the recommended one. The other
        items have their base score, by which they are ranked, then by popularity, and the source "popular".
        The base score is 0; of an MRF with `offset=True` it is the conditional mean given that none of the
        item's neighbors were used. Somebody without a known item in their history gets the most popular
        items: with the score 0, or, with `offset=True`, the mean of each item, since nothing is given. So
        all scores of a model are on one scale.

        The table is of the library of the data frame that was given (here, or to `fit`), else of polars.
        """
        from mrfrec.io.frames import frame

        query = self._query(users, history)
        batches = self._batches(
            query, k, exclude_seen=exclude_seen, allow=allow, exclude=exclude,
            novelty=novelty, explain=explain, progress=progress,
        )  # fmt: skip
        columns = (self._catalogue.recommendation_columns(batch) for batch in batches)
        return frame(columns, *self._table_form(query, bool(explain)), library=query.library or self._library)

    def answer(
        self, users: object = None, *, history: object = None, k: int = 10, **options: "Unpack[Options]"
    ) -> Answer:
        """Recommend as `recommend` does, and return rows of plain values and the unknown ids.

        For services: what `recommend` warns of is part of the answer, and no data frame is made.
        """
        query = self._query(users, history)
        unknown: list[Unknown] = []
        batches = self._batches(query, k, **options, unknown=unknown)
        rows = [row for batch in batches for row in rows_of(self._catalogue.recommendation_columns(batch))]
        return Answer(rows, {each.parameter: each.ids for each in unknown})

    def recommend_to(
        self,
        path: "str | PathLike[str]",
        users: object = None,
        *,
        history: object = None,
        k: int = 10,
        form: Literal["parquet", "csv", "jsonl"] | None = None,
        client: Any = None,
        shared_path: "str | PathLike[str] | None" = None,
        **options: "Unpack[Options]",
    ) -> int:
        """Write what `recommend` returns to a Parquet, CSV or JSON lines file; returns the number of rows.

        The name of the file tells its form, or `form` does. A few thousand users at a time are held in
        memory. The file appears when it is whole.

        With a `distributed.Client` the workers recommend, and `path` is a folder: part-00000.parquet and so
        on, with up to 20,000 users each and the same rows in the same order. Each part appears when it is
        whole. If that was interrupted, the same call goes on with the parts that are missing; another model,
        other users or options are refused. manifest.json has the number of rows when all parts are there.
        `shared_path` is that of `fit`.
        """
        query = self._query(users, history)
        if client is not None:
            if form not in (None, "parquet"):
                raise ParameterError("form", '"parquet" or None with a client', form)
            return self._write_parts(query, k, path, client, shared_path, **options)
        if shared_path is not None:
            raise ParameterError("shared_path", "None without a client", shared_path)
        return self._write(
            self._batches(query, k, **options), query, path, form, bool(options.get("explain"))
        )

    def _write(
        self,
        batches: Iterable[Recommendations],
        query: Query,
        path: "str | PathLike[str]",
        form: str | None,
        explain: bool,
    ) -> int:
        """Write batches to a file; returns the number of rows."""
        from mrfrec.io.frames import write

        columns = (self._catalogue.recommendation_columns(batch) for batch in batches)
        return write(columns, *self._table_form(query, explain), path=path, form=form)

    def _write_parts(
        self,
        query: Query,
        k: int,
        path: "str | PathLike[str]",
        client: Any,
        shared_path: "str | PathLike[str] | None" = None,
        progress: "Progress | None" = None,
        **options: Any,
    ) -> int:
        """Let the workers of a cluster write parts to a folder; returns the number of rows."""
        from mrfrec.engines.cluster import check_client
        from mrfrec.models.parts import facts_of, for_tasks, write_parts

        check_client(client)
        wanted = self._request(query, k, **options)
        rows = write_parts(
            path, partial(for_tasks(self)._part, query, wanted),
            self._table_form(query, bool(wanted.explain)), facts_of(self, query, wanted),
            client=client, shared_path=shared_path, progress=progress,
        )  # fmt: skip
        if rows < wanted.k * len(query):
            warn(
                f"there are {rows:,} rows and not k={wanted.k} for each of {len(query):,} users: for some, "
                "no more items are left that they have not seen and that are not excluded."
            )
        return rows

    def _part(self, query: Query, wanted: Request, span: tuple[int, int]) -> Iterator[dict[str, Any]]:
        """Yield the columns of recommendations for a range of users."""
        for batch in self._ranked(query, wanted, None, warns=False, span=span):
            yield self._catalogue.recommendation_columns(batch)

    def _table_form(self, query: Query, explain: bool) -> tuple[tuple[str, ...], dict[str, Any]]:
        """Return the columns of a table of recommendations, and the types that depend on the model."""
        types = {"user": query.names.kind, "item": self.items_.kind, "score": self._score_type}
        return (*_COLUMNS, "because") if explain else _COLUMNS, types

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
            because = (
                reasons(self._scaled_weights(more_novelty), histories, items, explain) if explain else None
            )
            yield Recommendations(names, items, scores, evidence, because)
            done += len(names)
            if progress is not None:
                progress("recommend", done, len(query))
        if short and warns:
            warn(
                f"{short:,} of {len(query):,} users get fewer than k={k} items: no more are left that they "
                "have not seen and that are not excluded."
            )

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
        typical = None if self._facts["binary"] else self._facts.get("mean_value", 1.0)
        return query_histories(history, self.items_, typical)

    # ── items ─────────────────────────────────────────────────────────────────────────────────────

    def similar_items(self, item: Id | Iterable[Id], k: int = 10) -> Any:
        """Return the items that go with an item most strongly: a table of item, title, score and rank.

        For several items the table has the k nearest of each, and `similar_to`, the item they are near to,
        as its first column. Where fewer than k items go with one at all, there are fewer, with a warning.
        """
        from mrfrec.io.frames import frame

        several = isinstance(item, Iterable) and not isinstance(item, str | bytes)
        wanted: list[Any] = list(item) if several else [item]  # type: ignore[arg-type]
        found = [self._nearest(each, k) for each in wanted]
        short = sum(len(items) < k for items, _ in found)
        if short:
            which = f"{short:,} of {len(wanted):,} items have" if several else f"item {item!r} has"
            warn(f"{which} fewer than k={k} similar items: the model knows no more.")
        columns = []
        for each, nearest in zip(wanted, found, strict=True):
            first = {"similar_to": [each] * len(nearest[0])} if several else {}
            columns.append({**first, **self._catalogue.neighbor_columns(*nearest)})
        names = ("similar_to", *_NEIGHBOR_COLUMNS) if several else _NEIGHBOR_COLUMNS
        kind = self.items_.kind
        return frame(columns, names, {"item": kind, "similar_to": kind}, library=self._library)

    def _nearest(self, item: Id, k: int) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        """Return the items that go with an item, by position, and how strongly: strongest first."""
        k = check_count("k", k)
        items, strengths = self._neighbors(self._position(item))
        items, strengths = items[strengths > 0], strengths[strengths > 0]
        order = np.lexsort((self._catalogue.by_popularity[items], -strengths))[:k]
        return items[order], strengths[order]

    def explain(
        self, item: Id, *, user: Id | None = None, history: object = None, novelty: float | None = None
    ) -> Any:
        """Return what a history adds to the score of one item, the largest contribution first.

        A table of item, title, value, weight and contribution. The contributions are exact, and their sum is
        the score (to the precision of the weights, the one `recommend` gives). A base score other than 0 has
        a last row, without an item.
        """
        from mrfrec.io.frames import frame

        columns = self._catalogue.reason_columns(
            *self._explanation(item, user=user, history=history, novelty=novelty)
        )
        return frame([columns], _REASON_COLUMNS, {"item": self.items_.kind}, library=self._library)

    def _explanation(
        self, item: Id, *, user: Id | None = None, history: object = None, novelty: float | None = None
    ) -> tuple[list[Contribution], float]:
        """Return the contributions of a history to an item's score, and the item's base score."""
        self._fitted()
        self._check_explains()
        if (user is None) == (history is None):
            raise ParameterError(
                "user", "given, or else a history", user, "Exactly one of them says whose score."
            )
        query = self._query(None if user is None else [user], history)
        if len(query) != 1:
            raise ParameterError("history", "of one person", history)
        for each in query.unknown:
            each.warn()
        position = self._position(item)
        _, _, rows = next(query.batches())
        more = self._more_novelty(novelty)
        found = contributions(self._scaled_weights(more), rows.items, rows.values, np.array([position]))[0]
        return found, float(self._base("popularity", not len(rows.items), more).scores[position])

    def search(self, text: str, k: int = 10) -> Any:
        """Find items by id or title: a table of item, title and users, the best match first.

        Whole names come first, then names that begin with the text, then those with all its words, or parts
        of words; among these the more popular items. Capitals, accents and punctuation do not count. If
        nothing matches, the nearest spelling is looked for. The first search builds an index.
        """
        from mrfrec.io.frames import frame

        if not isinstance(text, str):
            raise ParameterError("text", "a string", text)
        items = np.array(self._fitted().search(text, check_count("k", k)), np.int64)
        columns = {**self._catalogue.columns(items), "users": self.popularity_[items]}
        return frame([columns], _SEARCH_COLUMNS, {"item": self.items_.kind}, library=self._library)

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
