"""Recommender, the base class of all models: the methods that users call.

Methods that answer questions call functions of `mrfrec.answers` with the fitted state, one frozen value that
a fit, a file or an update makes.
"""

import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from os import PathLike
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NoReturn, Self, Unpack

import numpy as np
import numpy.typing as npt

from mrfrec import figures
from mrfrec.answers import ranking, recommending, tables
from mrfrec.answers.people import people_of, timed_rows
from mrfrec.answers.question import Boost, Question, QuestionOptions, with_options
from mrfrec.answers.tables import Form, WriteOptions
from mrfrec.bars import showing
from mrfrec.checks import check_count, check_flag, check_frames, check_thread_count, guided
from mrfrec.core.engine import Progress
from mrfrec.data.catalogue import Catalogue, Columns, DataSize, name_with_id
from mrfrec.data.ids import Id, Ids, Texts
from mrfrec.data.interactions import Interactions
from mrfrec.data.reading_options import PARSING, Format, MissingTime, OnBad, ReadingOptions
from mrfrec.engines.machine import memory_budget, parse_bytes
from mrfrec.errors import MrfrecError, NotFittedError, ParameterError
from mrfrec.fitted import files
from mrfrec.fitted.measured import FitPlan, Measured, as_parameter
from mrfrec.fitted.scorers import Ties
from mrfrec.fitted.state import FittedState, Learned, Runtime
from mrfrec.io.artifact import Stored, StoredArrays, check_unchanged, write_erasures
from mrfrec.io.frames import Frame, frame
from mrfrec.io.item_table import as_item_table
from mrfrec.models import fitting, updating
from mrfrec.models.fitting import FitContext
from mrfrec.models.parameters import (
    defaults_of,
    html_summary,
    set_values,
    sklearn_tags,
    summary,
    values_of,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure


__all__ = ["FitContext", "Range", "Recommender", "restored"]

Range = tuple[float, float] | tuple[float, float, Literal["log", "times"]] | Sequence[Any]
"""What one parameter may be in a search: numbers between two bounds, or one of a list of values."""

# Parameters of `read_interactions` that say where things are in a table.
_PLACES = ("user", "item", "value", "title", "items", "event", "time", *PARSING)
_COLUMNS = {
    name: f"Options of reading go where the data is read: fit(read_interactions(data, {name}={{value!r}}))."
    for name in {*_PLACES, *ReadingOptions.model_fields}
}


class _NoScoreError(MrfrecError, AttributeError):
    """A model has no `score`, so that `hasattr` says so."""


class Recommender(ABC):
    """Base class of all models.

    A subclass implements `_fit`, which returns what was learned, and `_restore`, which reads it from a file.
    A model keeps the parameters of its constructor as attributes of the same names. A changed parameter takes
    effect with the next `fit`; until then answers and `save` use `fitted_.parameters`.

    A fit, an update or a file replaces one value, `fitted_`, as a whole. Several threads may ask a model,
    also while another thread fits it: an answer is always of one fit.
    """

    machine_parameters: ClassVar[tuple[str, ...]] = ("threads", "memory_limit")  # They change no result.
    threads: int | None = None
    memory_limit: int | None = None
    device: str = "cpu"

    _fitted: FittedState | None = None
    _file_hashes: Mapping[Path, str] = MappingProxyType({})  # by the name of a file that was read or written
    _frames: str | None = None
    _for_authors: ClassVar[frozenset[str]] = frozenset((
        "check_ready", "defaults", "learned", "machine_parameters", "planned_for", "score", "set_limits",
        "search_space", "uses_features",
    ))  # fmt: skip

    # ── what a subclass implements: the abstract methods, and what differs from these defaults ────────

    # What `evaluation.tune` varies: (low, high), also with "log" or "times", or a list of values.
    search_space: ClassVar[Mapping[str, Range]] = {}
    uses_features: ClassVar[bool] = False  # True: the model learns from features of items.

    @abstractmethod
    def _fit(self, data: "Interactions", context: FitContext) -> Learned:
        """Return what a model with these parameters learns from the data; change nothing of the model."""

    @abstractmethod
    def _restore(self, arrays: "Mapping[str, Stored]", facts: Mapping[str, Any], m: int) -> Learned:
        """Return what was learned, from a file with the arrays and facts of `Learned.stored`, for m items."""

    def planned_for(self, size: DataSize) -> "FitPlan | None":
        """Return what a fit to data of this size would do; None if there is nothing to decide."""
        return None

    def check_ready(self) -> None:
        """Raise if a fit lacks a library or a device."""
        from mrfrec.engines.devices import chosen_device

        chosen_device(self.device)

    # ── parameters ────────────────────────────────────────────────────────────────────────────────

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "__init__" in vars(cls):
            cls.__init__ = guided(cls.__init__)  # type: ignore[method-assign]

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__()} - self._for_authors)

    @classmethod
    def defaults(cls) -> dict[str, Any]:
        """Return the constructor's parameters and their defaults, `inspect.Parameter.empty` if required."""
        return defaults_of(cls)

    @property
    def parameters(self) -> dict[str, Any]:
        """The parameters as they are set now, without those that only concern the machine."""
        everything = self.get_params()
        return {name: value for name, value in everything.items() if name not in self.machine_parameters}

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return all parameters of the constructor. `deep` changes nothing; scikit-learn passes it."""
        return values_of(self, self.defaults())

    def set_params(self, **parameters: Any) -> Self:
        """Set parameters, under the rules of the constructor. They take effect with the next `fit`."""
        set_values(self, parameters)
        return self

    def set_limits(self, threads: int | None, memory_limit: int | str | None) -> None:
        """Check and set `threads` and `memory_limit`."""
        self.threads = check_thread_count(threads)
        self.memory_limit = None if memory_limit is None else parse_bytes(memory_limit)

    def __sklearn_tags__(self) -> Any:
        return sklearn_tags()

    # ── fitting and scoring ───────────────────────────────────────────────────────────────────────

    @partial(guided, hints=_COLUMNS)
    def fit(
        self,
        data: object,
        y: object = None,
        *,
        times: object = None,
        progress: "Progress | bool | None" = None,
        reuse: dict[str, Any] | None = None,
        validation: object = None,
        measured: "Measured | None" = None,
        item_features: object = None,
        items: object = None,
    ) -> Self:
        """Fit the model. A fit that fails or is interrupted leaves the model as it was.

        Parameters
        ----------
        data
            `Interactions`, anything `read_interactions` reads (a path, a data frame), or a `scipy.sparse`
            matrix of users × items, which is copied.
        y
            None, which scikit-learn passes: there are no targets beside the data.
        times
            The times of a `scipy.sparse` matrix, as for `Interactions`; other data has its own.
        progress
            True draws a bar. A function is called as `progress(stage, done, total)`, with the stage
            in words; the total may change.
        reuse
            A dict, empty at first, through which fits on the same `Interactions` share intermediate results.
        validation
            Two matrices of validation users × items, shown and hidden, for models trained in epochs: the best
            epoch is kept. The users must not be in the training data.
        measured
            The `measured_` of an earlier fit of an `MRF`: keep these values, and measure nothing.
        item_features
            A table of items and their features, in any form that `read_item_features` reads, or its result.
            An `MRF` then also knows items that nobody has used.
        items
            A table of items whose columns filters can use, in any form that `read_item_table` reads, or its
            result. By default the table that gave the data its titles, or the table of `item_features`.
        """
        if y is not None:
            advice = "A model learns from the data alone; values, such as ratings, are part of it."
            raise ParameterError("y", "None", type(y).__name__, advice)
        interactions = fitting.read_data(data, times, items, item_features, type(self))
        context = fitting.context_of(interactions, data, reuse, validation, measured)
        if self._fitted is not None:
            self._fitted.learned.leave_devices()
        parameters, start = self.parameters, time.perf_counter()
        with showing(progress) as report:
            learned = self._fit(interactions, context._replace(progress=report))
        self._fitted = fitting.state_of(interactions, learned, type(self).__name__, parameters, start)
        return self

    def set_items(self, items: object) -> Self:
        """Replace the item table, `catalogue.table`, without a fit.

        Items without a title take the one in the table; nothing else changes. Items that the model does not
        know are left out. Save the model afterwards.

        Parameters
        ----------
        items
            As in `fit`.
        """
        fitted, table = self.fitted_, as_item_table(items)
        old = fitted.catalogue
        titles = table.titles_for(old.items, old.titles)
        catalogue = replace(old, table=table.over(old.items), titles=titles)
        self._fitted = replace(fitted, catalogue=catalogue, file_hash="")
        return self

    def scores(self, X_history: object, *, times: object = None) -> npt.NDArray[Any]:
        """Return the score of every item for each row of histories, users × items.

        `times` are the times of the stored entries, in microseconds, for a model that weights by time.
        """
        fitted, runtime = self.fitted_, Runtime.of(self)
        learned = fitted.learned
        histories = timed_rows(X_history, fitted, times)
        needed = len(histories) * histories.width * learned.base_scores.itemsize
        plan = memory_budget(self.memory_limit)
        plan.require("scores", needed, "Score fewer users at a time, or use top_k.", who="scores")
        scorer = learned.scorer(histories, runtime)
        scores = ranking.score(scorer, learned.base_scores, runtime.threads)
        scores[np.diff(histories.ptr) == 0] = learned.unknown_user_scores(fitted.catalogue)
        return scores

    def top_k(
        self,
        X_history: object,
        k: int,
        exclude_seen: bool = True,
        ties: Ties = "index",
        *,
        times: object = None,
    ) -> tuple[npt.NDArray[np.int32], npt.NDArray[Any]]:
        """Return the indices of the k best items of each history and their scores, best first.

        Two arrays of users × k. Where fewer than k items are left for a user, the list ends with item −1 and
        score −∞. Of items with equal scores, the one with the lower index comes first, or the more popular
        one. `times` are as in `scores`.
        """
        fitted = self.fitted_
        histories = timed_rows(X_history, fitted, times)
        k, m = check_count("k", k), histories.width
        if k > m:
            raise ParameterError("k", f"at most the number of items, {m}", k)
        if ties not in ("index", "popularity"):
            raise ParameterError("ties", '"index" or "popularity"', ties)
        seen = histories if check_flag("exclude_seen", exclude_seen) else None
        eligible = ranking.Eligible(hidden=seen)
        items, scores, _ = ranking.rank(fitted, Runtime.of(self), histories, k, eligible, ties=ties)
        return items, scores

    @property
    def score(self) -> NoReturn:
        """Refuse: a score needs hidden items and a metric; see `mrfrec.evaluation`."""
        raise _NoScoreError(
            f"{type(self).__name__} has no score for scikit-learn's searches and cross-validation: they hide "
            "no items of a history. Use mrfrec.evaluation: tune for parameters, evaluate or compare "
            "for a metric. scores(X) returns the score of every item."
        )

    # ── facts about a model ───────────────────────────────────────────────────────────────────────

    def __repr__(self) -> str:
        return summary(self, self._fitted)

    def _repr_html_(self) -> str:
        return html_summary(self, self._fitted)

    def __sklearn_is_fitted__(self) -> bool:
        return self._fitted is not None

    @property
    def fitted_(self) -> FittedState:
        """The fitted state, a frozen value, which all attributes that end with _ are read from."""
        if self._fitted is None:
            raise NotFittedError(
                f"this {type(self).__name__} is not fitted: call fit first, or load a model."
            )
        return self._fitted

    @property
    def catalogue(self) -> Catalogue:
        """Ids, titles and popularity of the items."""
        return self.fitted_.catalogue

    @property
    def items_(self) -> Ids:
        """Ids of the items, in the order of the model's columns."""
        return self.catalogue.items

    @property
    def titles_(self) -> Texts | None:
        """Titles of the items, "" if an item has none; None if no item has one."""
        return self.catalogue.titles

    @property
    def popularity_(self) -> npt.NDArray[np.int64]:
        """Number of training users of each item."""
        return self.catalogue.popularity

    @property
    def users_(self) -> Ids | None:
        """Ids of the training users; None in a model saved without histories."""
        training = self.fitted_.training
        return None if training is None else training.users

    @property
    def explains(self) -> bool:
        """Whether a score is a sum over the items of a history, which `explain` needs."""
        return self.fitted_.learned.explains

    @property
    def notes_(self) -> dict[str, Any]:
        """The notes that the model was saved with."""
        return dict(self.fitted_.notes)

    @property
    def reading_(self) -> dict[str, Any]:
        """The options of `read_interactions` that the data was read with; later data needs the same."""
        return dict(self.fitted_.rules)

    @property
    def batches_(self) -> tuple[str, ...]:
        """The names of the batches the model was fitted on, in the order of their arrival."""
        return self.fitted_.batches

    @property
    def measured_(self) -> Measured | None:
        """The values that the fit has measured; None if it measured nothing."""
        return self.fitted_.learned.measured

    @property
    def values_(self) -> dict[str, Any]:
        """The values of parameters that a fit can measure, as the fit used them."""
        return {name: as_parameter(name, x) for name, x in self.fitted_.learned.values.items()}

    @property
    def plan_(self) -> FitPlan:
        """What the fit has decided, and why. Models that have nothing to decide have no plan."""
        plan = self.fitted_.learned.plan
        if plan is None:
            raise AttributeError(f"a fit of {type(self).__name__} has nothing to decide, and so no plan_.")
        return plan

    @property
    def timings_(self) -> Mapping[str, float]:
        """Seconds of each stage of the fit, and "total"; empty in a loaded model."""
        return self.fitted_.learned.timings

    @property
    def memory_plan_(self) -> Mapping[str, int]:
        """Planned bytes of each stage of the fit; empty in a loaded model."""
        return self.fitted_.learned.memory_plan

    @property
    def frames(self) -> str | None:
        """Data frame library of all tables: "polars", "pandas" or "pyarrow". It can be set, and is not saved.

        None, the default, takes the library of the data frame with the users or histories, or else of the
        training data, or else polars.
        """
        return self._frames

    @frames.setter
    def frames(self, library: str | None) -> None:
        self._frames = check_frames(library)

    def _frame(
        self,
        fitted: FittedState,
        batches: Iterable[Columns],
        names: Iterable[str],
        library: str | None = None,
        **types: str,
    ) -> "Frame":
        """Return batches of columns as a data frame; see `frames` for its library."""
        chosen = self._frames or library or fitted.library
        return frame(batches, names, {**fitted.column_types, **types}, chosen)

    # ── answers ───────────────────────────────────────────────────────────────────────────────────

    @guided
    @with_options
    def recommend(
        self,
        users: object = None,
        *,
        history: object = None,
        progress: "Progress | bool | None" = None,
        **options: Unpack[QuestionOptions],
    ) -> "Frame":
        """Return the k best items of each user: a table of user, item, title, score, rank and source.

        One history without a name has no column of users, and a model without titles has no column of titles.

        Parameters
        ----------
        users
            Ids of training users: one, or several in any iterable. All of them if neither users nor
            histories are given. A user whom the model does not know gets the most popular items, with a
            warning, unless `strict`.
        history
            Instead of `users`, the items that a person has used: ids in any iterable, oldest first, or a
            mapping from item to value or time. For several people: a mapping from names to histories, a list
            of histories, a data frame with users and items, read as the training data was, or a
            `scipy.sparse` matrix. The people need not be training users. Where every pair of the training
            data counts 1, values count 1 as well, or −1 below 0, with a warning.
        progress
            As in `fit`; it counts users.
        {options}

        Notes
        -----
        A list is shorter than k only where no more items exist, with a warning. `source` is "model" where
        the history has an item with a weight for the recommended one. The other items have the source
        "popular" and their base score; equal scores are ranked by popularity. A history without a known item
        gets the most popular items.

        `allow`, `exclude` and `where` hold for everybody, or are mappings from users (as the table names
        them), in which None stands for everybody: {None: {…}, "ann": {…}}. `where` is a mapping from columns
        of the item table to conditions, {"category": "shoes", "price": (10, 50), "in_stock": True}, or an
        expression in SQL; docs/reference/rules.md has all conditions. `at_most` counts an item with a list in
        each of its parts, and does not limit items without a value. `boost` takes columns of numbers, or
        mappings from item to number: {"multiply": {"tea": 1.5}}. With both ways, the sum is multiplied.
        Scores below 0 are divided, so that a factor above 1 lifts every score. `explain` adds a column
        `because`, such as "base +0.74, cython3 +0.01": the base score, unless it is 0, and the items that add
        most.
        With `variety` v the next item has the largest (1 − v)·r − v·L among the best 5·k (50 to 500), where
        r is its score, scaled to [0, 1] over these, and L its largest likeness to an item before it.
        """
        fitted, question = self.fitted_, Question.of(**options)
        people = people_of(fitted, users, history)
        prepared = recommending.PreparedQuestion.of(fitted, people, question)
        prepared.warn()
        names = tables.columns_shown(fitted.catalogue, tables.table_names(question), people.is_anonymous)
        with showing(progress) as report:
            answers = prepared.answers(Runtime.of(self), report)
            batches = (tables.recommendation_table(fitted.catalogue, answer) for answer in answers)
            return self._frame(fitted, batches, names, people.library, user=people.ids.type)

    @guided
    @with_options
    def recommend_to(
        self,
        path: "str | PathLike[str]",
        users: object = None,
        *,
        history: object = None,
        form: Form = None,
        table: str | None = None,
        columns: Mapping[str, str] | None = None,
        progress: "Progress | bool | None" = None,
        **options: Unpack[QuestionOptions],
    ) -> int:
        """Write what `recommend` returns to a file or a table of a database; returns the number of rows.

        The name of a file tells its form (.parquet, .csv, .jsonl), or `form` does. The file appears when it
        is whole; it may replace a table with the same columns. A few thousand users at a time are held in
        memory. A user who is named several times counts once, with a warning.

        With the URL of a database (postgresql://, sqlite:///) the rows replace those of `table`, such as
        "recs" or "shop.recs", in one transaction. A missing table is created, with user and rank as its
        primary key; one with other columns is refused. `columns` gives columns other names, in files too:
        {"user": "user_id"}. The other parameters are those of `recommend`:

        {options}
        """
        target: WriteOptions = {"form": form, "table": table, "columns": columns}
        fitted = self.fitted_
        with showing(progress) as report, tables.staged_recommendations(
            fitted, Runtime.of(self), path, users, history=history, target=target, progress=report,
            **options,
        ) as rows:  # fmt: skip
            return rows

    def similar_items(self, item: Id | Iterable[Id], k: int = 10) -> "Frame":
        """Return the items that go with an item most strongly: a table of item, title, score and rank.

        For several items, a first column `similar_to` names the item. If fewer than k items go with an item,
        there are fewer rows, with a warning.
        """
        fitted = self.fitted_
        batches, names = tables.similar_tables(fitted, item, k)
        return self._frame(fitted, batches, tables.columns_shown(fitted.catalogue, names))

    def plot_neighbors(self, item: Id, k: int = 15) -> "Figure":
        """Draw how strongly the k items of `similar_items` go with an item.

        Returns a matplotlib `Figure`.
        """
        fitted = self.fitted_
        of = fitted.catalogue
        index = of.index_of(item)
        items, strengths = ranking.nearest(fitted, index, check_count("k", k))
        names = [of.name(i) for i in items.tolist()]
        title = f"Goes with {name_with_id(item, of.short_title(index))}"
        return figures.plot_bars(title, "strength", names, strengths.tolist())

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
        """Write the k nearest items of all or some items to a file or database; returns the number of rows.

        The rows are the ones of `similar_items` for several items, here all items if None. An item that is
        named several times counts once. The other parameters are as in `recommend_to`; the primary key is
        similar_to and rank.
        """
        target: WriteOptions = {"form": form, "table": table, "columns": columns}
        fitted = self.fitted_
        with (
            showing(progress) as report,
            tables.staged_similar_items(fitted, path, items, k=k, target=target, progress=report) as rows,
        ):
            return rows

    def explain(
        self,
        item: Id,
        *,
        user: Id | None = None,
        history: object = None,
        novelty: float | None = None,
        boost: Boost = None,
    ) -> "Frame":
        """Return what a history adds to the score of one item, the largest contribution first.

        A table of item, title, value, weight and contribution. The contributions sum to the score that
        `recommend` gives. A base score other than 0 is the last row, without an item; a `boost`, as in
        `recommend`, has a row of its own. With features there is a column `both`: the features that the items
        have in common, where they carry the weight.
        """
        fitted = self.fitted_
        parts = recommending.explanation(
            fitted, item, user=user, history=history, novelty=novelty, boost=boost
        )
        columns = tables.reason_table(fitted.catalogue, fitted.catalogue.index_of(item), parts)
        return self._frame(fitted, [columns], columns)

    def history(self, users: Id | Iterable[Id]) -> "Frame":
        """Return what training users have: a table of user, item and title, in the order of the times.

        There is a column of values unless all are 1, and a column of times where they are known. A model that
        was loaded must have been saved with `include_histories=True`.

        Parameters
        ----------
        users
            Ids of training users: one, or several in any iterable.
        """
        fitted = self.fitted_
        columns, people = tables.history_columns(fitted, users)
        names = tables.columns_shown(fitted.catalogue, columns)
        return self._frame(fitted, [columns], names, people.library, user=people.ids.type)

    def search(self, text: str, k: int = 10) -> "Frame":
        """Find items by id or title: a table of item, title and users, the best match first.

        Capitals, accents and punctuation do not count. The first search builds an index.
        """
        if not isinstance(text, str):
            raise ParameterError("text", "a string", text)
        fitted = self.fitted_
        columns = tables.search_columns(fitted.catalogue, text, check_count("k", k))
        return self._frame(fitted, [columns], tables.columns_shown(fitted.catalogue, tables.SEARCH_COLUMNS))

    # ── files, and more or fewer events ───────────────────────────────────────────────────────────

    def save(
        self,
        path: "str | PathLike[str]",
        *,
        include_histories: bool = False,
        notes: Mapping[str, Any] | None = None,
        mode: int | None = None,
        replace_changed: bool = False,
    ) -> None:
        """Write the model to one file; `mrfrec.load` reads it back. The file appears when it is whole.

        A file that this model was loaded from or saved to is replaced only if no other process has changed
        it since. `mrfrec.locked` keeps other processes from changing it meanwhile.

        Parameters
        ----------
        path
            The file, with a name such as shop.mrf; names of tables (.csv, .parquet) are refused. A link
            stays, and its target is replaced.
        include_histories
            Also write the training users and their histories. Recommending by user id and updating need them.
        notes
            A mapping that JSON can hold: `notes_` of the loaded model.
        mode
            Who may read and write the file, such as 0o640. By default a file that is replaced keeps its mode,
            a new file gets the usual mode, and a file that has histories for the first time gets 0o600.
        replace_changed
            Also replace a file that another process has written since.
        """
        files.check_model_name(path)
        names, fitted = files.names_of(path), self.fitted_
        known = {self._file_hashes[name] for name in names if name in self._file_hashes}
        file_hashes = None if check_flag("replace_changed", replace_changed) or not known else known
        # The erasures are written first: the process may be killed before the model is there.
        if len(fitted.erasures):
            if file_hashes:
                check_unchanged(path, file_hashes)
            write_erasures(path, fitted.erasures)
        file_hash = files.save(fitted, path, include_histories, notes, mode, file_hashes)
        self._file_hashes = {**self._file_hashes, **dict.fromkeys(names, file_hash)}
        self._replace_state(fitted, replace(fitted, file_hash=file_hash))

    def verify(self) -> None:
        """Check all arrays of a loaded model now; a damaged one raises a `ModelFileError`."""
        fitted = self.fitted_
        files.verify(fitted)
        self._replace_state(fitted, replace(fitted, learned=fitted.learned.verified()))

    def _replace_state(self, old: FittedState, new: FittedState) -> None:
        """Replace the state, unless another thread has done so meanwhile."""
        if self._fitted is old:
            self._fitted = new

    def update(
        self,
        new_events: object,
        *,
        batch: str | None = None,
        again: bool = False,
        measure_again: bool = False,
        item_features: object = None,
        user: str | None = None,
        item: str | None = None,
        value: str | None = None,
        title: str | None = None,
        items: object = None,
        event: str | None = None,
        time: str | bool | None = None,
        on_bad: OnBad | None = None,
        missing_time: MissingTime | None = None,
        separator: str | None = None,
        columns: Sequence[str] | None = None,
        input_format: Format | None = None,
        query: str | None = None,
        progress: "Progress | bool | None" = None,
        **rules: Any,
    ) -> Self:
        """Add a batch of events to the training data, and fit again with the same parameters.

        The result is the same model, to the bit, as a fit on all events at once with these parameters and the
        values that the first fit has measured. A loaded model must have been saved with
        `include_histories=True`. Data that was read with `max_history`, `min_users` or `min_items`, or with
        values and `window`, takes no more events: see docs/how-to/update.md.

        Parameters
        ----------
        new_events
            Anything `read_interactions` reads, with the options of the first data (see `reading_`), or
            `Interactions`. Users and items may be new.
        batch
            Name of the batch, such as "2026-11-16". A batch that was added before is refused. By default a
            hash of its ids, pairs, values and times.
        again
            Add the batch even if a batch of this name, or pairs whose values add up, were added before.
        measure_again
            Measure again the values that are "auto".
        item_features
            A table of features that replaces the one of the fit; items that were only in the old table are
            forgotten. By default the old table is kept.
        progress
            As in `fit`.
        user, item, value, title, event, time, items, on_bad, missing_time, separator, columns, query, \
        input_format
            Where things are in `new_events`, as for `read_interactions`.
        rules
            Other options of `read_interactions` are refused: the first data has decided them.
        """
        given = locals()
        reading = {name: given[name] for name in _PLACES if given[name] is not None} | rules
        check_flag("measure_again", measure_again)
        fitted = self.fitted_
        with showing(progress) as report:
            data, batches = updating.with_batch(fitted, new_events, batch, again, report, reading)
            if item_features is not None:
                data = fitting.with_features(data.without_unused_items(), item_features, type(self))
            measured = None if measure_again else fitted.learned.measured
            return self.fit(updating.of_batches(data, batches), progress=report, measured=measured)

    def forget(self, users: object = (), *, progress: "Progress | bool | None" = None) -> Self:
        """Remove users and all that is known of them, and fit again with the same parameters.

        The result is the same model as a fit on the events of the remaining users, without items that only
        the removed users had. Save the model afterwards: earlier copies still hold the users, also the hidden
        copies that a killed nightly run left beside the file (.shop.mrf.nightly; `mrfrec forget` removes
        them). A warning counts users who are not in the data.

        The model and the file `NAME.erased` beside it keep a salted hash of every removed id, with the day.
        `update` and nightly jobs leave out rows of these users up to this day, and their rows without a time.
        The hashes are personal data: docs/how-to/erase-a-person.md.

        Parameters
        ----------
        users
            Ids of users, one or several in any iterable, or the `erasures` of another fitted state. By
            default only users are removed who were forgotten in a later version of the file, which an older
            version has replaced.
        progress
            As in `fit`.
        """
        fitted = self.fitted_
        data, erased = updating.without_forgotten(fitted, users)
        if data is None:
            if erased != fitted.erased:
                self._fitted = replace(fitted, erased=erased, beside=None, file_hash="")
            return self
        data = updating.of_batches(data, fitted.batches)
        return self.fit(data, progress=progress, measured=fitted.learned.measured)


def restored(kind: type[Recommender], facts: Mapping[str, Any], arrays: "StoredArrays") -> Recommender:
    """Return the model in a file; raise a KeyError, TypeError or ValueError for parts that do not fit."""
    known = kind.defaults().keys() - {*kind.machine_parameters}
    if wrong := [name for name in facts["parameters"] if name not in known]:
        raise KeyError(*wrong)
    model = kind(**facts["parameters"])
    model._fitted = files.read_fitted(facts, arrays, model._restore, kind.__name__, model.parameters)
    model._file_hashes = dict.fromkeys(files.names_of(arrays.path), arrays.file_hash)
    return model
