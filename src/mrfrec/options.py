"""Options, each written once: a field with its type, its limits, its default and a sentence.

From the field come the check, the help of the command line, the fields of the API and the keys of a job.

    class Slices(Options):
        thickness: Annotated[float, USUAL] = Field(1.0, gt=0, description="Thickness in millimetres.")
"""

from collections.abc import Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from numbers import Integral, Real
from types import NoneType
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Self, get_args, get_origin

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError
from pydantic.fields import FieldInfo

from mrfrec.checks import in_words
from mrfrec.errors import MrfrecError, ParameterError

_PLAIN = {int, float, bool, str, NoneType, dict, list, tuple}


class Shell(NamedTuple):
    """How the command line shows an option, beside its type: `Annotated[int, Shell("-k", usual=True)]`."""

    flags: str = ""
    """Its spelling, if it is not that of the field: "-o --output"."""
    value: str = ""
    """The word for its value, if the type does not tell: "METRIC"."""
    usual: bool = False
    """Whether `--help` shows it; `--help-all` shows all options."""
    argument: bool = False
    """Whether it is given without a name."""
    group: str = ""
    """The heading above it in the help, if it is not that of its class."""


USUAL = Shell(usual=True)
_LIMITS = ("ge", "gt", "le", "lt")


def _fits(number: int) -> int:
    if not -(2**63) <= number < 2**63:
        raise ParameterError("", "a whole number of 64 bits", number)
    return number


Whole = Annotated[int, AfterValidator(_fits)]
"""A whole number that arrays can hold."""


class Options(BaseModel):
    """A frozen set of options."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)
    group: ClassVar[str] = "Options"
    """The heading above these options in the help of the command line."""

    @classmethod
    def of(cls, **given: Any) -> Self:
        """Return options; raise a `ParameterError` that names a wrong one, the rule and the value.

        Numbers of numpy become plain ones; nothing else is converted.
        """
        with refusing(cls):
            return cls(**plain(given))


@contextmanager
def refusing(options: type[BaseModel]) -> Iterator[None]:
    """Raise the first error of pydantic as one of ours."""
    try:
        yield
    except ValidationError as error:
        raise refusal(error.errors(include_url=False)[0], options) from None


def plain(given: dict[str, Any]) -> dict[str, Any]:
    """Return values with plain numbers in place of the numbers and flags of numpy."""
    return {name: x if type(x) in _PLAIN else _plain(x) for name, x in given.items()}


def _plain(value: Any) -> Any:
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):
        return float(value)
    return bool(value) if type(value).__name__ == "bool" else value


def same_field(options: type[BaseModel], name: str, **changes: Any) -> Any:
    """Return the default and the sentence of a field for a field of another class, with further limits."""
    field = options.model_fields[name]
    limits = {limit: x for limit in _LIMITS for x in [_limit(field, limit)] if x is not None}
    return Field(default=field.default, description=field.description, **{**limits, **changes})


def _limit(field: FieldInfo, name: str) -> Any:
    return next((getattr(each, name) for each in field.metadata if hasattr(each, name)), None)


def values_of(options: BaseModel, kind: type[BaseModel] | None = None) -> dict[str, Any]:
    """Return the values of all options by name, or of the fields of `kind`."""
    return {name: getattr(options, name) for name in (kind or type(options)).model_fields}


def own_errors(error: ValidationError) -> list[MrfrecError]:
    """Return the errors that our own checks have raised."""
    reasons = (
        one.get("ctx", {}).get("error") for one in error.errors(include_url=False, include_input=False)
    )
    return [reason for reason in reasons if isinstance(reason, MrfrecError)]


def refusal(fault: Any, options: type[BaseModel]) -> MrfrecError:
    """Turn an error of pydantic into ours, which names the option, the rule and the value."""
    reason = fault.get("ctx", {}).get("error")
    name = ".".join(map(str, fault["loc"]))
    if isinstance(reason, ParameterError) and not reason.name:
        return reason.named(name)
    if isinstance(reason, MrfrecError):
        return reason
    if fault["type"] == "extra_forbidden":
        near = get_close_matches(name, options.model_fields, 1)
        rule = f"one of {', '.join(options.model_fields)}"
        return ParameterError("the option", rule, name, f"Did you mean {near[0]}?" if near else "")
    field = options.model_fields.get(str(fault["loc"][0]))
    rule = rule_of(field) if field is not None and len(fault["loc"]) == 1 else ""
    return ParameterError(name, rule or fault["msg"].lower(), fault["input"])


def rule_of(field: FieldInfo) -> str:
    """Return what a value must be, in words, by the type and the limits of its field; "" for other types."""
    parts = get_args(field.annotation) or (field.annotation,)
    kinds = [field.annotation] if get_origin(field.annotation) is Literal else list(parts)
    first = next((kind for kind in kinds if kind is not NoneType), None)
    least, above, most, below = (_limit(field, limit) for limit in _LIMITS)
    if get_origin(first) is Literal:
        words = [*(f'"{word}"' for word in get_args(first)), *(["None"] if NoneType in kinds else [])]
        return in_words(words, "or")
    if first is bool:
        return "True or False"
    if first is str:
        return "a text"
    if first not in (int, float):
        return ""
    if least is not None and most is not None:
        return f"between {least} and {most}"
    if above is not None:
        return f"above {above}" + ("" if below is None else f" and below {below}")
    number = "a whole number" if first is int else "a finite number"
    return number if least is None else f"{number}, {least} or more"
