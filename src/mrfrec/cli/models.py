"""Models as they are typed: `SLIM`, `SLIM: l1=1`, `dense: l2=6, sparsity=dense`, or a file of parameters."""

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from mrfrec.errors import DataError, ParameterError
from mrfrec.io.atomic import expanded
from mrfrec.saving import MODELS, kind_named, model_class, nearest_kind

if TYPE_CHECKING:
    from mrfrec.evaluation.chooser import Range

__all__ = [
    "Spec",
    "check_machine",
    "numbers",
    "parse_model",
    "parse_models",
    "parse_vary",
    "read_parameters",
    "refuse_option",
    "with_options",
]

_WORDS: dict[str, Any] = {"none": None, "dense": None, "true": True, "false": False, "yes": True, "no": False}


class Spec(NamedTuple):
    """A kind of model and its parameters, with a name for tables."""

    name: str
    kind: str
    parameters: dict[str, Any]


# ── models ────────────────────────────────────────────────────────────────────────────────────────


def parse_model(text: str, file: Path | None = None) -> Spec:
    """`KIND`, or `NAME: parameter=value, …`, where a name that is a kind says of which kind the model is.

    Else `model=KIND` does, or a file of parameters, which may be a part, `NAME: FILE.json, l2=3`; if nothing
    does, it is an MRF. What comes later wins; `file` comes first. Without a name, the text is the name, or
    the file's.
    """
    head, colon, rest = text.partition(":")
    is_named = bool(colon) and "=" not in head and not head.strip().endswith(".json")
    name, what = (head.strip(), rest.strip()) if is_named else ("", text.strip())
    if not is_named and kind_named(what):
        name, what = what, ""
    parts = [part for part in (part.strip() for part in what.replace(";", ",").split(",")) if part]
    kinds = {"its name": kind_named(name)}  # by what says so
    parameters: dict[str, Any] = {}
    if file is not None:
        kinds[str(file)], parameters = read_parameters(file)
    for part in parts:
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if part.endswith(".json") and not equals:
            kinds[part], found = read_parameters(Path(part))
            parameters |= found
            name = name or (Path(part).stem if part == what else "")
        elif not equals or not value:
            near = f"{part}: …" if kind_named(part) else nearest_kind(part)
            rule = "parameter=value, separated by commas, a file of them (.json), or a model such as SLIM"
            raise ParameterError("--model", rule, text, f"Did you mean {near!r}?" if near else "")
        elif key == "model":
            kinds[part] = model_class(value).__name__
        else:
            parameters[key] = _value(value)
    said = {where: kind for where, kind in kinds.items() if kind is not None}
    if len(set(said.values())) > 1:
        each = " and ".join(f"{kind} by {where}" for where, kind in said.items())
        raise ParameterError("--model", "of one kind", text, f"It is {each}.")
    kind = next(iter(said.values()), "MRF")
    _check_name(name, kind, bool(said), parameters, text)
    return Spec(name or what or "MRF", kind, parameters)


def _check_name(name: str, kind: str, is_said: bool, parameters: Mapping[str, Any], text: str) -> None:
    """Help where a name looks like that of a kind and is none, or is one and was meant as a mere name."""
    known = model_class(kind).defaults()
    unknown = [parameter for parameter in parameters if parameter not in known]
    near = None if is_said else nearest_kind(name)
    if unknown and near:
        rule = f"of a kind that knows {unknown[0]}, which MRF does not"
        raise ParameterError("--model", rule, text, f"Did you mean {near}?")
    of_mrf = model_class("MRF").defaults()
    if unknown and kind_named(name) == kind and all(parameter in of_mrf for parameter in parameters):
        rule = f"with parameters of {kind} ({', '.join(known) or 'it has none'})"
        advice = f"{unknown[0]} is one of MRF: name an MRF otherwise than {name}."
        raise ParameterError("--model", rule, text, advice)


def parse_models(texts: Iterable[str]) -> list[Spec]:
    """Several; where two have only one kind for a name, all that was typed is the name of each."""
    specs = [(text.strip(), parse_model(text)) for text in texts]
    names = Counter(spec.name for _, spec in specs)
    return [
        spec._replace(name=text) if text and names[spec.name] > 1 and kind_named(spec.name) else spec
        for text, spec in specs
    ]


