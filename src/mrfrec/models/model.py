"""What a model learns and how it ranks: fit, scores, the k best items by position, save."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from html import escape
from os import PathLike
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from mrfrec.checks import check_count, check_flag, check_frames
from mrfrec.core.progress import shows_progress
from mrfrec.core.sparse import Rows
from mrfrec.data.catalogue import Catalogue, Training
from mrfrec.data.ids import Ids, Texts
from mrfrec.data.origin import Origin
from mrfrec.engines.machine import usable_threads
from mrfrec.errors import DataError, NotFittedError, ParameterError
from mrfrec.models import ranking, scorers
from mrfrec.models.axes import Axis, Route
from mrfrec.models.configurable import Configurable
from mrfrec.models.histories import validation_of

if TYPE_CHECKING:
    from mrfrec.core.engine import Progress
    from mrfrec.core.plan import Plan
    from mrfrec.data.interactions import DataSize, Interactions
    from mrfrec.io.artifact import Stored

Ties = Literal["index", "popularity"]


class FitContext(NamedTuple):
    """The arguments of a fit besides its data."""

    copied: int  # bytes of the matrix, unless the caller holds it
    progress: "Progress | None"
    reuse: dict[str, Any] | None
    validation: tuple[Rows, Rows] | None  # shown and hidden items of validation users
    client: Any = None  # of a cluster
    shared_path: "str | PathLike[str] | None" = None  # that its workers see


class Model(Configurable, ABC):
    """Base class of all models: fitting, scores by position, saving. `Recommender` adds ids.

    A subclass implements `_fit`, `_scorer`, `_base_scores`, `_state` and `_restore`. The parameters of a
    model are those of its constructor, stored as attributes of the same names. Changing one takes effect with
    the next `fit`; until then answers and `save` use `fitted_parameters_`. Several threads may use a fitted
    model.
    """

    # The values that `tune` tries, the last parameter varying fastest. A search uses the ranges between them,
    # unless `search_space` overrides them.
    tuning_grid: ClassVar[Mapping[str, Axis]] = {}
    search_space: ClassVar[Mapping[str, Axis]] = {}
    added_parameters: ClassVar[Mapping[str, Any]] = {}  # what files without these parameters stand for
    scales_scores: ClassVar[bool] = False  # whether a score may be multiplied, as `novelty` does
    extra: ClassVar[str | None] = None  # optional dependency group that fitting needs
    threads: int | None = None
    memory_limit: int | None = None
    timings_: dict[str, float]  # seconds of each stage of a fit, and "total"; empty in a loaded model
    dtype: Literal["float32", "float64"] = "float32"  # of scores
    memory_plan_: dict[str, int]  # planned bytes of each stage of a fit; empty in a loaded model
    fitted_parameters_: dict[str, Any]  # `parameters` at the time of the fit
    _catalogue: Catalogue
    _training: "Training | Callable[[], Training] | None" = None
    _facts: dict[str, Any]  # about the training data
    notes_: dict[str, Any]  # of a loaded model: what was said when it was saved
    _frames: str | None = None
    _seal: str = ""  # of the file a model was loaded from: a hash of all that is in it
    _interactions: "Interactions"
    _bases: dict[tuple[Ties, bool, float], ranking.Base]  # built when first needed

    # ── what a model does itself ──────────────────────────────────────────────────────────────────

    @abstractmethod
    def _fit(self, data: "Interactions", given: FitContext) -> None:
        """Learn from a matrix; change the model only at the end, when nothing can fail."""

    @abstractmethod
    def _scorer(self, histories: Rows) -> scorers.Scorer:
        """Return the scorer of these histories."""

    @property
    @abstractmethod
    def _base_scores(self) -> npt.NDArray[Any]:
        """The score of each item without any contribution of a history."""

    @property
    def _stranger_scores(self) -> npt.NDArray[Any]:
        """The score of each item for a user without a history."""
        return self._base_scores

    @abstractmethod
    def _state(self) -> tuple[dict[str, npt.NDArray[Any]], dict[str, Any]]:
        """Return the arrays and facts to save."""

    @abstractmethod
    def _restore(self, arrays: "Mapping[str, Stored]", facts: Mapping[str, Any], m: int) -> None:
        """Restore what `_state` returned, for m items."""

    # ── fitting ───────────────────────────────────────────────────────────────────────────────────

    @shows_progress
    def fit(
        self,
        data: object,
        *,
        progress: "Progress | bool | None" = None,
        reuse: dict[str, Any] | None = None,
        validation: object = None,
        client: Any = None,
        shared_path: "str | PathLike[str] | None" = None,
    ) -> Self:
        """Fit the model. A fit that fails or is interrupted leaves the model as it was.

        Parameters
        ----------
        data
            `Interactions`, anything `read_interactions` reads with its defaults (a path, a data frame), or a
            `scipy.sparse` matrix of users × items, whose values are used. The matrix is copied.
        progress
            True draws a bar on stderr, with the time left. A function is called as `progress(stage, done,
            total)`: what is being done, in words, and how much of the whole fit is done, in units that take
            about the same time each. The total may change when the fit learns how much there is to do.
        reuse
            A dict, empty at first, in which fits on the same `Interactions` share intermediate results: for a
            new l2, only the systems are solved again.
        validation
            Two matrices of validation users × items, shown and hidden, for models trained in epochs: the best
            epoch is kept. The users must not be in the training data. Other models ignore it.
        client
            A `distributed.Client`: its workers do the large parts of the fit of a sparse `MRF`, with the same
            result to the bit.
        shared_path
            A folder that this machine and all workers see, for the data; without it, the data is sent.
        """
        assert not isinstance(progress, bool)
        from mrfrec.io.tables import as_interactions

        if reuse is not None and not isinstance(reuse, dict):
            raise ParameterError("reuse", "a dictionary, empty at first, or None", reuse)
        if client is not None:
            self._check_client(client)
        elif shared_path is not None:
            raise ParameterError("shared_path", "None without a client", shared_path)
        interactions = as_interactions(data)
        if reuse is not None and reuse.setdefault("data", interactions) is not interactions:
            raise DataError(
                "reuse holds results of other data. Start with an empty dict; to share it, pass the same "
                "Interactions, as mrfrec.read_interactions returns them, to every fit."
            )
        n, m, pairs = interactions.n_users, interactions.n_items, len(interactions)
        if pairs == 0:
            raise DataError(
                f"the data must have at least one interaction; got {n} users × {m} items with none."
            )
        matrix = interactions.matrix
        # The memory limit does not include what the caller already holds.
        copied = (
            0 if data is interactions else matrix.data.nbytes + matrix.indices.nbytes + matrix.indptr.nbytes
        )
        catalogue = Catalogue(interactions.items, interactions.titles, interactions.popularity, n)
        training = Training(interactions.users, Rows.of(matrix), interactions.library, interactions.origin)
        facts: dict[str, Any] = interactions.size._asdict()
        if not facts["binary"]:
            facts["mean_value"] = float(np.abs(matrix.data).mean(dtype=np.float64))
        questions = None if validation is None else validation_of(validation, m)
        parameters = self.parameters
        self._fit(interactions, FitContext(copied, progress, reuse, questions, client, shared_path))
        self.fitted_parameters_ = parameters
        self._catalogue, self._training, self._facts = catalogue, training, facts
        self._interactions, self._bases, self.notes_ = interactions, {}, {}
        return self

    def _check_client(self, client: object) -> None:
        """Refuse to fit on a cluster; a subclass that can overrides this."""
        rule = f"None: {type(self).__name__} is fitted on this machine"
        raise ParameterError("client", rule, client)

    def tuning_route(self, data: "Interactions") -> Route:
        """Return how `climb` finds the parameters for this data: the last of the grid costs least."""
        return Route({name: self.tuning_grid[name] for name in reversed(list(self.tuning_grid))})

    def planned_for(self, size: "DataSize") -> "Plan | None":
        """Return what a fit to data of this size would do; None if there is nothing to decide."""
        return None

    def check_ready(self) -> None:
        """Raise if a library or device that fitting needs is missing."""
        return

    def prepare_answers(self) -> None:
        """Get ready to answer many questions of one user each: check all arrays, load what is needed."""
        self.verify()

    def warm_up(self) -> None:
        """Compile or load what fitting needs, for example before timing a fit."""
        return

    def _limit(self, threads: int | None, memory_limit: int | str | None) -> None:
        """Check and set `threads` and `memory_limit`."""
        from mrfrec.engines.machine import parse_bytes

        self.threads = None if threads is None else check_count("threads", threads)
        self.memory_limit = None if memory_limit is None else parse_bytes(memory_limit)

    # ── what is known of a model ──────────────────────────────────────────────────────────────────

    def __repr__(self) -> str:
        if not hasattr(self, "_catalogue"):
            return self._call
        kind = {True: ", sparse", False: ", dense", None: ""}[getattr(self, "is_sparse", None)]
        size = f"{self._facts['users']:,} users × {self._facts['items']:,} items"
        changed = "" if self.parameters == self.fitted_parameters_ else ", before parameters were changed"
        return f"{self._call} fitted on {size}{kind}{changed}"

    def _repr_html_(self) -> str:
        call, _, fitted = repr(self).partition(" fitted on ")
        return f"<code>{escape(call)}</code> {escape(f'fitted on {fitted}' if fitted else 'not fitted')}"

    def __getstate__(self) -> dict[str, Any]:  # without caches
        return {name: value for name, value in self.__dict__.items() if name not in ("_bases", "_on_device")}

    @property
    def _training_facts(self) -> dict[str, Any]:
        """Number of users, items and pairs of the training data, and whether it is binary."""
        self._fitted()
        return {name: self._facts[name] for name in ("users", "items", "pairs", "binary")}

    @property
    def catalogue(self) -> Catalogue:
        """Ids, titles and popularity of the items."""
        return self._fitted()

    @property
    def items_(self) -> Ids:
        """Ids of the items, in the order of the model's columns."""
        return self._fitted().items

    @property
    def titles_(self) -> Texts | None:
        """Titles of the items, "" if an item has none; None if no item has one."""
        return self._fitted().titles

    @property
    def popularity_(self) -> npt.NDArray[np.int64]:
        """Number of training users of each item."""
        return self._fitted().popularity

    @property
    def users_(self) -> Ids | None:
        """Ids of the training users; None in a model saved without histories."""
        self._fitted()
        return None if self._training is None else self._trained_on("users_").users

    @property
    def _score_type(self) -> str:
        """The dtype of scores, from the last fit."""
        return str(self.fitted_parameters_.get("dtype", self.dtype))

    @property
    def frames(self) -> str | None:
        """Data frame library of all tables: "polars", "pandas" or "pyarrow".

        None, the default, stands for the library of the data frame that was asked with or fitted on, and for
        polars if there is none. It may be set at any time, and is not saved.
        """
        return self._frames

    @frames.setter
    def frames(self, library: str | None) -> None:
        self._frames = check_frames(library)

    def _library(self, asked_with: str | None = None) -> str | None:
        fitted_on = self._training.library if isinstance(self._training, Training) else None
        return self._frames or asked_with or fitted_on

    def _fitted(self) -> Catalogue:
        if not hasattr(self, "_catalogue"):
            raise NotFittedError(f"this {type(self).__name__} is not fitted: call fit first.")
        return self._catalogue

    def _trained_on(self, what: str, advice: str = "Give histories, or save it with") -> Training:
        self._fitted()
        training = self._training
        if callable(training):
            training = self._training = training()
        if training is None:
            raise DataError(
                f"{what} needs the training users' histories, which this model was saved without. {advice} "
                "include_histories=True (--histories at the command line)."
            )
        return training

    # ── ranking ───────────────────────────────────────────────────────────────────────────────────

    def score(self, X_history: object) -> npt.NDArray[Any]:
        """Return the score of every item for each row of histories, users × items.

        For rankings of many users use `top_k`, which never holds such an array.
        """
        from mrfrec.engines.machine import memory_budget

        histories = self._histories(X_history)
        needed = len(histories) * histories.width * np.dtype(self._score_type).itemsize
        plan = memory_budget(self.memory_limit)
        plan.require("scores", needed, "Score fewer users at a time, or use top_k.", who="score")
        scores = ranking.score(self._scorer(histories), self._base_scores, self.threads or usable_threads())
        scores[np.diff(histories.ptr) == 0] = self._stranger_scores
        return scores

    def top_k(
        self, X_history: object, k: int, exclude_seen: bool = True, ties: Ties = "index"
    ) -> tuple[npt.NDArray[np.int32], npt.NDArray[Any]]:
        """Return the k best items of each row of histories and their scores, best first, by position.

        Two arrays of users × k. Where a user has fewer than k items left to be recommended, the places at the
        end hold item −1 with score −∞. Of equal scores, the item with the lower index comes first, or the
        more popular one.
        """
        histories = self._histories(X_history)
        k, m = check_count("k", k), histories.width
        if k > m:
            raise ParameterError("k", f"at most the number of items, {m}", k)
        check_flag("exclude_seen", exclude_seen)
        if ties not in ("index", "popularity"):
            raise ParameterError("ties", '"index" or "popularity"', ties)
        items, scores, _ = self._rank(histories, k, ties, histories if exclude_seen else None)
        return items, scores

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

    def _rank(
        self,
        histories: Rows,
        k: int,
        ties: Ties = "popularity",
        hide: Rows | None = None,
        hidden: npt.NDArray[np.bool_] | None = None,
        allowed: Mapping[int, npt.NDArray[Any]] | None = None,
        more_novelty: float = 0.0,
    ) -> tuple[npt.NDArray[np.int32], npt.NDArray[Any], npt.NDArray[np.bool_]]:
        """Return items, scores and whether there is evidence for each: users × k, best first.

        `hide` are the items hidden from each user, `hidden` from all; `allowed`, the only ones for some.
        `more_novelty` is added to the novelty that the model was fitted with.
        """
        n, m = len(histories), histories.width
        strangers = np.diff(histories.ptr) == 0
        items, scores = np.empty((n, k), np.int32), np.empty((n, k), self._base_scores.dtype)
        evidence = np.empty((n, k), bool)
        for stranger in (False, True):
            rows = np.flatnonzero(strangers == stranger)
            if not len(rows):
                continue
            base = self._base(ties, stranger, more_novelty)
            some = histories if len(rows) == n else histories.take(rows)
            if stranger:  # nothing is known, so nothing adds to the base score
                scorer: scorers.Scorer = scorers.WeightScorer(some, Rows.empty(m, m), base.scores.dtype)
            else:
                scorer = self._scorer(some)
                if base.factor is not None:
                    scorer = scorers.ScaledScorer(scorer, self._base_scores, base.factor)
            found = ranking.top_k(
                scorer, k, base if hidden is None else base.without(hidden),
                hidden=hide if hide is None or len(rows) == n else hide.take(rows),
                allowed={i: allowed[row] for i, row in enumerate(rows.tolist()) if row in allowed}
                if allowed else None,
                threads=self.threads or usable_threads(),
            )  # fmt: skip
            if len(rows) == n:
                return found
            items[rows], scores[rows], evidence[rows] = found
        return items, scores, evidence

    def _base(self, ties: Ties, stranger: bool, more_novelty: float = 0.0) -> ranking.Base:
        bases = self.__dict__.setdefault("_bases", {})
        key = (ties, stranger, more_novelty)
        if key not in bases:
            if len(bases) > 16:  # each holds a few numbers per item
                bases.clear()
            scores = self._stranger_scores if stranger else self._base_scores
            factor = None
            if more_novelty:
                factor = scorers.novelty_factors(self.popularity_, more_novelty).astype(scores.dtype)
                scores = scores * factor
            by_index = np.arange(len(scores), dtype=np.int32)
            order = self._catalogue.by_popularity if ties == "popularity" else by_index
            bases[key] = ranking.Base(scores, order, factor)
        base: ranking.Base = bases[key]
        return base

    # ── on disk ───────────────────────────────────────────────────────────────────────────────────

    def save(
        self,
        path: "str | PathLike[str]",
        *,
        include_histories: bool = False,
        notes: Mapping[str, Any] | None = None,
    ) -> None:
        """Write the model to one file; `mrfrec.load` reads it back.

        With `include_histories` the training users and what they had go in as well, which recommending by
        user id needs. The file appears when it is whole; one that was there stays until then. The parameters
        saved are those of the last fit, even if attributes have been changed since. `notes`, anything JSON
        can hold, such as what was measured, are `notes_` of the model that is read back.
        """
        from mrfrec import __version__
        from mrfrec.io.artifact import write_file
        from mrfrec.models.stored import catalogue_arrays, training_arrays

        catalogue = self._fitted()
        check_flag("include_histories", include_histories)
        arrays, state = self._state()
        arrays |= catalogue_arrays(catalogue)
        facts: dict[str, Any] = {}
        if include_histories:
            training = self._trained_on("include_histories=True")
            arrays |= training_arrays(training)
            facts = {} if (origin := self._known_origin()) is None else {"origin": origin.facts()}
        if notes is not None:
            if not isinstance(notes, Mapping):
                raise ParameterError("notes", "a mapping that JSON can hold, or None", notes)
            facts["notes"] = dict(notes)
        facts |= {
            "model": type(self).__name__,
            "written_by": __version__,
            "parameters": self.fitted_parameters_,
            "data": self._data_facts(),
            "state": state,
            "histories": include_histories,
        }
        write_file(path, arrays, facts)

    def verify(self) -> None:
        """Check all arrays of a model that was loaded now, and not when each is first used.

        A damaged part raises a `ModelFileError`.
        """
        from mrfrec.models.stored import catalogue_arrays, training_arrays

        catalogue_arrays(self._fitted())
        self._state()
        if self._training is not None:
            training_arrays(self._trained_on("verify"))

    def _known_origin(self) -> Origin | None:
        """Return how the histories were made from rows; None if an older file does not say."""
        training = self._trained_on("update")
        if training.origin is None and hasattr(self, "_interactions"):
            data = self._interactions
            return Origin.of_matrix(data.matrix.data, data.users, data.items)
        return training.origin

    def _data_facts(self) -> dict[str, Any]:
        """About the training data; its fingerprint is taken when it is first asked for."""
        if "fingerprint" not in self._facts:
            self._facts["fingerprint"] = self._interactions.fingerprint
        return self._facts
