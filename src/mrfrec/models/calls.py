"""Wrong calls say what to write: parameters that a method does not have, or that must be named."""

import inspect
from collections.abc import Callable, Iterable
from difflib import get_close_matches
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from mrfrec.answers.question import Question, QuestionOptions

P = ParamSpec("P")
R = TypeVar("R")

# What other libraries call a parameter of a model or of a method here.
_ELSEWHERE = {
    "factors": "rank", "n_factors": "rank", "n_components": "rank", "regularization": "l2", "reg": "l2",
    "lambda_": "l2", "n_jobs": "threads", "num_threads": "threads", "neighbors": "max_neighbors",
    "K": "max_neighbors", "N": "k", "n": "k", "top_k": "k",
}  # fmt: skip


def guided(function: Callable[P, R]) -> Callable[P, R]:
    """Let a call with a wrong parameter raise a `TypeError` that says what to write."""

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except TypeError as error:
            signature = inspect.signature(function)
            try:
                signature.bind(*args, **kwargs)
            except TypeError:
                name = type(args[0]).__name__ if function.__name__ == "__init__" else function.__name__
                advice = _advice(name, [*signature.parameters.values()][1:], list(args[1:]), dict(kwargs))
                raise TypeError(f"{error}. {advice}") from None
            raise

    return call


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


def _advice(name: str, parameters: list[inspect.Parameter], values: list[Any], named: dict[str, Any]) -> str:
    """Return what to write in place of a call, if that can be told."""
    keywords = [x.name for x in parameters if x.kind in (x.KEYWORD_ONLY, x.POSITIONAL_OR_KEYWORD)]
    for wrong in (x for x in named if x not in keywords):
        value = named[wrong]
        if name == "fit" and wrong in _columns_of_tables():
            return (
                f"Columns are named where a table is read: fit(read_interactions(data, {wrong}={value!r}))."
            )
        meant = _ELSEWHERE.get(wrong)
        near = [meant] if meant in keywords else get_close_matches(wrong, keywords, 1)
        return f"Did you mean {name}({near[0]}={value!r})?" if near else f"It takes {', '.join(keywords)}."
    by_position = [x for x in parameters if x.kind is x.POSITIONAL_OR_KEYWORD]
    if (surplus := values[len(by_position) :]) and "k" in keywords and isinstance(surplus[0], int):
        first = "" if not by_position else f"{values[0]!r}, "
        return f"Write {name}({first}k={surplus[0]!r})."
    return "Give parameters by name." if surplus else f"Give {by_position[0].name}."


def _columns_of_tables() -> Iterable[str]:
    from mrfrec.io.tables import read_interactions

    return inspect.signature(read_interactions).parameters
