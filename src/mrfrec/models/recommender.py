"""Ask a model by ids: recommendations, similar items, explanations, search."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from os import PathLike
from typing import TYPE_CHECKING, Any, Literal, TypedDict, Unpack

import numpy as np

from mrfrec.checks import check_count, warn
from mrfrec.core.progress import showing, shows_progress
from mrfrec.data.catalogue import Columns, Contribution, Recommendations, rows_of
from mrfrec.data.ids import Id
from mrfrec.errors import ParameterError
from mrfrec.models.asking import RankingModel
from mrfrec.models.explaining import contributions
from mrfrec.models.filters import ItemFilter
from mrfrec.models.histories import Query, Unknown
from mrfrec.models.model import FitContext

if TYPE_CHECKING:
    from mrfrec.core.engine import Progress
    from mrfrec.io.staging import Staging

Form = Literal["parquet", "csv", "jsonl"] | None

__all__ = ["Answer", "FitContext", "Recommender"]

RECOMMENDATION_COLUMNS = ("user", "item", "title", "score", "rank", "source")
_NEIGHBOR_COLUMNS = ("item", "title", "score", "rank")
SIMILAR_COLUMNS = ("similar_to", *_NEIGHBOR_COLUMNS)
_REASON_COLUMNS = ("item", "title", "value", "weight", "contribution")
_SEARCH_COLUMNS = ("item", "title", "users")


class Options(TypedDict, total=False):
    """What `Recommender.recommend` takes besides users, histories and k."""

    exclude_seen: bool
    allow: ItemFilter
    exclude: ItemFilter
    novelty: float | None
    explain: int
    progress: "Progress | bool | None"


@dataclass(frozen=True)
class Answer:
    """Recommendations as data: plain rows, and the ids that the model does not know."""

    rows: list[dict[str, Any]]  # user, item, title, score, rank, source [, because]
    unknown: dict[str, list[Id]]  # by the parameter they were given as: users, history, allow, exclude


class Recommender(RankingModel):
    """A model that is asked by the ids of users and items. A fitted one may be asked by several threads."""

    # ── recommending ──────────────────────────────────────────────────────────────────────────────

    @shows_progress
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
        progress: "Progress | bool | None" = None,
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
            table names them) to item ids; users who are not in the mapping are not limited, unless None is
            in it, for everybody.
        novelty
            γ: divide the score of an item with p users by (p/p̄)^γ, instead of the γ that the model was fitted
            with; p̄ is the p of a typical interaction. More favours rarer items, less than 0 popular ones.
            Only for models that score by weights, such as `MRF`.
        explain
            How many items of the history to name in a further column `because`: the base score, unless it is
            0, and the items that add most, such as "base +0.74, cython3 +0.01". Those that take away are in
            `explain`.
        progress
            True draws a bar on stderr; a function is called as `progress(stage, users done, users)`.

        Notes
        -----
        `source` is "model" where some item of the history has a weight for the recommended one. The other
        items have their base score, by which they are ranked, then by popularity, and the source "popular".
        The base score is 0; of an MRF with `offset=True` it is the conditional mean given that none of the
        item's neighbors were used. Somebody without a known item in their history gets the most popular
        items: with the score 0, or, with `offset=True`, the mean of each item, since nothing is given. So
        all scores of a model are on one scale.

        The table is of the library of the data frame that was given (here, or to `fit`), else of polars;
        `frames` chooses another.
        """
        assert not isinstance(progress, bool)
        from mrfrec.io.frames import frame

        query = self._query(users, history)
        batches = self._batches(
            query, k, exclude_seen=exclude_seen, allow=allow, exclude=exclude,
            novelty=novelty, explain=explain, progress=progress,
        )  # fmt: skip
        columns = (self._catalogue.recommendation_columns(batch) for batch in batches)
        return frame(columns, *self._table_form(query, bool(explain)), library=self._library(query.library))

    @shows_progress
    def answer(
        self, users: object = None, *, history: object = None, k: int = 10, **options: "Unpack[Options]"
    ) -> Answer:
        """Recommend as `recommend` does, and return rows of plain values and the unknown ids.

        For services: what `recommend` warns of is part of the answer, and no data frame is made.
        """
        query = self._query(users, history)
        unknown: list[Unknown] = []
        rest: Any = options
        batches = self._batches(query, k, **rest, unknown=unknown)
        rows = [row for batch in batches for row in rows_of(self._catalogue.recommendation_columns(batch))]
        return Answer(rows, {each.parameter: each.ids for each in unknown})

    def recommend_to(
        self,
        path: "str | PathLike[str]",
        users: object = None,
        *,
        history: object = None,
        k: int = 10,
        form: Form = None,
        table: str | None = None,
        columns: Mapping[str, str] | None = None,
        client: Any = None,
        shared_path: "str | PathLike[str] | None" = None,
        **options: "Unpack[Options]",
    ) -> int:
        """Write what `recommend` returns to a file or a table of a database; returns the number of rows.

        The name of a file tells its form (.parquet, .csv, .jsonl), or `form` does. The file appears when it
        is whole. A few thousand users at a time are held in memory.

        With the URL of a database (postgresql://, sqlite:///, duckdb:///) the rows replace those of `table`,
        such as "recs" or "shop.recs", in one transaction: its readers see all old rows or all new ones. It
        stays the same table, with its indexes, grants and views. If it is missing, it is created, with user
        and rank as its primary key (not in DuckDB). A table with other columns is refused. `columns` gives
        columns other names, in files too: {"user": "user_id"}, since user is a reserved word of SQL.

        With a `distributed.Client` the workers recommend, and `path` is a folder: part-00000.parquet and so
        on, with up to 20,000 users each and the same rows in the same order. Each part appears when it is
        whole. If that was interrupted, the same call goes on with the parts that are missing; another model,
        other users or options are refused. manifest.json has the number of rows when all parts are there.
        `shared_path` is that of `fit`.
        """
        if client is not None:
            form_ = None if form == "parquet" else form
            for name, value in (("form", form_), ("table", table), ("columns", columns)):
                if value is not None:
                    raise ParameterError(name, "None with a client, which writes Parquet files", value)
            rest: dict[str, Any] = {**options}
            with showing(rest.pop("progress", None)) as progress:
                return self._write_parts(
                    self._query(users, history), k, path, client, shared_path, progress, **rest
                )
        if shared_path is not None:
            raise ParameterError("shared_path", "None without a client", shared_path)
        with self.staged_recommendations(
            path, users, history=history, k=k, form=form, table=table, columns=columns, **options
        ) as rows:
            return rows

    @contextmanager
    def staged_recommendations(
        self,
        path: "str | PathLike[str] | Staging",
        users: object = None,
        *,
        history: object = None,
        k: int = 10,
        form: Form = None,
        table: str | None = None,
        columns: Mapping[str, str] | None = None,
        **options: "Unpack[Options]",
    ) -> Iterator[int]:
        """Write as `recommend_to` does, but let the rows appear when the block ends.

        Yields the number of rows once all of them are written beside the file or the table. If the block
        raises, nothing changes, so that the slow and fallible part of publishing several things is done
        before any of them appears::

            with model.staged_recommendations(url, table="recs") as rows:
                model.save("shop.mrf")

        Each file then appears by one rename, and the tables of a database by a transaction. These follow each
        other: where one fails, what appeared before it stays.
        """
        from mrfrec.io.frames import check_target

        check_target(path, form, table)
        query = self._query(users, history)
        rest: dict[str, Any] = {**options}
        with showing(rest.pop("progress", None)) as progress:
            batches = self._batches(query, k, progress=progress, **rest)
            with self._staged(batches, query, path, form, table, bool(rest.get("explain")), columns) as rows:
                yield rows

    def _staged(
        self,
        batches: Iterable[Recommendations],
        query: Query,
        path: "str | PathLike[str] | Staging",
        form: str | None,
        table: str | None,
        explain: bool,
        columns: Mapping[str, str] | None = None,
    ) -> AbstractContextManager[int]:
        """Write batches beside a file or a table, and let them take its place when the block ends."""
        from mrfrec.io.frames import writing_rows

        pieces = (self._catalogue.recommendation_columns(batch) for batch in batches)
        return writing_rows(pieces, *self._table_form(query, explain), path, form, table, columns)

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

    def _table_form(self, query: Query, explain: bool) -> tuple[tuple[str, ...], dict[str, Any]]:
        """Return the columns of a table of recommendations, and the types that depend on the model."""
        names = (*RECOMMENDATION_COLUMNS, "because") if explain else RECOMMENDATION_COLUMNS
        return names, {**self._types, "user": query.names.kind}

    @property
    def _types(self) -> dict[str, str]:
        """The types of columns that depend on the model."""
        kind = self._fitted().items.kind
        return {"item": kind, "similar_to": kind, "score": self._score_type}

    # ── items ─────────────────────────────────────────────────────────────────────────────────────

    def similar_items(self, item: Id | Iterable[Id], k: int = 10) -> Any:
        """Return the items that go with an item most strongly: a table of item, title, score and rank.

        For several items the table has the k nearest of each, and `similar_to`, the item they are near to,
        as its first column. Where fewer than k items go with one at all, there are fewer, with a warning.
        """
        from mrfrec.io.frames import frame

        if isinstance(item, Iterable) and not isinstance(item, str | bytes):
            batches = self._all_neighbors(k, None, item)
            return frame(batches, SIMILAR_COLUMNS, self._types, library=self._library())
        found = self._nearest(self._position(item), check_count("k", k))  # type: ignore[arg-type]
        if len(found[0]) < k:
            warn(f"item {item!r} has fewer than k={k} similar items: the model knows no more.")
        columns = self._catalogue.neighbor_columns(*found)
        return frame([columns], _NEIGHBOR_COLUMNS, self._types, library=self._library())

    @shows_progress
    def similar_items_to(
        self,
        path: "str | PathLike[str]",
        items: Iterable[Id] | None = None,
        *,
        k: int = 10,
        form: Form = None,
        table: str | None = None,
        columns: Mapping[str, str] | None = None,
        progress: "Progress | bool | None" = None,
    ) -> int:
        """Write the k nearest of items to a file or a table of a database; returns the number of rows.

        The columns are those of `similar_items` of several items, here all items if None. `path`, `form`,
        `table` and `columns` are those of `recommend_to`; the primary key is similar_to and rank. A
        thousand items at a time are held in memory. `progress` is that of `recommend`, and counts items.
        """
        with self.staged_similar_items(
            path, items, k=k, form=form, table=table, columns=columns, progress=progress
        ) as rows:
            return rows

    @contextmanager
    def staged_similar_items(
        self,
        path: "str | PathLike[str] | Staging",
        items: Iterable[Id] | None = None,
        *,
        k: int = 10,
        form: Form = None,
        table: str | None = None,
        columns: Mapping[str, str] | None = None,
        progress: "Progress | bool | None" = None,
    ) -> Iterator[int]:
        """Write as `similar_items_to` does, but let the rows appear when the block ends."""
        from mrfrec.io.frames import check_target

        check_target(path, form, table)
        with showing(progress) as report:
            batches = self._all_neighbors(k, report, items)
            with self._staged_neighbors(batches, path, form, table, columns) as rows:
                yield rows

    def _staged_neighbors(
        self,
        batches: Iterable[Columns],
        path: "str | PathLike[str] | Staging",
        form: str | None,
        table: str | None,
        columns: Mapping[str, str] | None = None,
    ) -> AbstractContextManager[int]:
        from mrfrec.io.frames import writing_rows

        return writing_rows(batches, SIMILAR_COLUMNS, self._types, path, form, table, columns)

    def explain(
        self, item: Id, *, user: Id | None = None, history: object = None, novelty: float | None = None
    ) -> Any:
        """Return what a history adds to the score of one item, the largest contribution first.

        A table of item, title, value, weight and contribution. The contributions are exact, and their sum is
        the score (to the precision of the weights, the one `recommend` gives). A base score other than 0 has
        a last row, without an item; it is that of the Notes of `recommend`, or, of a history without a known
        item, the score that items have there.
        """
        from mrfrec.io.frames import frame

        columns = self._catalogue.reason_columns(
            *self._explanation(item, user=user, history=history, novelty=novelty)
        )
        return frame([columns], _REASON_COLUMNS, self._types, library=self._library())

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
        return frame([columns], _SEARCH_COLUMNS, self._types, library=self._library())
