"""The fitted state of a model: one value, built whole and never changed.

A fit, a file, an update and new items make a new value, which the model gets in one assignment. A method that
answers takes the value once, so that its answer is consistent whatever other threads do to the model.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from mrfrec.core.ages import Recency
from mrfrec.core.rows import Rows
from mrfrec.data.catalogue import Catalogue, DataSize, Training
from mrfrec.data.erasures import Erasures
from mrfrec.data.interactions import Interactions
from mrfrec.data.item_table import ItemFeatures
from mrfrec.data.pairs import Origin, rules_of_matrix
from mrfrec.engines.machine import usable_threads
from mrfrec.errors import DataError, ModelFileError
from mrfrec.fitted.measured import FitPlan, Measured, as_parameter
from mrfrec.fitted.scorers import Base, Scorer, Ties, novelty_factors

Array = npt.NDArray[Any]
Facts = dict[str, Any]

# A state keeps at most so many base scores, which take a few numbers per item.
_MOST_BASES = 16
_SAVE_WITH = "save it with include_histories=True (--histories; in a job histories = true in [publish])."


class Runtime(NamedTuple):
    """The threads and the device that answers are computed with; they change no result."""

    most_threads: int | None = None  # None: one for each core
    device: str = "cpu"

    @classmethod
    def of(cls, model: Any) -> Self:
        """Return the threads and the device of a model."""
        return cls(model.threads, model.device)

    @property
    def threads(self) -> int:
        return self.most_threads or usable_threads()


@dataclass(frozen=True, kw_only=True)
class Learned(ABC):
    """What a model has learned, as its answers use it; every kind of model has a subclass.

    `explains` says that a score is a sum over the items of a history, `scales_scores` that scores may be
    multiplied, as `novelty` does. `base_scores` has the score of each item before any item of a history
    counts. `values` has the numbers that the fit used for parameters that may be "auto", `plan` what the fit
    decided. `timings`, in seconds, and `memory_plan`, in bytes, are by stage of the fit and are not saved.
    """

    explains: ClassVar[bool] = False
    scales_scores: ClassVar[bool] = False
    base_scores: Array
    values: Mapping[str, float] = field(default_factory=dict)
    measured: Measured | None = None
    plan: FitPlan | None = None
    timings: Mapping[str, float] = field(default_factory=dict)
    memory_plan: Mapping[str, int] = field(default_factory=dict)

    @abstractmethod
    def scorer(self, histories: Rows, runtime: Runtime) -> Scorer:
        """Return the scorer of these histories."""

    @abstractmethod
    def neighbors(self, item: int, catalogue: Catalogue) -> tuple[Array, Array]:
        """Return the indices of the items that go with an item, in any order, and the strength of each."""

    def weights_between(self, had: Array, values: Array, targets: Array) -> npt.NDArray[np.float64]:
        """Return the weights of the items of a history in the scores of targets, had × targets.

        Only models that explain their scores implement this.
        """
        raise NotImplementedError

    @abstractmethod
    def directions(self, items: Array) -> npt.NDArray[np.float64]:
        """Return a vector of length 1, or of zeros, per item; the product of two is how alike they are."""

    def unknown_user_scores(self, catalogue: Catalogue) -> Array:
        """Return the score of each item for a user without a history."""
        return self.base_scores

    @property
    def recency(self) -> Recency:
        """How the values of a history fade with time."""
        return Recency(**{name: x for name, x in self.values.items() if name in Recency._fields})

    def used_features(self, features: ItemFeatures | None) -> ItemFeatures | None:
        """Return the features that the model has learned from, with their weight; None without."""
        return None

    def leave_devices(self) -> None:
        """Free the memory of devices, which the next fit may need."""
        return

    @abstractmethod
    def stored(self) -> tuple[dict[str, Array], Facts]:
        """Return the arrays and facts to save, after checking them."""

    def verified(self) -> Self:
        """Check all arrays, and return a value that does not check them again."""
        return self


@dataclass(frozen=True, kw_only=True)
class FittedState:
    """All that a model knows: what was learned, the items, and the training data as far as it is kept.

    `kind` is the name of the class of the model and `parameters` are its parameters at the fit. `usual_value`
    is the value of an item in a history that gives none: 1, or the mean size of the values. `rules` and
    `columns` say how the training data was read; later tables are read the same way. `library` is the data
    frame library of the training data. `file_hash` is the hash of the file that the state was read from or
    saved to.
    """

    kind: str
    parameters: Mapping[str, Any]
    learned: Learned
    catalogue: Catalogue
    size: DataSize
    usual_value: float
    rules: Mapping[str, Any]
    # The data of a fit, or a function that reads the training users of a file, or None if the file has none.
    source: Interactions | Callable[[], Training] | None
    # The fingerprint in the file of the model; empty after a fit.
    _fingerprint: str = field(default="", repr=False)
    columns: Mapping[str, str] = field(default_factory=dict)
    library: str | None = None
    notes: Mapping[str, Any] = field(default_factory=dict)
    # Forgotten people whose rows were left out.
    erased: Erasures = field(default_factory=Erasures)
    # The erasures in the file beside the model file, which may be newer than the model; None without that
    # file.
    beside: Erasures | None = None
    # The name of that file if this user may not read it: the model answers, and cannot be rewritten.
    unreadable_erasures: str = ""
    file_hash: str = ""
    _bases: dict[tuple[Ties, bool, float], Base] = field(default_factory=dict, init=False, repr=False)

    @classmethod
    def of_data(cls, data: Interactions, learned: Learned, kind: str, parameters: Mapping[str, Any]) -> Self:
        """Return the state of a model that was fitted to the data."""
        size, features = data.size, learned.used_features(data.features)
        table = None if data.table is None else data.table.over(data.items)
        return cls(
            kind=kind,
            parameters=parameters,
            learned=learned,
            catalogue=Catalogue(data.items, data.titles, data.popularity, size.users, features, table),
            size=size,
            usual_value=1.0 if size.binary else float(np.abs(data.matrix.data).mean(dtype=np.float64)),
            rules=rules_of_matrix(size.binary) if data.origin is None else data.origin.rules,
            columns={} if data.origin is None else data.origin.columns,
            library=data.library,
            erased=data.erased,
            source=data,
        )

    def __getstate__(self) -> dict[str, Any]:
        # The base scores follow from the rest.
        return {**{field.name: getattr(self, field.name) for field in fields(self)}, "_bases": {}}

    # ── the training data ─────────────────────────────────────────────────────────────────────────

    @property
    def has_histories(self) -> bool:
        """Whether the histories of the training users are known; a file may leave them out."""
        return self.source is not None

    @cached_property
    def training(self) -> Training | None:
        """The training users and their histories; None if the file has left them out."""
        if self.source is None:
            return None
        if callable(self.source):
            return self.source()
        data = self.source
        return Training(data.users, Rows.of(data.matrix), data.origin)

    def training_for(self, purpose: str, advice: str = "Give histories, or") -> Training:
        """Return the training users and their histories, or raise an error that `purpose` needs them."""
        if self.training is None:
            raise DataError(
                f"{purpose} needs the training users' histories, which this model was saved without. "
                f"{advice} {_SAVE_WITH}"
            )
        return self.training

    def origin_for(self, purpose: str) -> Origin:
        """Return how the histories were made from rows, or raise an error that `purpose` needs them."""
        origin = self.training_for(purpose, "Fit it again, and").origin
        # Only a model that was fitted on a matrix and not read from a file has no origin.
        if origin is None:
            data = self.data_for(purpose)
            return Origin.of_matrix(data.matrix.data, data.users, data.items)
        return origin

    @property
    def erasures(self) -> Erasures:
        """All erasures: the file beside the model has them; without that file, the model has."""
        if self.unreadable_erasures:
            raise ModelFileError(
                f"{self.unreadable_erasures} cannot be read by this user: it has the people who were "
                "forgotten, who might come back. Run the command as the user who owns it."
            )
        return self.erased if self.beside is None else self.beside

    def data_for(self, purpose: str) -> Interactions:
        """Return the training data, or raise an error that `purpose` needs it."""
        if isinstance(self.source, Interactions):
            if self.source.table is self.catalogue.table:
                return self.source
            # The model may have got a newer item table, with titles.
            return self.source.replace(table=self.catalogue.table, titles=self.catalogue.titles)
        training = self.training_for(purpose, "Fit it again, and")
        matrix = training.histories.matrix().astype(np.float32)
        catalogue = self.catalogue
        data = Interactions(matrix, training.users, catalogue.items, catalogue.titles, copy=False)
        return data.replace(
            origin=training.origin,
            features=catalogue.features,
            table=catalogue.table,
            library=self.library,
            erased=self.erased,
        )

    @cached_property
    def fingerprint(self) -> str:
        """The hash of the training data, computed when it is first needed."""
        return self._fingerprint or self.data_for("the fingerprint").fingerprint

    @property
    def batches(self) -> tuple[str, ...]:
        """The names of the batches of events in the training data, in the order in which they came."""
        return self.origin_for("batches_").batches or (self.fingerprint,)

    # ── for answers ───────────────────────────────────────────────────────────────────────────────

    @property
    def used_parameters(self) -> Facts:
        """The parameters of the fit, with the numbers that the fit used for "auto"."""
        return {**self.parameters, **{name: as_parameter(name, x) for name, x in self.learned.values.items()}}

    @property
    def novelty(self) -> float:
        """The novelty of the fit, which the scores contain."""
        return float(self.used_parameters.get("novelty", 0.0))

    @property
    def score_type(self) -> str:
        """The dtype of scores."""
        return str(self.learned.base_scores.dtype)

    @property
    def column_types(self) -> dict[str, str]:
        """The types of the columns of result tables that depend on the model."""
        kind = self.catalogue.items.type
        return {"item": kind, "similar_to": kind, "score": self.score_type}

    def base(self, *, unknown_user: bool, more_novelty: float = 0.0, ties: Ties = "popularity") -> Base:
        """Return the base scores of the items for users with a history, or for an unknown user."""
        key = (ties, unknown_user, more_novelty)
        base = self._bases.get(key)
        if base is None:
            if len(self._bases) > _MOST_BASES:
                self._bases.clear()
            start = (
                self.learned.unknown_user_scores(self.catalogue) if unknown_user else self.learned.base_scores
            )
            factor = None
            if more_novelty:
                factor = novelty_factors(self.catalogue.popularity, more_novelty).astype(start.dtype)
            by_index = np.arange(len(start), dtype=np.int32)
            order = self.catalogue.popularity_rank if ties == "popularity" else by_index
            base = self._bases[key] = Base(start, order, factor)
        return base


def of_length_one(vectors: Array) -> npt.NDArray[np.float64]:
    """Divide each row by its length; rows of zeros stay."""
    rows = vectors.astype(np.float64)
    lengths = np.sqrt(np.einsum("ij,ij->i", rows, rows))[:, None]
    return np.asarray(np.divide(rows, lengths, out=np.zeros_like(rows), where=lengths > 0))
