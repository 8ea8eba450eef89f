"""Check whether a model of your own keeps the promises of mrfrec's models."""

import math
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mrfrec.data.interactions import Interactions
from mrfrec.errors import DataError, MrfrecError, MrfrecWarning, NotFittedError, ParameterError
from mrfrec.models.recommender import Recommender
from mrfrec.models.registry import load

__all__ = ["check_recommender"]

_K = 4


def check_recommender(make: Callable[..., Recommender], data: Interactions) -> None:
    """Fit a model and check its promises; raise `AssertionError` that names a broken promise.

    A model recommends as many items as requested, and none that the user has. Contributions add up to the
    score. A loaded model gives the same answers. The same data gives the same bits, with any number of
    threads. An interrupted fit changes nothing. Errors about bad parameters name them.

    Parameters
    ----------
    make
        A function that returns a new model, such as `make(threads=1)`. The class must be registered.
    data
        At least ten users; every user has at least one item, and lacks at least four.
    """
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore", MrfrecWarning)
        _check_refusals(make, data)
        model = make()
        _hold(model.fit(data) is model, "fit returns the model")
        _check_answers(model, data)
        _check_file(model, data, Path(folder))
        _check_bits(make, model, data, Path(folder))
        _check_interruption(make, data)


def _check_refusals(make: Callable[..., Recommender], data: Interactions) -> None:
    _refused(NotFittedError, lambda: make().recommend(history=[data.items[0]]), "a question before fit")
    for name in make().defaults():
        for value in (object(), float("nan")):
            error = _refused(ParameterError, lambda name=name, value=value: make(**{name: value}), name)
            _hold(getattr(error, "name", None) == name, f"the error about {name} names it")


def _check_answers(model: Recommender, data: Interactions) -> None:
    table = model.recommend(k=_K)
    _hold(len(table) == _K * data.n_users, f"recommend(k={_K}) has {_K} rows for each user")
    _hold(table["rank"].to_list() == [*range(1, _K + 1)] * data.n_users, f"ranks go from 1 to {_K}")
    _hold(bool(table["score"].is_finite().all()), "scores are finite")
    matrix = data.matrix
    had = {data.items[i] for i in matrix.indices[: matrix.indptr[1]].tolist()}
    mine = model.recommend(data.users[0], k=_K)["item"].to_list()
    _hold(not had.intersection(mine), "nobody is recommended what they have")
    if not model.explains:
        _refused(DataError, lambda: model.explain(mine[0], user=data.users[0]), "explain")
        return
    for user in data.users[:5]:
        for item, score in model.recommend(user, k=2).select("item", "score").iter_rows():
            parts = model.explain(item, user=user)["contribution"].to_list()
            near = 1e-5 * max(sum(map(abs, parts)), 1)
            _hold(abs(math.fsum(parts) - score) <= near, f"contributions add up to the score, of {item}")


def _check_file(model: Recommender, data: Interactions, folder: Path) -> None:
    path, history = folder / "model.mrf", [data.items[i] for i in range(3)]
    model.save(path, include_histories=True)
    loaded = load(path)
    _hold(type(loaded) is type(model), "load returns the class that was saved")
    _hold(loaded.parameters == model.parameters, "a file has the parameters")
    _hold(loaded.recommend(k=_K).equals(model.recommend(k=_K)), "a loaded model recommends the same")
    model.save(path)
    bare = load(path)
    same = bare.recommend(history=history, k=_K).equals(model.recommend(history=history, k=_K))
    _hold(same, "a model saved without histories answers the same")
    similar = bare.similar_items(history[0], k=_K).equals(model.similar_items(history[0], k=_K))
    _hold(similar, "a loaded model finds the same similar items")
    _refused(DataError, bare.recommend, "recommend for users that were not saved")


def _check_bits(
    make: Callable[..., Recommender], model: Recommender, data: Interactions, folder: Path
) -> None:
    one, other = folder / "one.mrf", folder / "other.mrf"
    model.save(one, include_histories=True)
    for threads in (1, 2) if "threads" in model.defaults() else (None,):
        again = make() if threads is None else make(threads=threads)
        again.fit(data).save(other, include_histories=True)
        _hold(one.read_bytes() == other.read_bytes(), f"fitted again it is the same file, threads={threads}")


def _check_interruption(make: Callable[..., Recommender], data: Interactions) -> None:
    model = make().fit(data)
    before = model.recommend(k=_K)
    others = data.matrix[: max(data.n_users // 2, 1)]
    steps: list[str] = []
    make().fit(others, progress=lambda stage, done, total: steps.append(stage))
    left = iter(range(len(steps) // 2))

    def progress(*_: object) -> None:
        if next(left, None) is None:
            raise KeyboardInterrupt

    if steps:
        _refused(KeyboardInterrupt, lambda: model.fit(others, progress=progress), "an interrupted fit")
        _hold(model.recommend(k=_K).equals(before), "an interrupted fit changes nothing")


def _refused(kind: type[BaseException], ask: Callable[..., Any], what: str) -> BaseException:
    """Return the error of a call; raise if the call is not refused."""
    try:
        ask()
    except kind as error:
        return error
    except MrfrecError as error:
        raise AssertionError(f"{what}: {kind.__name__} was expected, not {error!r}") from error
    raise AssertionError(f"{what} must be refused with {kind.__name__}")


def _hold(is_kept: bool, promise: str) -> None:
    if not is_kept:
        raise AssertionError(f"not kept: {promise}")