def read_parameters(path: Path) -> tuple[str | None, dict[str, Any]]:
    """A kind of model, if it is said, and its parameters, as mrfrec tune writes them."""
    try:
        found = json.loads(expanded(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}.") from error
    except ValueError as error:
        raise DataError(f"{path} is not a file of parameters: {error}.") from error
    if isinstance(found, dict) and "parameters" not in found:
        found = {"parameters": found}
    if not isinstance(found, dict) or not isinstance(found["parameters"], dict):
        raise DataError(f'{path} is not a file of parameters, such as {{"parameters": {{"l2": 6}}}}.')
    if "model" not in found:
        return None, found["parameters"]
    kind = kind_named(str(found["model"]))
    if kind is None:
        raise DataError(f"{path} is for a model {found['model']!r}; this mrfrec knows {', '.join(MODELS)}.")
    return kind, found["parameters"]


# ── options beside them ───────────────────────────────────────────────────────────────────────────


def with_options(spec: Spec, typed: Mapping[str, Any]) -> Spec:
    """A model with options that were typed, which win; one it has no parameter for is refused."""
    for name, value in typed.items():
        refuse_option(spec.kind, name, value)
    parameters = spec.parameters
    if {"sparsity", "threshold"} & typed.keys():  # of the two that decide one thing, the typed one alone
        parameters = {name: x for name, x in parameters.items() if name not in ("sparsity", "threshold")}
    return spec._replace(parameters={**parameters, **typed})


def refuse_option(kind: str, name: str, value: object) -> None:
    """Refuse an option for a parameter that a kind of model does not have."""
    usual = model_class(kind).defaults()
    if name in usual:
        return
    own = [parameter for parameter in usual if parameter not in model_class(kind).machine]
    advice = f"Its own are {', '.join(own)}: --model '{kind}: {own[0]}={usual[own[0]]}'." if own else ""
    option = f"--{name.replace('_', '-')}"
    raise ParameterError(option, f"left out with {kind}, which has no such parameter", value, advice)


def check_machine(machine: Mapping[str, Any], kinds: Iterable[str]) -> None:
    """Refuse what is for autoencoders, where none of the models is one."""
    given = list(kinds)
    for name in ("device", "checkpoint"):
        used = any(name in model_class(kind).defaults() for kind in given)
        if machine.get(name) is not None and not used:
            rule = f"left out with {', '.join(dict.fromkeys(given))}"
            raise ParameterError(f"--{name}", rule, str(machine[name]), "It is for autoencoders: MultVAE.")


def parse_vary(texts: Iterable[str], kind: str) -> "dict[str, list[Any] | Range]":
    """Values of parameters to try, as `l1=0.1,1`, or between which to search, as `l1=0.1..10`."""
    made = model_class(kind)
    known = [name for name in made.defaults() if name not in made.machine]
    found: dict[str, list[Any] | Range] = {}
    for text in texts:
        name, equals, values = (piece.strip() for piece in text.partition("="))
        if not equals or not values:
            raise ParameterError("--vary", "PARAMETER=VALUE,VALUE or PARAMETER=LOW..HIGH", text)
        if name not in known:
            near = get_close_matches(name, known, 1)
            rule = f"of a parameter of {kind} that changes results ({', '.join(known) or 'it has none'})"
            raise ParameterError("--vary", rule, text, f"Did you mean {near[0]}?" if near else "")
        if name in found:
            raise ParameterError("--vary", f"given once for {name}", text)
        found[name] = _values(text, values, made.defaults()[name])
    return found


def _values(text: str, values: str, usual: Any) -> "list[Any] | Range":
    from mrfrec.evaluation.chooser import Range

    low, dots, high = values.partition("..")
    given = [_value(part.strip()) for part in ([low, high] if dots else values.split(","))]
    if dots and not all(type(x) in (int, float) for x in given):
        raise ParameterError("--vary", "PARAMETER=LOW..HIGH with numbers", text)
    if type(usual) is float:
        given = [float(x) if type(x) is int else x for x in given]
    if not dots:
        return list(dict.fromkeys(given))
    try:
        return Range.between(given[0], given[1], whole=type(usual) is int)
    except ParameterError as error:
        raise error.named(f"--vary {text}: the range") from None


def numbers(name: str, text: str | None, words: Mapping[str, Any] | None = None) -> list[Any] | None:
    """Numbers typed as 0.5,0.75; some may be words, such as dense."""
    if text is None:
        return None
    found = []
    for part in text.split(","):
        known = words or {}
        try:
            found.append(known[part.strip()] if part.strip() in known else float(part))
        except ValueError:
            allowed = f"numbers{''.join(f', or {word}' for word in known)}, separated by commas"
            raise ParameterError(name, allowed, text) from None
    return list(dict.fromkeys(found))


def _value(text: str) -> Any:
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            pass
    return text.strip("\"'")
