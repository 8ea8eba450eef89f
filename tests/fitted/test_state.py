"""A fitted model is one value: it stays whole, whatever interrupts a change and whatever other threads do."""

import dataclasses
import sys
import threading
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import numpy as np
import polars as pl
import pytest
import scipy.sparse as sp

import mrfrec
from mrfrec import MRF, Interactions, Recommender
from mrfrec.models import ItemKNN, Popularity

from matrices import random_matrix
from vectors import Vectors

SOURCES = str(Path(mrfrec.__file__).parent)
ITEMS = [f"i{n}" for n in range(20)]
FEATURES = pl.DataFrame({"item": ITEMS, "kind": [f"k{n % 4}" for n in range(20)]})
NEW = pl.DataFrame({"item": ["n1", "n2"], "kind": ["k1", "k2"]})
Change = Callable[[Any], object]


class Interruption(BaseException):
    """What no code expects, as Ctrl-C."""


def events(seed: int) -> Interactions:
    X = random_matrix(seed, users=60, items=20)
    return Interactions(sp.csr_array(X), [f"{seed}-{n}" for n in range(60)], ITEMS)


def answers(model: Recommender) -> list[Any]:
    """All that a model says of itself, and some answers."""
    everyone = model.recommend(k=4, exclude_seen=False)
    return [
        everyone.rows(), model.recommend(history=ITEMS[:3], k=5, explain=2).rows(),
        model.scores(sp.csr_array(np.eye(len(model.items_)))).tobytes(),
        repr(model), model.reading_, list(model.users_ or ()), list(model.items_), model.measured_,
        model.fitted_.fingerprint, model.fitted_.file_hash, set(model.timings_),
    ]  # fmt: skip


def test_nothing_of_a_fitted_state_can_be_set() -> None:
    fitted = MRF(measure=False).fit(events(1).with_features(mrfrec.read_item_features(FEATURES))).fitted_
    values: list[Any] = [fitted, fitted.learned, fitted.catalogue, fitted.catalogue.features, fitted.training]
    values += [fitted.source, fitted.erased, fitted.origin_for("a test"), fitted.size]
    for value in values:
        assert value is not None
        names = getattr(value, "_fields", None) or [each.name for each in dataclasses.fields(value)]
        for name in names:
            with pytest.raises(AttributeError):
                setattr(value, name, None)


def lines_of(change: Change, model: Recommender) -> list[tuple[str, int]]:
    """Return the lines of the package that a change runs, each once, in order.

    Of the packages that know no model, every tenth will do.
    """
    found: dict[tuple[str, int], None] = {}

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        if not frame.f_code.co_filename.startswith(SOURCES):
            return None
        if event == "line":
            found[frame.f_code.co_filename, frame.f_lineno] = None
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        change(model)
    finally:
        sys.settrace(before)
    below = tuple(f"{SOURCES}/{name}/" for name in ("core", "engines", "data", "io"))
    inner = [line for line in found if line[0].startswith(below)]
    return [line for line in found if line not in {*inner} - {*inner[::10]}]


@cache
def lines_in(code: CodeType) -> frozenset[int | None]:
    return frozenset(number for *_, number in code.co_lines())


def interrupted_at(line: tuple[str, int], change: Change, model: Recommender) -> bool:
    """Raise at a line when it is first reached; return whether it was."""

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        if frame.f_code.co_filename != line[0] or line[1] not in lines_in(frame.f_code):
            return None
        if event == "line" and frame.f_lineno == line[1]:
            sys.settrace(None)
            raise Interruption
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        change(model)
    except Interruption:
        return True
    finally:
        sys.settrace(before)
    return False


