"""What is given in a wrong type is refused by name, not by an error of Python."""

from collections.abc import Callable
from typing import Any

import numpy as np
import polars as pl
import pytest
import scipy.sparse as sp

import mrfrec
from mrfrec import MRF, DataError, Interactions, ParameterError, datasets, nightly, read_interactions
from mrfrec.evaluation import Split, evaluate, evaluate_rules, strong_generalisation
from mrfrec.service import ServiceSettings
from mrfrec.service.app import paths_of

from matrices import random_matrix

bad: Any = None  # stands for whatever no type allows
NUMBER: Any = 5
TEXT: Any = ""
ARRAY: Any = np.array([1, 2])


def settings(**values: Any) -> ServiceSettings:
    return ServiceSettings(**values)


@pytest.fixture(scope="module")
def split() -> Split:
    return strong_generalisation(Interactions(sp.csr_array(random_matrix(1))), heldout=5, min_items=2)


PAIRS = pl.DataFrame({"user": ["u", "u", "v"], "item": ["a", "b", "a"]})


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda _: mrfrec.load(bad), "^path must be the name of a file; got None"),
        (lambda _: mrfrec.locked(bad).__enter__(), "^path must be the name of a file; got None"),
        (lambda _: nightly.run(bad), "^path must be the name of a file; got None"),
        (lambda _: nightly.read_job(bad), "^path must be the name of a file; got None"),
        (lambda _: paths_of(bad), "^path must be the name of a file; got None"),
        (lambda split: evaluate(MRF(), split, name=TEXT), "^name must be a text, or None; got ''"),
        (lambda _: evaluate(MRF(), ARRAY), r"^split must be Split; got .*evaluation\.at_time\(data\), or"),
        (lambda split: evaluate(MRF(), split, rules=TEXT), "^rules must be a mapping"),
        (lambda split: evaluate_rules(MRF(), split, {"variety": 1}, name=ARRAY), "^name must be a text"),
        (lambda _: settings(origins=None), "^origins must be texts in a tuple or a list; got None"),
        (lambda _: settings(hosts=5), "^hosts must be texts in a tuple or a list; got 5"),
        (lambda _: settings(root_path=-1), "^root_path must be a text; got -1"),
        (lambda _: settings(keys=-1), "^keys must be the name of a file or folder, or None; got -1"),
        (lambda _: datasets.load(ARRAY), "^name must be one of debian"),
        (lambda _: read_interactions(PAIRS, input_format=ARRAY), '^input_format must be "csv", .* or None'),
        (lambda _: read_interactions(PAIRS, items=5), "^the table of items must be a path, .*; got int"),
        (lambda _: mrfrec.read_item_features(PAIRS, columns=ARRAY), "^columns must be a list of columns"),
        (lambda _: mrfrec.read_item_table(5), "^the table of items must be a path, .*; got int"),
        (lambda split: split.training.filtered(min_items=TEXT), "^min_items must be a whole number"),
    ],
)  # fmt: skip
def test_wrong_types_are_refused_by_name(call: Callable[[Any], object], message: str, split: Split) -> None:
    with pytest.raises((ParameterError, DataError), match=message):
        call(split)


def test_arguments_of_an_answer_are_named() -> None:
    model = MRF.paper(l2=1.0).fit(read_interactions(PAIRS))
    arguments: list[tuple[dict[str, Any], str]] = [
        ({"users": 5}, "^users: user ids are strings here; got 5"),
        ({"users": "u", "allow": [None]}, "^allow: item ids are strings here; got None"),
        ({"history": {"a": float("nan")}}, r"finite numbers .*; got nan for 'a'\.$"),
    ]
    for asked, message in arguments:
        with pytest.raises(DataError, match=message):
            model.recommend(**asked, k=1)
    with pytest.raises(ParameterError, match=r"^path must be the name of a file; got None"):
        model.save(bad)
