"""Parameters of a model: arguments of its constructor, kept as attributes of the same names."""

import inspect
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from mrfrec.checks import counted
from mrfrec.errors import ParameterError
from mrfrec.fitted.measured import number_text
from mrfrec.fitted.state import FittedState
from mrfrec.shown import Report, Section, parameter_text

Model = TypeVar("Model")


def defaults_of(kind: type) -> dict[str, Any]:
    """Return the parameters of a constructor and their defaults, `inspect.Parameter.empty` if required."""
    parameters = inspect.signature(kind).parameters
    for parameter in parameters.values():
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            rule = f"a class whose constructor takes every parameter by name, and no {parameter.name!r}"
            raise ParameterError("model", rule, kind.__name__)
    return {name: parameter.default for name, parameter in parameters.items()}


def values_of(model: object, names: Iterable[str]) -> dict[str, Any]:
    """Return the attributes of a model that hold its parameters; refuse a constructor that sets none."""
    missing = [name for name in names if not hasattr(model, name)]
    if missing:
        rule = f"a class that keeps each parameter as an attribute: its constructor sets no {missing[0]}"
        raise ParameterError("model", rule, type(model).__name__)
    return {name: getattr(model, name) for name in names}


def set_values(model: object, values: Mapping[str, Any]) -> None:
    """Set some parameters of a model, under the rules of its constructor."""
    current = values_of(model, defaults_of(type(model)))
    for name in values:
        if name not in current:
            known = ", ".join(current) or "none"
            raise ParameterError("parameters", f"among those of {type(model).__name__} ({known})", name)
    # A constructor may set more than its parameters; it sets nothing that a fit learns.
    model.__dict__.update(type(model)(**{**current, **values}).__dict__)


def unfitted(model: Model) -> Model:
    """Return a new model with the same parameters and nothing learned."""
    return type(model)(**values_of(model, defaults_of(type(model))))


def call_of(model: object) -> str:
    """Return the constructor call of a model, with the parameters that differ from their defaults."""
    usual = defaults_of(type(model))
    changed = [f"{name}={x!r}" for name, x in values_of(model, usual).items() if usual[name] != x]
    return f"{type(model).__name__}({', '.join(changed)})"


def sklearn_tags() -> Any:
    """Return the tags that scikit-learn needs for a step of a pipeline; only scikit-learn calls this."""
    from sklearn.utils import InputTags, Tags, TargetTags

    targets, inputs = TargetTags(required=False), InputTags(sparse=True)
    return Tags(estimator_type=None, target_tags=targets, input_tags=inputs)


def summary(model: Any, fitted: FittedState | None) -> str:
    """Return the call of a model, and what it was fitted on: "MRF(l2=5) fitted on 9 users × 4 items"."""
    if fitted is None:
        return call_of(model)
    size = str(fitted.size).rpartition(", ")[0]
    plan = fitted.learned.plan
    form = "" if plan is None else f", {plan.kind}"
    changed = "" if model.parameters == fitted.parameters else ", before parameters were changed"
    values = {} if fitted.learned.measured is None else fitted.learned.measured.values
    measured = "".join(f", {name}={number_text(name, value)}" for name, value in values.items())
    return f"{call_of(model)} fitted on {size}{form}{measured}{changed}"


def html_summary(model: Any, fitted: FittedState | None) -> str:
    """Return the parameters for a notebook, and whether they were given or measured."""
    usual = defaults_of(type(model))
    measured = None if fitted is None else fitted.learned.measured
    sources = {} if measured is None else {
        name: "measured" if value != start else "measured, as at the start"
        for name, start, value in measured.choices
    }  # fmt: skip
    parameters = model.parameters if fitted is None else fitted.used_parameters
    given = model.parameters if fitted is None else fitted.parameters
    sources |= {name: "given" for name in given if name not in sources and given[name] != usual[name]}
    rows = [(name, parameter_text(name, parameters[name]), source) for name, source in sources.items()]
    others = len(given) - len(rows)
    notes = [f"{counted(others, 'other parameter')} with the default"] if others else []
    table = Section(["parameter", "value", "which is"], rows)
    return Report([summary(model, fitted)], [table], notes=notes).html()
