"""Recommender, the base class of all models: parameters, fit, scores, and the methods that all models have.

Methods that answer questions call functions of `mrfrec.models.answers`; those that write, read and update
models call functions of `mrfrec.models.storage`.
"""

import inspect
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, Self, Unpack

import numpy as np
import numpy.typing as npt

from mrfrec.checks import check_count, check_flag, check_frames
from mrfrec.core.progress import showing, shows_progress
from mrfrec.core.sparse import Rows
from mrfrec.data.catalogue import (
    SEARCH_COLUMNS,
    SIMILAR_COLUMNS,
    Catalogue,
    Columns,
    DataSize,
    Training,
    rows_of,
)
from mrfrec.data.features import ItemFeatures
from mrfrec.data.ids import Id, Ids, Texts
from mrfrec.data.provenance import rules_of_matrix
from mrfrec.engines.machine import memory_budget, parse_bytes, usable_threads
from mrfrec.errors import DataError, NotFittedError, ParameterError
from mrfrec.models.answers import explaining, recommending, selection, similar
from mrfrec.models.answers.histories import UnknownIds, matrix_rows, query_of, validation_rows
from mrfrec.models.answers.question import ItemFilter, Question
from mrfrec.models.answers.recommending import Form, WriteOptions
from mrfrec.models.answers.scorers import Scorer
from mrfrec.models.climbing import Axis, Route
from mrfrec.models.measured import Measured
from mrfrec.models.storage import files, updating

if TYPE_CHECKING:
    from mrfrec.core.engine import Progress
    from mrfrec.core.plan import Plan
    from mrfrec.data.interactions import Interactions
    from mrfrec.io.artifact import Stored
    from mrfrec.io.staging import Staging

__all__ = ["Answer", "FitContext", "Recommender"]


@dataclass(frozen=True)
class Answer:
    """Recommendations as data: plain rows, and the ids that the model does not know."""

    rows: list[dict[str, Any]]  # user, item, title, score, rank, source [, because]
    unknown: dict[str, list[Id]]  # by the parameter they were given as: users, history, allow, exclude


class FitContext(NamedTuple):
    """The arguments of a fit besides its data."""

    copied: int  # bytes of the matrix, unless the caller holds it
    progress: "Progress | None"
    reuse: dict[str, Any] | None
    validation: tuple[Rows, Rows] | None  # shown and hidden items of validation users
    client: Any = None  # of a cluster
    measured: "Measured | None" = None  # values of an earlier fit, to keep


