"""What every model shares: ids in, histories → scores → the k best → a table; save and load.

A model says how to learn from a matrix, how to rank, and what an item owes to a history; the rest is here.
"""

import inspect
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from os import PathLike
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, Self, TypedDict, Unpack

import numpy as np
import numpy.typing as npt

from mrfrec.checks import check_count, check_flag, warn
from mrfrec.core.sparse import Rows
from mrfrec.data.catalogue import Catalogue, Recommendations, Training
from mrfrec.data.ids import Id, Ids, Texts
from mrfrec.errors import DataError, NotFittedError, ParameterError
from mrfrec.models.axes import Axis
from mrfrec.models.explaining import Explaining
from mrfrec.models.histories import Query, of_histories, of_users, positions, validation_of

if TYPE_CHECKING:
    from mrfrec.core.resources import Progress
    from mrfrec.data.interactions import Interactions
    from mrfrec.io.artifact import Stored

__all__ = ["FitContext", "Recommender"]


class Options(TypedDict, total=False):
    """What `Recommender.recommend` takes besides users, histories and k."""

    exclude_seen: bool
    allow: Iterable[Id] | None
    exclude: Iterable[Id] | None
    explain: int
    progress: "Progress | None"


class FitContext(NamedTuple):
    """What comes with the data of a fit."""

    copied: int  # bytes of the matrix that are not the caller's
    progress: "Progress | None"
    reuse: dict[str, Any] | None
    validation: tuple[Rows, Rows] | None  # what some people show, and what is to be guessed of them


