"""Which point to try next, by what those before have shown: Optuna's tree-structured Parzen estimator."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mrfrec.checks import check_number, check_seed
from mrfrec.errors import MissingLibraryError, ParameterError

__all__ = ["Chooser", "Range"]


@dataclass(frozen=True)
class Range:
    """Numbers to search between, both included; in steps, or evenly on a logarithmic scale.

    With whole numbers and a whole step, whole numbers: Range(10, 200, step=10) for max_neighbors, and
    Range(10, 200, log=True, step=1) for any of them.
    """

    low: float
    high: float
    log: bool = False
    step: float | None = None

    def __post_init__(self) -> None:
        low, high = (check_number("range", x, "between finite numbers", lambda _: True)
                     for x in (self.low, self.high))  # fmt: skip
        if not low <= high or (self.log and low <= 0):
            raise ParameterError("range", "low ≤ high, and above 0 on a logarithmic scale", (low, high))
        if self.step is not None:
            rule = "above 0, and on a logarithmic scale 1, for whole numbers, or None"
            check_number("step", self.step, rule,
                         lambda x: x > 0 and (not self.log or (x == 1 and self.is_whole)))  # fmt: skip

    @classmethod
    def between(cls, low: float, high: float, *, whole: bool = False) -> "Range":
        """On a logarithmic scale where that can be, above 0; `whole` for whole numbers."""
        if whole and not (isinstance(low, int) and isinstance(high, int)):
            raise ParameterError("range", "between whole numbers", (low, high))
        return cls(low, high, log=low > 0, step=1 if whole else None)

    @property
    def is_whole(self) -> bool:
        """Whether these are whole numbers: said by a step that is one."""
        return all(isinstance(x, int) for x in (self.low, self.high, self.step))

    def holds(self, value: object) -> bool:
        """Whether a value is one of these."""
        if isinstance(value, bool) or not isinstance(value, int | float):
            return False
        steps = 0.0 if self.step is None else (value - self.low) / self.step
        return self.low <= value <= self.high and abs(steps - round(steps)) < 1e-9


class Chooser:
    """Chooses points of a space: for each parameter a range, or a list of choices.

    Seeded anew for each point, by its number: a study that goes on chooses as if it had never stopped.
    """

    def __init__(self, space: Mapping[str, Range | Sequence[Any]], seed: int) -> None:
        try:
            import optuna
        except ImportError:
            raise MissingLibraryError(
                'a search needs Optuna: pip install "mrfrec[tune]". A grid needs nothing more.'
            ) from None
        if not space:
            raise ParameterError("space", "at least one parameter to search over", space)
        self._optuna, self._seed, self._space = optuna, check_seed(seed), space
        self._distributions = {name: _distribution(optuna, name, of) for name, of in space.items()}

    def holds(self, chosen: Mapping[str, Any]) -> bool:
        """Whether a point is in the space."""
        return chosen.keys() == self._space.keys() and all(
            of.holds(chosen[name]) if isinstance(of, Range) else chosen[name] in of
            for name, of in self._space.items()
        )

    def next(self, past: Iterable[tuple[dict[str, Any] | None, float]]) -> dict[str, Any]:
        """The next point, after these points and what they were worth."""
        trials = [
            self._optuna.trial.create_trial(
                params=dict(chosen), distributions=self._distributions, value=value
            )
            for chosen, value in past
            if chosen is not None
        ]
        sampler = self._optuna.samplers.TPESampler(seed=self._seed + len(trials))
        verbosity = self._optuna.logging.get_verbosity()
        self._optuna.logging.set_verbosity(self._optuna.logging.WARNING)  # it says so when a study begins
        try:
            study = self._optuna.create_study(direction="maximize", sampler=sampler)
        finally:
            self._optuna.logging.set_verbosity(verbosity)
        study.add_trials(trials)
        return dict(study.ask(self._distributions).params)


def _distribution(optuna: Any, name: str, of: Range | Sequence[Any]) -> Any:
    if isinstance(of, Range):
        if of.is_whole:
            return optuna.distributions.IntDistribution(of.low, of.high, log=of.log, step=of.step)
        return optuna.distributions.FloatDistribution(of.low, of.high, log=of.log, step=of.step)
    if isinstance(of, str) or not isinstance(of, Sequence) or not len(of):
        raise ParameterError(name, "a Range, or a list with at least one choice", of)
    return optuna.distributions.CategoricalDistribution(tuple(of))