class Recommender(ABC):
    """Base class of all models. Several threads may use a fitted model.

    A subclass implements `_fit`, which also sets `_base_scores`; `_scorer`, `_neighbors`, `_state` and
    `_restore`; and `_weights_between` if it explains. The parameters of a model are those of its constructor,
    stored as attributes of the same names. Changing one takes effect with the next `fit`; until then answers
    and `save` use `fitted_parameters_`.
    """

    # The values that `tune` tries, the last parameter varying fastest.
    tuning_grid: ClassVar[Mapping[str, Axis]] = {}
    machine_parameters: ClassVar[tuple[str, ...]] = ("threads", "memory_limit")  # they change no result
    scales_scores: ClassVar[bool] = False  # whether a score may be multiplied, as `novelty` does
    explains: ClassVar[bool] = True  # whether a score is a sum over the items of a history
    uses_features: ClassVar[bool] = False  # whether it learns from features of items
    extra: ClassVar[str | None] = None  # optional dependency group that fitting needs
    threads: int | None = None
    memory_limit: int | None = None
    dtype: Literal["float32", "float64"] = "float32"  # of scores
    # Seconds of each stage of a fit, and "total", and planned bytes; empty in a loaded model.
    timings_: Mapping[str, float] = MappingProxyType({})
    memory_plan_: Mapping[str, int] = MappingProxyType({})
    fitted_parameters_: dict[str, Any]  # `parameters` at the time of the fit
    measured_: Measured | None = None  # values that the fit has measured
    notes_: dict[str, Any]  # of a loaded model: the notes it was saved with
    file_hash_: str = ""  # a hash of everything in the file it was loaded from or saved to, until it changes
    _seals: Mapping[Path, str] = MappingProxyType({})  # of the files it was loaded from or saved to
    _base_scores: npt.NDArray[Any]  # of each item, without any contribution of a history
    _catalogue: Catalogue
    _training: "Training | Callable[[], Training] | None" = None
    _facts: dict[str, Any]  # about the training data
    _rules: dict[str, Any]  # by which tables are read, as the training data was
    _frames: str | None = None
    _interactions: "Interactions"
    _bases: dict[tuple[selection.Ties, bool, float], selection.Base]  # built when first needed

    # ── what a subclass implements ────────────────────────────────────────────────────────────────

    @abstractmethod
    def _fit(self, data: "Interactions", given: FitContext) -> None:
        """Learn from a matrix; change the model only at the end, when nothing can fail."""

    @abstractmethod
    def _scorer(self, histories: Rows) -> Scorer:
        """Return the scorer of these histories."""

    @property
    def _stranger_scores(self) -> npt.NDArray[Any]:
        """The score of each item for a user without a history."""
        return self._base_scores

    @abstractmethod
    def _neighbors(self, item: int) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        """Return the items that go with an item, and how strongly."""

    def _weights_between(
        self, had: npt.NDArray[Any], values: npt.NDArray[Any], targets: npt.NDArray[Any]
    ) -> npt.NDArray[np.float64]:
        """Return the weight of each item of a history in the score of each target, had × targets."""
        raise NotImplementedError  # never called where `explains` is False

    @abstractmethod
    def _state(self) -> tuple[dict[str, npt.NDArray[Any]], dict[str, Any]]:
        """Return the arrays and facts to save."""

    @abstractmethod
    def _restore(self, arrays: "Mapping[str, Stored]", facts: Mapping[str, Any], m: int) -> None:
        """Restore what `_state` returned, for m items."""

    def check_client(self, client: object) -> None:
        """Refuse to fit on a cluster; a subclass that can overrides this."""
        rule = f"None: {type(self).__name__} is fitted on this machine"
        raise ParameterError("client", rule, client)

    def tuning_route(self, data: "Interactions") -> Route:
        """Return how `climb` finds the parameters: the last of the grid costs least."""
        return Route({name: self.tuning_grid[name] for name in reversed(list(self.tuning_grid))})

    def tuning_start(self, data: "Interactions", given: FitContext) -> dict[str, Any]:
        """Return parameters that a fit to this data would measure, where `climb` starts."""
        return {}

    def planned_for(self, size: DataSize) -> "Plan | None":
        """Return what a fit to data of this size would do; None if there is nothing to decide."""
        return None

    def check_ready(self) -> None:
        """Raise if a library or device that fitting needs is missing."""
        return

    def warm_up(self) -> None:
        """Compile or load what fitting needs, for example before timing a fit."""
        return

    def prepare_answers(self) -> None:
        """Check all arrays and load the compiled code, to answer many questions of one user each."""
        self.verify()

    # ── parameters ────────────────────────────────────────────────────────────────────────────────

    @classmethod
    def defaults(cls) -> dict[str, Any]:
        """Return the constructor's parameters and their defaults, `inspect.Parameter.empty` if required."""
        parameters = inspect.signature(cls).parameters
        for parameter in parameters.values():
            if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
                rule = f"a class whose constructor takes every parameter by name, and no {parameter.name!r}"
                raise ParameterError("model", rule, cls.__name__)
        return {name: parameter.default for name, parameter in parameters.items()}

    @property
    def parameters(self) -> dict[str, Any]:
        """The parameters as they are set now, without those that only concern the machine."""
        everything = self.get_params()
        return {name: value for name, value in everything.items() if name not in self.machine_parameters}

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return all parameters of the constructor. `deep` changes nothing; scikit-learn passes it."""
        names = self.defaults()
        missing = [name for name in names if not hasattr(self, name)]
        if missing:
            rule = f"a class that keeps each parameter as an attribute: its constructor sets no {missing[0]}"
            raise ParameterError("model", rule, type(self).__name__)
        return {name: getattr(self, name) for name in names}

    def set_params(self, **parameters: Any) -> Self:
        """Set parameters, under the rules of the constructor. They take effect with the next `fit`."""
        current = self.get_params()
        for name in parameters:
            if name not in current:
                known = ", ".join(current) or "none"
                raise ParameterError("parameters", f"among those of {type(self).__name__} ({known})", name)
        # All that a constructor sets, which may be more than its parameters; nothing of a fit is in there.
        self.__dict__.update(type(self)(**{**current, **parameters}).__dict__)
        return self

    def unfitted(self) -> Self:
        """Return a new model with the same parameters and nothing learned."""
        return type(self)(**self.get_params())

    @property
    def call(self) -> str:
        """The constructor call, with the parameters that differ from their defaults."""
        usual = self.defaults()
        changed = [f"{name}={value!r}" for name, value in self.get_params().items() if usual[name] != value]
        return f"{type(self).__name__}({', '.join(changed)})"

    def _limit(self, threads: int | None, memory_limit: int | str | None) -> None:
        """Check and set `threads` and `memory_limit`."""
        self.threads = None if threads is None else check_count("threads", threads)
        self.memory_limit = None if memory_limit is None else parse_bytes(memory_limit)

    # ── fitting and scoring ───────────────────────────────────────────────────────────────────────

    @shows_progress
    def fit(
        self,
        data: object,
        *,
        progress: "Progress | bool | None" = None,
        reuse: dict[str, Any] | None = None,
        validation: object = None,
        client: Any = None,
        measured: "Measured | None" = None,
        item_features: object = None,
    ) -> Self:
        """Fit the model. A fit that fails or is interrupted leaves the model as it was.

        Parameters
        ----------
        data
            `Interactions`, anything `read_interactions` reads (a path, a data frame), or a `scipy.sparse`
            matrix of users × items, which is copied.
        progress
            True draws a bar on stderr. A function is called as `progress(stage, done, total)`, with the stage
            in words; the total may change.
        reuse
            A dict, empty at first, in which fits on the same `Interactions` share intermediate results.
        validation
            Two matrices of validation users × items, shown and hidden, for models trained in epochs: the best
            epoch is kept. The users must not be in the training data.
        client
            A `distributed.Client`: its workers do the large parts of the fit of a sparse `MRF`, with the same
            result to the bit.
        measured
            The `measured_` of an earlier fit of an `MRF`: keep these values, and measure nothing.
        item_features
            A table of items and their features, in any form that `read_item_features` reads, or what that
            returns: an `MRF` then also knows items that nobody has used.
        """
        assert not isinstance(progress, bool)
        from mrfrec.io.tables import as_interactions

        if measured is not None and not isinstance(measured, Measured):
            raise ParameterError("measured", "the measured_ of a model, or None", measured)
        if client is not None:
            self.check_client(client)
        interactions = as_interactions(data)
        if item_features is not None:
            interactions = self._with_features(interactions, item_features)
        if reuse is not None and reuse.setdefault("data", interactions) is not interactions:
            raise DataError("reuse holds results of other data: pass the same Interactions to every fit.")
        matrix, size = interactions.matrix, interactions.size
        if size.pairs == 0:
            raise DataError(
                f"the data must have at least one interaction; got {size.users} users × {size.items} items "
                "with none."
            )
        # The memory limit does not include what the caller already holds.
        copied = 0 if isinstance(data, type(interactions)) else sum(
            array.nbytes for array in (matrix.data, matrix.indices, matrix.indptr)
        )  # fmt: skip
        asked = None if validation is None else validation_rows(validation, size.items)
        parameters, before, start = self.parameters, self.timings_, time.perf_counter()
        self._fit(interactions, FitContext(copied, progress, reuse, asked, client, measured))
        if self.timings_ is before:  # a model that counts no stages
            self.timings_, self.memory_plan_ = {"total": time.perf_counter() - start}, {}
        self.fitted_parameters_ = parameters
        self.notes_ = {}
        self._know(interactions)
        return self

    def _know(self, data: "Interactions") -> None:
        """Take ids, titles, histories and features from the training data."""
        self.file_hash_ = ""
        size, features = data.size, data.features if self.uses_features else None
        if features is not None:
            features = replace(features, weight=float(self.used_parameters["feature_weight"]))
        self._catalogue = Catalogue(data.items, data.titles, data.popularity, size.users, features)
        self._training = Training(data.users, Rows.of(data.matrix), data.library, data.origin)
        self._facts = size._asdict()
        if not size.binary:
            self._facts["mean_value"] = float(np.abs(data.matrix.data).mean(dtype=np.float64))
        self._interactions, self._bases = data, {}
        self._rules = rules_of_matrix(size.binary) if data.origin is None else data.origin.rules

    def _with_features(self, data: "Interactions", item_features: object) -> "Interactions":
        from mrfrec.io.features import read_item_features

        if not self.uses_features:
            rule = f"None: {type(self).__name__} learns from interactions alone, and MRF from both"
            raise ParameterError("item_features", rule, type(item_features).__name__)
        if not isinstance(item_features, ItemFeatures):
            item_features = read_item_features(item_features)
        return data.with_features(item_features)

    def score(self, X_history: object) -> npt.NDArray[Any]:
        """Return the score of every item for each row of histories, users × items."""
        histories = matrix_rows(X_history, self.items_, "X_history")
        needed = len(histories) * histories.width * np.dtype(self.score_type).itemsize
        plan = memory_budget(self.memory_limit)
        plan.require("scores", needed, "Score fewer users at a time, or use top_k.", who="score")
        threads = self.threads or usable_threads()
        scores = selection.score(self._scorer(histories), self._base_scores, threads)
        scores[np.diff(histories.ptr) == 0] = self._stranger_scores
        return scores

    def top_k(
        self, X_history: object, k: int, exclude_seen: bool = True, ties: selection.Ties = "index"
    ) -> tuple[npt.NDArray[np.int32], npt.NDArray[Any]]:
        """Return the k best items of each row of histories and their scores, best first, by position.

        Two arrays of users × k. Where a user has fewer than k items left to be recommended, the places at the
        end hold item −1 with score −∞. Of equal scores, the item with the lower index comes first, or the
        more popular one.
        """
        histories = matrix_rows(X_history, self.items_, "X_history")
        k, m = check_count("k", k), histories.width
        if k > m:
            raise ParameterError("k", f"at most the number of items, {m}", k)
        if ties not in ("index", "popularity"):
            raise ParameterError("ties", '"index" or "popularity"', ties)
        hide = histories if check_flag("exclude_seen", exclude_seen) else None
        items, scores, _ = selection.rank(self, histories, k, ties, hide)
        return items, scores

    # ── facts about a model ───────────────────────────────────────────────────────────────────────

    def __repr__(self) -> str:
        if not hasattr(self, "_catalogue"):
            return self.call
        kind = {True: ", sparse", False: ", dense", None: ""}[getattr(self, "is_sparse", None)]
        size = f"{self.data_size_.users:,} users × {self.data_size_.items:,} items"
        changed = "" if self.parameters == self.fitted_parameters_ else ", before parameters were changed"
        values = {} if self.measured_ is None else self.measured_.values
        measured = "".join(f", {name}={value:.3g}" for name, value in values.items())
        return f"{self.call} fitted on {size}{kind}{measured}{changed}"

    def __getstate__(self) -> dict[str, Any]:  # without caches
        kept = {name: value for name, value in self.__dict__.items() if name != "_on_device"}
        return {**kept, "_bases": {}}

    def _check_fitted(self) -> None:
        if not hasattr(self, "_catalogue"):
            raise NotFittedError(f"this {type(self).__name__} is not fitted: call fit first.")

    @property
    def catalogue(self) -> Catalogue:
        """Ids, titles and popularity of the items."""
        self._check_fitted()
        return self._catalogue

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
    def features_(self) -> ItemFeatures | None:
        """Features of the items that the model has learned from; None without."""
        return self.catalogue.features

    @property
    def users_(self) -> Ids | None:
        """Ids of the training users; None in a model saved without histories."""
        return self._trained_on("users_").users if self.has_histories else None

    @property
    def has_histories(self) -> bool:
        """Whether the model has the training users' histories, which a file may leave out."""
        self._check_fitted()
        return self._training is not None

    def _trained_on(self, what: str, advice: str = "Give histories, or save it with") -> Training:
        """Return the training users and their histories; raise that `what` needs them if they are missing."""
        if not self.has_histories:
            raise DataError(
                f"{what} needs the training users' histories, which this model was saved without. {advice} "
                "include_histories=True (--histories at the command line)."
            )
        if not isinstance(self._training, Training):
            assert self._training is not None
            self._training = self._training()
        return self._training

    @property
    def data_size_(self) -> DataSize:
        """Number of users, items and pairs of the training data, and whether it is binary."""
        self._check_fitted()
        return DataSize(*(self._facts[name] for name in DataSize._fields))

    @property
    def usual_value_(self) -> float:
        """The value of an item of a history that is given without one: 1, or the mean size of the values."""
        self._check_fitted()
        return float(self._facts.get("mean_value", 1.0))

    @property
    def fingerprint_(self) -> str:
        """A hash of the training data, taken when it is first asked for."""
        self._check_fitted()
        if "fingerprint" not in self._facts:
            self._facts["fingerprint"] = self._interactions.fingerprint
        return str(self._facts["fingerprint"])

    @property
    def reading_(self) -> dict[str, Any]:
        """The parameters of `read_interactions` with which to read more events, where not the defaults."""
        self._check_fitted()
        return dict(self._rules)

    @property
    def batches_(self) -> tuple[str, ...]:
        """The ids of the batches the model was fitted on, in the order of their arrival."""
        return updating.batches(self)

    @property
    def score_type(self) -> str:
        """The dtype of scores, from the last fit."""
        return str(self.fitted_parameters_.get("dtype", self.dtype))

    @property
    def used_parameters(self) -> dict[str, Any]:
        """The parameters of the last fit, with the numbers that "auto" has stood for."""
        return {**self.fitted_parameters_, **getattr(self, "values_", {})}

    @property
    def fitted_novelty(self) -> float:
        """The novelty that the scores have by the fit."""
        return float(self.used_parameters.get("novelty", 0.0))

    @property
    def column_types(self) -> dict[str, str]:
        """The types of those columns of tables that depend on the model."""
        kind = self.items_.kind
        return {"item": kind, "similar_to": kind, "score": self.score_type}

    @property
    def frames(self) -> str | None:
        """Data frame library of all tables: "polars", "pandas" or "pyarrow"; it may be set, and is not saved.

        None, the default, is the library of the data frame that was asked with or fitted on, else polars.
        """
        return self._frames

    @frames.setter
    def frames(self, library: str | None) -> None:
        self._frames = check_frames(library)

    def _frame(
        self, batches: Iterable[Columns], names: Iterable[str], asked_with: str | None = None, **types: str
    ) -> Any:
        """Return batches of columns as a data frame, to a question from a data frame library or none."""
        from mrfrec.io.frames import frame

        fitted_on = self._training.library if isinstance(self._training, Training) else None
        library = self._frames or asked_with or fitted_on
        return frame(batches, names, {**self.column_types, **types}, library)

    # ── answers ───────────────────────────────────────────────────────────────────────────────────

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
            Instead of `users`, the items that a person has used: ids in any iterable, or a mapping from item
            to value. For several people: a mapping from names to histories, a list of histories, a data frame
            with users and items, read as the training data was, or a `scipy.sparse` matrix. The people need
            not be training users.
        k
            Items for each. There are fewer only where no more exist, with a warning.
        exclude_seen
            Leave out the items of the history.
        allow, exclude
            Recommend only these items; never these. Item ids for everybody, or a mapping from users (as the
            table names them) to item ids, in which None stands for everybody.
        novelty
            γ, in place of the one that the model was fitted with; see `MRF`. Only for models that score by
            weights.
        explain
            How many items of the history to name in a further column `because`, such as "base +0.74, cython3
            +0.01": the base score, unless it is 0, and the items that add most.
        progress
            As in `fit`; it counts users.

        Notes
        -----
        `source` is "model" where some item of the history has a weight for the recommended one. The other
        items have the source "popular" and their base score; equal scores are ranked by popularity, so that
        items that nobody has used come last among them. A history without a known item gets the most popular
        items. The table is of the library that `frames` tells.
        """
        assert not isinstance(progress, bool)
        question = Question(k, exclude_seen, allow, exclude, novelty, explain)
        query = query_of(self, users, history)
        batches = recommending.recommend(self, query, question, progress=progress)
        columns, names, types = recommending.as_table(self, query, question, batches)
        return self._frame(columns, names, query.library, **types)

    def answer(self, users: object = None, *, history: object = None, **options: Any) -> Answer:
        """Recommend, with the options of `recommend`; return rows of plain values and the unknown ids."""
        unknown: list[UnknownIds] = []
        query, question = query_of(self, users, history), Question(**options)
        batches = recommending.recommend(self, query, question, unknown=unknown)
        rows = [row for batch in batches for row in rows_of(self._catalogue.recommendation_columns(batch))]
        return Answer(rows, {each.parameter: each.ids for each in unknown})

    def recommend_to(
        self,
        path: "str | PathLike[str]",
        users: object = None,
        *,
        history: object = None,
        form: Form = None,
        table: str | None = None,
        columns: Mapping[str, str] | None = None,
        client: Any = None,
        progress: "Progress | bool | None" = None,
        **options: Any,
    ) -> int:
        """Write what `recommend` returns to a file or a table of a database; returns the number of rows.

        The name of a file tells its form (.parquet, .csv, .jsonl), or `form` does. The file appears when it
        is whole. A few thousand users at a time are held in memory. A user who is named several times counts
        once, with a warning.

        With the URL of a database (postgresql://, sqlite:///) the rows replace those of `table`, such as
        "recs" or "shop.recs", in one transaction. A missing table is created, with user and rank as its
        primary key; one with other columns is refused. `columns` gives columns other names, in files too:
        {"user": "user_id"}. `options` are those of `recommend`.

        With a `distributed.Client` the workers recommend, and `path` is a new folder: part-00000.parquet and
        so on, with up to 20,000 users each and the same rows in the same order. It appears when it is whole.
        """
        target: WriteOptions = {"form": form, "table": table, "columns": columns}
        if client is None:
            asked = {"history": history, "progress": progress, **target, **options}
            with self.staged_recommendations(path, users, **asked) as rows:
                return rows
        from mrfrec.models.answers.cluster_parts import recommend_in_parts

        for name, value in target.items():
            if value is not None and (name, value) != ("form", "parquet"):
                raise ParameterError(name, "None with a client, which writes Parquet files", value)
        query, question = query_of(self, users, history, once=True), Question(**options)
        with showing(progress) as report:
            return recommend_in_parts(self, query, question, path, client, report)

    @contextmanager
    def staged_recommendations(
        self,
        path: "str | PathLike[str] | Staging",
        users: object = None,
        *,
        history: object = None,
        progress: "Progress | bool | None" = None,
        **options: Any,
    ) -> Iterator[int]:
        """Write as `recommend_to` does, with its options, but let the rows appear when the block ends.

        Yields the number of rows once all of them are written beside the file or the table. If the block
        raises, nothing changes.
        """
        from mrfrec.io.frames import check_target, writing_rows

        target = {name: options.pop(name, None) for name in WriteOptions.__annotations__}
        check_target(path, target["form"], target["table"])
        query, question = query_of(self, users, history, once=True), Question(**options)
        with showing(progress) as report:
            batches = recommending.recommend(self, query, question, progress=report)
            rows = recommending.as_table(self, query, question, batches)
            with writing_rows(*rows, path, **target) as count:
                yield count

    def similar_items(self, item: Id | Iterable[Id], k: int = 10) -> Any:
        """Return the items that go with an item most strongly: a table of item, title, score and rank.

        For several items the table has the k nearest of each, and a first column `similar_to` with the item
        itself. If fewer than k items go with an item, there are fewer rows, with a warning.
        """
        return similar.table(self, item, k)

    def similar_items_to(
        self,
        path: "str | PathLike[str]",
        items: Iterable[Id] | None = None,
        *,
        k: int = 10,
        progress: "Progress | bool | None" = None,
        **target: Unpack[WriteOptions],
    ) -> int:
        """Write the k nearest of items to a file or a table of a database; returns the number of rows.

        The columns are those of `similar_items` of several items, here all items if None; an item that is
        named several times counts once. The other parameters are those of `recommend_to`; the primary key is
        similar_to and rank.
        """
        with self.staged_similar_items(path, items, k=k, progress=progress, **target) as rows:
            return rows

    @contextmanager
    def staged_similar_items(
        self,
        path: "str | PathLike[str] | Staging",
        items: Iterable[Id] | None = None,
        *,
        k: int = 10,
        progress: "Progress | bool | None" = None,
        **target: Unpack[WriteOptions],
    ) -> Iterator[int]:
        """Write as `similar_items_to` does, but let the rows appear when the block ends."""
        from mrfrec.io.frames import check_target, writing_rows

        check_target(path, target.get("form"), target.get("table"))
        with showing(progress) as report:
            batches = similar.neighbor_batches(self, k, items, report, once=True)
            with writing_rows(batches, SIMILAR_COLUMNS, self.column_types, path, **target) as count:
                yield count

    def explain(
        self, item: Id, *, user: Id | None = None, history: object = None, novelty: float | None = None
    ) -> Any:
        """Return what a history adds to the score of one item, the largest contribution first.

        A table of item, title, value, weight and contribution. The contributions sum to the score that
        `recommend` gives. A base score other than 0 is the last row, without an item. A model with features
        has a further column `both`: the features that the items have in common, where they carry the weight.
        """
        found, base = explaining.explanation(self, item, user=user, history=history, novelty=novelty)
        columns = self.catalogue.reason_columns(self.catalogue.position(item), found, base)
        return self._frame([columns], columns)

    def search(self, text: str, k: int = 10) -> Any:
        """Find items by id or title: a table of item, title and users, the best match first.

        Capitals, accents and punctuation do not count. The first search builds an index.
        """
        if not isinstance(text, str):
            raise ParameterError("text", "a string", text)
        return self._frame([self.catalogue.search_columns(text, check_count("k", k))], SEARCH_COLUMNS)

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

        A file that this model was loaded from or saved to is replaced only if it is still the same: otherwise
        the work of another process would be lost. `mrfrec.locked` keeps others from changing it meanwhile.

        Parameters
        ----------
        path
            The file. A link stays, and its target is replaced.
        include_histories
            Also write the training users and their histories. Recommending by user id and updating need them.
        notes
            A mapping that JSON can hold: `notes_` of the loaded model.
        mode
            Who may read and write the file, such as 0o640. By default a file that is replaced keeps its mode,
            and a new one gets the usual one; a file that has histories for the first time gets 0o600.
        replace_changed
            Also replace a file that another process has written since.
        """
        files.save(self, path, include_histories, notes, mode, replace_changed)

    def verify(self) -> None:
        """Check all arrays of a loaded model now; a damaged one raises a `ModelFileError`."""
        files.verify(self)

    @shows_progress
    def update(
        self,
        new_events: object,
        *,
        batch: str | None = None,
        again: bool = False,
        measure_again: bool = False,
        item_features: object = None,
        progress: "Progress | bool | None" = None,
    ) -> Self:
        """Add a batch of events to the training data, and fit again with the same parameters.

        Gives the same model, to the bit, as a fit with these parameters on all events at once; values that
        the first fit has measured are among them. A loaded model must have been saved
        with `include_histories=True`. Data that was read with `half_life`, `max_history`, `min_users` or
        `min_items`, or with values and `window`, may take no more events: see the guide.

        Parameters
        ----------
        new_events
            Anything `read_interactions` reads, which is read as the first data was (see `reading_`); or
            `Interactions`. Users and items may be new.
        batch
            Name of the batch, such as "2026-11-16". A batch that was added before is refused. By default a
            hash of its ids, pairs and values.
        again
            Add the batch even if one of that name was added before.
        measure_again
            Measure the values anew that are "auto".
        item_features
            A table of features in place of the one of the fit, which is kept otherwise; items of that one
            which nobody has used are forgotten.
        progress
            As in `fit`.
        """
        assert not isinstance(progress, bool)
        updating.update(self, new_events, batch, again, measure_again, item_features, progress)
        return self

    @shows_progress
    def forget(self, users: object, *, progress: "Progress | bool | None" = None) -> Self:
        """Remove users and all that is known of them, and fit again with the same parameters.

        Gives the same model as a fit on the events of the other users, without items that only the removed
        users had. Save the model afterwards: earlier copies still hold the users. A warning counts users who
        are not in the data. Data read with `window` or `half_life` needs a fixed `now`.

        Parameters
        ----------
        users
            Ids of training users: one, or several in any iterable.
        progress
            As in `fit`.
        """
        assert not isinstance(progress, bool)
        updating.forget(self, users, progress)
        return self
