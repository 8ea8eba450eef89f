"""The options of a recommendation."""

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated, Any, ClassVar, ParamSpec, TypedDict, TypeVar

from pydantic import Field, PlainValidator, SkipValidation

from mrfrec.answers.where import Where, check_where
from mrfrec.checks import check_count, check_number, shortened, warn
from mrfrec.errors import ParameterError
from mrfrec.options import USUAL, Options, Shell, Whole

ItemFilter = Iterable[int | str] | Mapping[Any, Iterable[int | str]] | None
"""Ids of items, or ids by user; None for no filter."""
Quotas = Mapping[str, int] | None
"""For each column, how many items with the same value a list may have."""
Boost = Mapping[str, str | Mapping[Any, float]] | None
"""What to add to scores or to multiply them by: the name of a column, or numbers by item."""

P = ParamSpec("P")
R = TypeVar("R")

_MOST_COLUMNS = 20  # columns that `at_most` may name
BOOST_LIMITS = {"add": (-1e30, 1e30), "multiply": (1e-6, 1e6)}  # sums are finite in single precision


class Question(Options):
    """How many items to recommend, which ones, and how to rank and explain them.

    The fields are the parameters of `Recommender.recommend`, options of the command line, and fields of
    requests to a service.
    """

    group: ClassVar[str] = "Rules"

    k: Annotated[Whole, Shell("-k", usual=True)] = Field(10, ge=1, description="Number of items.")
    exclude_seen: Annotated[bool, Shell("--exclude-seen/--seen")] = Field(
        True, description="Leave out the items of the history."
    )
    allow: Annotated[ItemFilter, SkipValidation, Shell(value="ITEMS")] = Field(
        None, description="Recommend only these items."
    )
    exclude: Annotated[ItemFilter, SkipValidation, Shell(value="ITEMS", usual=True)] = Field(
        None, description="Never recommend these items."
    )
    novelty: Annotated[float | None, USUAL] = Field(
        None,
        ge=-1,
        le=1,
        description="Above 0, rarer items score higher; below 0, popular items; by default as fitted.",
    )
    explain: Whole = Field(
        0, ge=0, description="Number of reasons for each item: items of the history that add most."
    )
    where: Annotated[Where, PlainValidator(check_where), Shell(value="SQL", usual=True)] = Field(
        None, description="Recommend only items of which this is true: price < 50 AND in_stock."
    )
    at_most: Annotated[
        Quotas, PlainValidator(lambda x: _check_at_most(x), json_schema_input_type=Quotas), USUAL
    ] = Field(
        None, description='At most so many items with the same value of a column: {"brand": 2, "color": 3}.'
    )
    boost: Annotated[Boost, PlainValidator(lambda x: check_boost(x)), Shell(value="LIST")] = Field(
        None,
        description='Columns of numbers to add to the scores, or to multiply them by: {"add": "margin"}.',
    )
    variety: float = Field(
        0.0,
        ge=0,
        le=1,
        description="Above 0, each further item is less like the items before it; at 1 only this counts.",
    )
    strict: bool = Field(
        False,
        description="Refuse users whom the model does not know; else they get the most popular items. "
        "This is about users, not about the items of a history.",
    )

    def cost(self, lengths: Sequence[int]) -> int:
        """Return the cost of answers to histories of these lengths: their rows, and the work of reasons."""
        rows = len(lengths) * self.k * (1 + self.explain)
        rows += sum(lengths) * self.k // 100 if self.explain else 0
        if self.at_most or self.boost:
            rows += len(lengths) * (self.k * len(self.at_most or ()) + _COST_OF_RULES)
        if self.variety:
            candidates = candidates_of_variety(self.k)
            rows += len(lengths) * (_COST_OF_RULES + min(self.k, candidates) * candidates**2 // 5000)
        return rows

    def warn_of_few(self, shortage: str, left: str = "") -> None:
        """Warn that there are fewer than k items, and why; `shortage` says for how many users.

        `left` says how many items `where` leaves, if it holds for everybody.
        """
        why = "allowed" if self.allow is not None or self.where is not None else "not excluded"
        limits = ", ".join(f"{most} of each {column!r}" for column, most in (self.at_most or {}).items())
        within = f", with at most {limits}" if limits else ""
        warn(f"{shortage}: no more items are left that they have not seen and that are {why}{within}.{left}")


class QuestionOptions(TypedDict, total=False):
    """The fields of `Question`, as keyword arguments of methods."""

    k: int
    exclude_seen: bool
    allow: ItemFilter
    exclude: ItemFilter
    novelty: float | None
    explain: int
    where: Where
    at_most: Quotas
    boost: Boost
    variety: float
    strict: bool


def with_options(function: Callable[P, R]) -> Callable[P, R]:
    """Show the options of a question in the signature and the docstring of a method with `**options`.

    The line `{options}` of the docstring becomes the list of the options with their sentences.
    """
    signature = inspect.signature(function)
    own = [x for x in signature.parameters.values() if x.kind is not x.VAR_KEYWORD]
    fields = Question.model_fields
    options = [
        inspect.Parameter(
            name, inspect.Parameter.KEYWORD_ONLY, default=field.default,
            annotation=QuestionOptions.__annotations__[name],
        )
        for name, field in fields.items()
    ]  # fmt: skip
    vars(function)["__signature__"] = signature.replace(parameters=[*own, *options])
    lines = [line for name, field in fields.items() for line in (name, f"    {field.description}")]
    function.__doc__ = (function.__doc__ or "").replace("{options}", "\n        ".join(lines))
    return function


_COST_OF_RULES = 100  # rows that the rules of one list count
_LEAST_VARIED, _MOST_VARIED = 50, 500  # candidates among which variety chooses


def check_novelty(novelty: object) -> float | None:
    """Return γ, checked, or None for the value of the fit."""
    return Question.of(novelty=novelty).novelty


def candidates_of_variety(k: int) -> int:
    """Return among how many of the best items `variety` chooses k, or as many of these as there are."""
    return min(max(5 * k, _LEAST_VARIED), _MOST_VARIED)


def _check_at_most(at_most: object) -> Quotas:
    """Return quotas by column, as plain ints."""
    if at_most is None:
        return None
    rule = f'a mapping from up to {_MOST_COLUMNS} names of columns to whole numbers, such as {{"brand": 2}}'
    if not isinstance(at_most, Mapping) or len(at_most) > _MOST_COLUMNS:
        raise ParameterError("at_most", rule, at_most)
    if not all(isinstance(column, str) for column in at_most):
        raise ParameterError("at_most", rule, at_most)
    return {column: check_count(f"at_most[{column!r}]", most, 0) for column, most in at_most.items()}


def check_boost(boost: object) -> Boost:
    """Check a boost, and return it with its numbers as plain floats."""
    if boost is None:
        return None
    if not isinstance(boost, Mapping) or not {*boost} <= {"add", "multiply"}:
        rule = 'a mapping with "add" or "multiply", such as {"add": "margin"} or {"multiply": {"tea": 1.5}}'
        raise ParameterError("boost", rule, boost)
    checked: dict[str, str | Mapping[Any, float]] = {}
    for way, numbers in boost.items():
        if isinstance(numbers, str):
            checked[way] = numbers
        elif isinstance(numbers, Mapping):
            checked[way] = _check_numbers(way, numbers)
        else:
            rule = "the name of a column, or a mapping from items to numbers"
            raise ParameterError(f'boost["{way}"]', rule, numbers)
    return checked


def _check_numbers(way: str, numbers: Mapping[Any, Any]) -> Mapping[Any, float]:
    """Return the numbers of items as plain floats; up to 10,000 of them come with a request."""
    least, most = BOOST_LIMITS[way]
    if all(type(x) is float and least <= x <= most for x in numbers.values()):
        return numbers

    def holds(x: float) -> bool:
        return least <= x <= most

    rule = f"a number from {least:g} to {most:g}"

    def named(item: Any) -> str:
        return f'boost["{way}"][{shortened(repr(item), 40)}]'

    return {item: check_number(named(item), x, rule, holds) for item, x in numbers.items()}