MRF_OPTIONS: dict[str, Any] = {"measure": False, "l2": 1.0, "rank": 4, "threads": 1}
CHANGES: dict[str, tuple[Callable[[], Recommender], Change]] = {
    "fit popularity": (lambda: Popularity().fit(events(1)), lambda m: m.fit(events(2))),
    "fit knn": (lambda: ItemKNN(threads=1).fit(events(1)), lambda m: m.fit(events(2))),
    "fit dense": (lambda: MRF(**MRF_OPTIONS).fit(events(1)), lambda m: m.fit(events(2))),
    "fit sparse": (
        lambda: MRF(sparsity=0.3, r=0.5, **MRF_OPTIONS).fit(events(1), item_features=FEATURES),
        lambda m: m.fit(events(2), item_features=pl.concat([FEATURES, NEW])),
    ),
    "update": (lambda: MRF(**MRF_OPTIONS).fit(events(1)), lambda m: m.update(events(2))),
    "forget": (lambda: MRF(**MRF_OPTIONS).fit(events(1)), lambda m: m.forget(["1-3", "1-7"])),
    "add items": (
        lambda: MRF(**MRF_OPTIONS).fit(events(1), item_features=FEATURES), lambda m: m.add_items(NEW),
    ),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", CHANGES)
def test_a_change_that_is_interrupted_at_any_line_leaves_the_model_as_it_was(name: str) -> None:
    make, change = CHANGES[name]
    model, changed = make(), make()
    before, state = answers(model), model.fitted_
    lines = lines_of(change, changed)
    after = answers(changed)
    assert len(lines) > 50
    reached = 0
    for line in lines:
        reached += interrupted_at(line, change, model)
        if model.fitted_ is not state:  # only the way out of the method was left: everything is new
            assert answers(model) == after
            model = make()
            before, state = answers(model), model.fitted_
        # The state is the same object and cannot change, but what it refers to could.
        elif reached % 20 == 0:
            assert answers(model) == before
    assert answers(model) == before
    assert reached > 0.9 * len(lines)


def test_a_state_cannot_be_changed() -> None:
    model = MRF(**MRF_OPTIONS).fit(events(1))
    for part in (model.fitted_, model.fitted_.learned, model.catalogue):
        for field in dataclasses.fields(part):
            with pytest.raises(dataclasses.FrozenInstanceError):
                setattr(part, field.name, None)
    for name in ("plan_", "values_", "mean_", "timings_", "measured_", "fitted_"):
        with pytest.raises(AttributeError):
            setattr(model, name, None)


@pytest.mark.parametrize(
    "make",
    [
        lambda: MRF(**MRF_OPTIONS),
        lambda: MRF(sparsity=0.3, **MRF_OPTIONS),
        lambda: ItemKNN(threads=1),
        lambda: Vectors(factors=4),
    ],
)
def test_answers_while_another_thread_fits_are_of_one_model(make: Callable[[], Recommender]) -> None:
    """Two data sets whose items, titles and users differ: a mixture would name items of both."""
    model, ways = make(), list[Any]()
    for seed, prefix in ((1, "a"), (2, "b")):
        X = sp.csr_array(random_matrix(seed, users=40, items=30 + 10 * seed))
        data = Interactions(
            X, [f"{prefix}{n}" for n in range(40)], [f"{prefix}{n}" for n in range(X.shape[1])]
        )
        ways.append(data)
    expected = [asked(make().fit(data)) for data in ways]
    model.fit(ways[0])
    done = threading.Event()
    errors: list[BaseException] = []

    def refit() -> None:
        try:
            for turn in range(100):
                model.fit(ways[turn % 2])
        except BaseException as error:
            errors.append(error)
        finally:
            done.set()

    thread = threading.Thread(target=refit)
    thread.start()
    found = []
    switch = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        while not done.is_set():
            found.append(asked(model))
    finally:
        sys.setswitchinterval(switch)
        thread.join()
    assert not errors
    assert len(found) > 2
    assert all(one in expected for one in found)


def asked(model: Recommender) -> list[Any]:
    return list(model.recommend(k=3, exclude_seen=False).rows())
