"""Choose the next point to try with Optuna's tree-structured Parzen estimator."""

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from mrfrec.checks import check_seed
from mrfrec.errors import MissingLibraryError, ParameterError
from mrfrec.models.axes import Range


class Chooser:
    """Chooses points of a space: a range or a list of choices for each parameter.

    The seed of each point depends on its number, so that a continued study chooses as if not interrupted.
    """

    def __init__(self, space: Mapping[str, Range | Sequence[Any]], seed: int) -> None:
        try:
            import optuna
        except ImportError:
            raise MissingLibraryError(
                'a search needs Optuna: pip install "mrfrec[tune]". A grid search works without it.'
            ) from None
        if not space:
            raise ParameterError("space", "at least one parameter to search over", space)
        self._optuna, self._seed, self._space = optuna, check_seed(seed), space
        self._distributions = {name: _distribution(optuna, name, of) for name, of in space.items()}

    def holds(self, chosen: Mapping[str, Any]) -> bool:
        return chosen.keys() == self._space.keys() and all(
            of.holds(chosen[name]) if isinstance(of, Range) else chosen[name] in of
            for name, of in self._space.items()
        )

    def next(self, past: Iterable[tuple[dict[str, Any] | None, float]]) -> dict[str, Any]:
        """Return the next point, given earlier points and their values."""
        create = partial(self._optuna.trial.create_trial, distributions=self._distributions)
        trials = [create(params=dict(chosen), value=value) for chosen, value in past if chosen is not None]
        sampler = self._optuna.samplers.TPESampler(seed=self._seed + len(trials))
        verbosity = self._optuna.logging.get_verbosity()
        self._optuna.logging.set_verbosity(self._optuna.logging.WARNING)  # no message about a new study
        try:
            study = self._optuna.create_study(direction="maximize", sampler=sampler)
        finally:
            self._optuna.logging.set_verbosity(verbosity)
        study.add_trials(trials)
        return dict(study.ask(self._distributions).params)


def _distribution(optuna: Any, name: str, of: Range | Sequence[Any]) -> Any:
    if isinstance(of, Range):
        kind = optuna.distributions.IntDistribution if of.is_whole else optuna.distributions.FloatDistribution
        return kind(of.low, of.high, log=of.log, step=of.step)
    if isinstance(of, str) or not isinstance(of, Sequence) or not len(of):
        raise ParameterError(name, "a Range, or a list with at least one choice", of)
    return optuna.distributions.CategoricalDistribution(tuple(of))