class Recommender(Explaining):
    """A model of which items go together, with the ids of what it was trained on.

    The parameters of a model are those of its constructor, kept as attributes of the same names. Changing one
    takes effect with the next `fit`; until then answers and `save` use `fitted_parameters_`.
    """

    # What a class says of itself. A grid lists the values `tune` tries, the last parameter varying fastest;
    # a search goes between these values, unless `search_space` says otherwise.
    tuning_grid: ClassVar[Mapping[str, Axis]] = {}
    search_space: ClassVar[Mapping[str, Axis]] = {}
    extra: ClassVar[str | None] = None  # the extra of the package that fitting needs
    # Parameters that change no result.
    _machine_parameters: ClassVar[tuple[str, ...]] = ("threads", "memory_limit")
    threads: int | None = None
    memory_limit: int | None = None
    timings_: dict[
        str, float
    ]  # seconds of the stages of a fit, and "total"; empty in a model that was loaded
    dtype: Literal["float32", "float64"] = "float32"  # of scores
    fitted_parameters_: dict[str, Any]  # `parameters` at the time of the fit
    _catalogue: Catalogue
    _training: "Training | Callable[[], Training] | None" = None
    _facts: dict[str, Any]  # about the training data
    _interactions: "Interactions"

    # ── what a model does itself ──────────────────────────────────────────────────────────────────

    @abstractmethod
    def _fit(self, data: "Interactions", given: FitContext) -> None:
        """Learn from a matrix; only when all is done, change the model."""

    @abstractmethod
    def _scores(self, histories: Rows) -> npt.NDArray[Any]:
        """Users × items."""

    @abstractmethod
    def _best(
        self,
        histories: Rows,
        k: int,
        *,
        exclude_seen: bool,
        order: npt.NDArray[np.int32],
    ) -> tuple[npt.NDArray[np.int32], npt.NDArray[Any]]:
        """Items and scores; of equal scores, the item with the lower `order` first."""

    @abstractmethod
    def _rank(
        self, histories: Rows, k: int, *, exclude_seen: bool, hidden: npt.NDArray[np.bool_] | None
    ) -> tuple[npt.NDArray[np.int32], npt.NDArray[Any], npt.NDArray[np.bool_]]:
        """Items, scores, and whether the history says anything about the item; ties by popularity."""

    @abstractmethod
    def _state(self) -> tuple[dict[str, npt.NDArray[Any]], dict[str, Any]]:
        """Arrays and facts to be saved."""

    @abstractmethod
    def _restore(self, arrays: "Mapping[str, Stored]", facts: Mapping[str, Any], m: int) -> None:
        """The inverse of `_state`, for m items."""

    # ── fitting ───────────────────────────────────────────────────────────────────────────────────

    def fit(
        self,
        data: object,
        *,
        progress: "Progress | None" = None,
        reuse: dict[str, Any] | None = None,
        validation: object = None,
    ) -> Self:
        """Learn from who-used-what.

        `data` is anything `read_interactions` reads with its defaults (a path, a data frame), or
        `Interactions`, or a `scipy.sparse` matrix of users × items, whose values count as they are.
        `progress(stage, done, total)` is called as the work goes on. A fit that fails or is interrupted
        leaves the model as it was.

        `reuse`, an empty dictionary at first, keeps what fits to the same `Interactions` with other
        parameters have in common: with a new l2, only the systems are solved anew.

        `validation` is for models that are trained step by step, to stop when they are best: people who are
        not among the users, as two matrices of people × items, what they show and what is to be guessed of
        them. The other models do not look at it.
        """
        from mrfrec.io.tables import as_interactions

        if progress is not None and not callable(progress):
            raise ParameterError("progress", "a function of (stage, done, total), or None", progress)
        if reuse is not None and not isinstance(reuse, dict):
            raise ParameterError("reuse", "a dictionary, empty at first, or None", reuse)
        interactions = as_interactions(data)
        if reuse is not None and reuse.setdefault("data", interactions) is not interactions:
            raise DataError(
                "reuse holds what is known of other data: begin with an empty dictionary. To share it, give "
                "the same Interactions to every fit, as mrfrec.read_interactions makes them."
            )
        n, m, pairs = interactions.n_users, interactions.n_items, len(interactions)
        if pairs == 0:
            raise DataError(
                f"the data must have at least one interaction; got {n} users × {m} items with none."
            )
        matrix = interactions.matrix
        # What the caller holds already is not counted against the memory limit.
        given = getattr(data, "data", None) if getattr(data, "format", "") == "csr" else None
        held = data is interactions or (given is not None and np.shares_memory(matrix.data, given))
        copied = 0 if held else matrix.data.nbytes + matrix.indices.nbytes + matrix.indptr.nbytes
        catalogue = Catalogue(interactions.items, interactions.titles, interactions.popularity, n)
        training = Training(interactions.users, Rows.of(matrix), interactions.library)
        facts = {"users": n, "items": m, "pairs": pairs, "binary": bool((matrix.data == 1).all())}
        questions = None if validation is None else validation_of(validation, m)
        parameters = self.parameters
        self._fit(interactions, FitContext(copied, progress, reuse, questions))
        self.fitted_parameters_ = parameters
        self._catalogue, self._training, self._facts = catalogue, training, facts
        self._interactions = interactions
        return self

    def check_ready(self) -> None:
        """Refuse, before anything takes long, what cannot be fitted here for want of a library or device."""
        return

    def warm_up(self) -> None:
        """Compile or load what fitting needs, so that it is no part of a fit that is timed."""
        return

    def _limit(self, threads: int | None, memory_limit: int | str | None) -> None:
        """Check and keep what a model may use."""
        from mrfrec.core.resources import parse_bytes

        self.threads = None if threads is None else check_count("threads", threads)
        self.memory_limit = None if memory_limit is None else parse_bytes(memory_limit)

    @property
    def parameters(self) -> dict[str, Any]:
        """The parameters as they are set now, without those that only concern the machine."""
        return {
            name: value for name, value in self._parameters().items() if name not in self._machine_parameters
        }

    @classmethod
    def defaults(cls) -> dict[str, Any]:
        """Return the constructor's parameters and their defaults, `inspect.Parameter.empty` if required."""
        parameters = inspect.signature(cls).parameters
        for parameter in parameters.values():
            if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
                raise ParameterError(
                    "model",
                    "a class whose constructor takes every parameter by name",
                    cls.__name__,
                    f"Replace {str(parameter).split(':')[0]!r} with named parameters.",
                )
        return {name: parameter.default for name, parameter in parameters.items()}

    def _parameters(self) -> dict[str, Any]:
        missing = [name for name in self.defaults() if not hasattr(self, name)]
        if missing:
            raise ParameterError(
                "model",
                "a class that keeps each parameter as an attribute of the same name",
                type(self).__name__,
                f"Its constructor must set self.{missing[0]}.",
            )
        return {name: getattr(self, name) for name in self.defaults()}

    def __repr__(self) -> str:
        usual = self.defaults()
        shown = [f"{name}={value!r}" for name, value in self._parameters().items() if usual[name] != value]
        return f"{type(self).__name__}({', '.join(shown)})"

    @property
    def _training_facts(self) -> dict[str, Any]:
        """About the training data: users, items, pairs, and whether each of these counts 1."""
        self._fitted()
        return {name: self._facts[name] for name in ("users", "items", "pairs", "binary")}

    @property
    def catalogue(self) -> Catalogue:
        """Ids, titles and popularity of the items together."""
        return self._fitted()

    @property
    def items_(self) -> Ids:
        """The ids of the items, in the order of the model's columns."""
        return self._fitted().items

    @property
    def titles_(self) -> Texts | None:
        """A title for each item, "" where there is none; None if there are none at all."""
        return self._fitted().titles

    @property
    def popularity_(self) -> npt.NDArray[np.int64]:
        """Training users of each item."""
        return self._fitted().popularity

    @property
    def users_(self) -> Ids | None:
        """The ids of the training users; None in a model saved without histories."""
        self._fitted()
        return None if self._training is None else self._trained_on("users_").users

    @property
    def _score_type(self) -> str:
        """The dtype of scores, that of the last fit."""
        return str(self.fitted_parameters_.get("dtype", "float32"))

    def _fitted(self) -> Catalogue:
        if not hasattr(self, "_catalogue"):
            raise NotFittedError(f"this {type(self).__name__} has learned nothing yet: call fit first.")
        return self._catalogue

    def _trained_on(self, what: str) -> Training:
        self._fitted()
        if callable(self._training):
            self._training = self._training()
        if self._training is None:
            raise DataError(
                f"{what} needs the training users' histories, which this model was saved without. Give "
                "histories, or save it with include_histories=True (--histories at the command line)."
            )
        return self._training

    # ── recommending ──────────────────────────────────────────────────────────────────────────────

    def score(self, X_history: object) -> npt.NDArray[Any]:
        """What every item scores for each row of histories: an array of users × items.

        It is as large as that: for rankings of many users use `top_k`, which never holds it.
        """
        from mrfrec.core.resources import MemoryPlan

        histories = self._histories(X_history)
        needed = len(histories) * histories.width * np.dtype(self._score_type).itemsize
        plan = MemoryPlan(self.memory_limit)
        plan.require("scores", needed, "Score fewer users at a time, or use top_k.", who="score")
        return self._scores(histories)

    def top_k(
        self,
        X_history: object,
        k: int,
        exclude_seen: bool = True,
        ties: Literal["index", "popularity"] = "index",
    ) -> tuple[npt.NDArray[np.int32], npt.NDArray[Any]]:
        """The k best items of each row of histories and their scores, best first, by position.

        Returns two arrays of users × k. Where a user has fewer than k items left to be recommended, the
        places at the end hold item −1 with score −∞. Of equal scores, the item with the lower index comes
        first, or the more popular one.
        """
        histories = self._histories(X_history)
        k, m = check_count("k", k), histories.width
        if k > m:
            raise ParameterError("k", f"at most the number of items, {m}", k)
        check_flag("exclude_seen", exclude_seen)
        if ties not in ("index", "popularity"):
            raise ParameterError("ties", '"index" or "popularity"', ties)
        order = self._catalogue.by_popularity if ties == "popularity" else np.arange(m, dtype=np.int32)
        return self._best(histories, k, exclude_seen=exclude_seen, order=order)

    def _histories(self, X: object) -> Rows:
        from mrfrec.data.interactions import as_histories

        m = len(self._fitted().items)
        histories = as_histories(X, "X_history")
        if histories.shape[1] != m:
            raise DataError(
                f"X_history must have the {m} items the model was fitted on, as columns in the same order; "
                f"got {histories.shape[1]}."
            )
        return Rows.of(histories)

    def recommend(
        self,
        users: object = None,
        *,
        history: object = None,
        k: int = 10,
        exclude_seen: bool = True,
        allow: Iterable[Id] | None = None,
        exclude: Iterable[Id] | None = None,
        explain: int = 0,
        progress: "Progress | None" = None,
    ) -> Any:
        """The k best items of each user, as a table of user, item, title, score, rank and source.

        Parameters
        ----------
        users
            Ids of training users: one, or several in any sequence. All of them if neither users nor
            histories are given.
        history
            Instead of `users`, what somebody has used: item ids; or a mapping from item to value; or, for
            several people, a mapping from each one's name to such a history, a list of histories, a data
            frame with users and items, or a `scipy.sparse` matrix. Nobody has to be known from training.
        k
            Items for each. There are fewer only where no more exist, with a warning.
        exclude_seen
            Leave out what the history holds.
        allow, exclude
            Recommend only these items; never these.
        explain
            How many reasons to give in a further column `because`: the items of the history that speak
            most for the recommendation.
        progress
            Called as `progress("recommend", users done, users)`.

        Notes
        -----
        A history that says nothing about an item leaves it at its base score; such items come in the order
        of their popularity and are marked `source="popular"`, the others `"model"`. So somebody without a
        known item in their history gets the most popular items.

        The table is of the library of the data frame that was given (here, or to `fit`), else of polars.
        """
        from mrfrec.io.frames import ResultTable

        asked = self._query(users, history)
        pieces = self._batches(
            asked, k, exclude_seen=exclude_seen, allow=allow, exclude=exclude,
            explain=explain, progress=progress,
        )  # fmt: skip
        table = ResultTable(self._catalogue, asked.names, bool(explain), self._score_type)
        return table.frame(pieces, asked.library or self._library)

    def recommend_to(
        self,
        path: "str | PathLike[str]",
        users: object = None,
        *,
        history: object = None,
        k: int = 10,
        form: Literal["parquet", "csv", "jsonl"] | None = None,
        **options: "Unpack[Options]",
    ) -> int:
        """`recommend`, with its options, into a Parquet, CSV or JSON lines file; returns the number of rows.

        The name of the file tells its form, or `form` does. A few thousand users at a time are held in
        memory. The file appears when it is whole.
        """
        asked = self._query(users, history)
        pieces = self._batches(asked, k, **options)
        return self._write(pieces, asked, path, form, explain=bool(options.get("explain")))

    def _write(
        self,
        pieces: Iterator[Recommendations],
        asked: Query,
        path: "str | PathLike[str]",
        form: str | None = None,
        *,
        explain: bool = False,
    ) -> int:
        """What `ranked` gives into a file; returns the number of rows."""
        from mrfrec.io.frames import ResultTable

        return ResultTable(self._catalogue, asked.names, explain, self._score_type).write(pieces, path, form)

    def _batches(
        self,
        asked: Query,
        k: int,
        *,
        exclude_seen: bool = True,
        allow: Iterable[Id] | None = None,
        exclude: Iterable[Id] | None = None,
        explain: int = 0,
        progress: "Progress | None" = None,
    ) -> Iterator[Recommendations]:
        """Recommendations as arrays, a few users at a time: what tables and files are made of."""
        catalogue = self._fitted()
        k = check_count("k", k)
        check_flag("exclude_seen", exclude_seen)
        explain = check_count("explain", explain, least=0)
        if explain:
            self._check_explains()
        hidden = self._hidden(allow, exclude)
        return self._ranked(asked, k, min(k, len(catalogue.items)), exclude_seen, hidden, explain, progress)

    def _ranked(
        self,
        asked: Query,
        k: int,
        places: int,
        exclude_seen: bool,
        hidden: npt.NDArray[np.bool_] | None,
        explain: int,
        progress: "Progress | None",
    ) -> Iterator[Recommendations]:
        short = done = 0
        for names, histories in asked.pieces():
            items, scores, informed = self._rank(histories, places, exclude_seen=exclude_seen, hidden=hidden)
            short += int((items < 0).any(axis=1).sum()) if places == k else len(names)
            because = self._reasons(histories, items, explain) if explain else None
            yield Recommendations(names, items, scores, informed, because)
            done += len(names)
            if progress is not None:
                progress("recommend", done, len(asked))
        if short:
            warn(
                f"{short:,} of {len(asked):,} users get fewer than k={k} items: no more are left that they "
                "have not seen and that are not excluded."
            )

    def _hidden(
        self, allow: Iterable[Id] | None, exclude: Iterable[Id] | None
    ) -> npt.NDArray[np.bool_] | None:
        if allow is None and exclude is None:
            return None
        hidden = np.full(len(self.items_), allow is not None)
        for name, ids, value in (("allow", allow, False), ("exclude", exclude, True)):
            if ids is not None:
                found = positions(ids, self.items_, name)
                hidden[found[found >= 0]] = value
        return hidden

    def _query(self, users: object = None, history: object = None) -> Query:
        """The users or histories that recommendations are asked for, in the forms `recommend` takes."""
        self._fitted()
        if users is not None and history is not None:
            raise ParameterError(
                "history", "None when users are given", history, "One of them says for whom."
            )
        if history is None:
            return of_users(users, self._trained_on("recommending by user id"))
        return of_histories(history, self.items_, bool(self._facts["binary"]))

    @property
    def _library(self) -> str | None:
        """The library of the data frame the model was fitted on."""
        return self._training.library if isinstance(self._training, Training) else None

    # ── on disk ───────────────────────────────────────────────────────────────────────────────────

    def save(self, path: "str | PathLike[str]", *, include_histories: bool = False) -> None:
        """Write the model to one file; `mrfrec.load` reads it back.

        With `include_histories` the training users and what they had go in as well, which recommending by
        user id needs. The file appears when it is whole; one that was there stays until then. The parameters
        saved are those of the last fit, even if attributes have been changed since.
        """
        from mrfrec import __version__
        from mrfrec.io.artifact import write_file
        from mrfrec.models.stored import catalogue_arrays, training_arrays

        catalogue = self._fitted()
        check_flag("include_histories", include_histories)
        arrays, state = self._state()
        arrays |= catalogue_arrays(catalogue)
        if include_histories:
            arrays |= training_arrays(self._trained_on("include_histories=True"))
        facts = {
            "model": type(self).__name__,
            "written_by": __version__,
            "parameters": self.fitted_parameters_,
            "data": self._data_facts(),
            "state": state,
            "histories": include_histories,
        }
        write_file(path, arrays, facts)

    def _data_facts(self) -> dict[str, Any]:
        """About the training data; its fingerprint is taken when it is first asked for."""
        if "fingerprint" not in self._facts:
            self._facts["fingerprint"] = self._interactions.fingerprint
        return self._facts
