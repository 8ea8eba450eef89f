"""Parse models on the command line: `SLIM`, `SLIM: l1=1`, `dense: l2=6, sparsity=dense`, `best.json`."""

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from mrfrec.checks import check_count
from mrfrec.cli.derived import parse_value
from mrfrec.engines.machine import parse_bytes
from mrfrec.errors import DataError, ParameterError
from mrfrec.io.atomic import expanded
from mrfrec.models.mrf import PAPER
from mrfrec.models.registry import MODELS, build, kind_named, model_class, nearest_kind

if TYPE_CHECKING:
    from mrfrec.models.axes import Range
    from mrfrec.models.recommender import Recommender


class Spec(NamedTuple):
    """A model as typed: its name in tables, its kind and its parameters."""

    name: str
    kind: str
    parameters: dict[str, Any]
    sources: dict[str, str]  # how errors name each parameter, such as "best.json: l2"


# ── models ────────────────────────────────────────────────────────────────────────────────────────


def only(texts: Sequence[str] | None) -> str:
    """Return the model of a command that takes one, or "" if none was typed."""
    if texts and len(texts) > 1:
        raise ParameterError("--model", "given once", " and ".join(texts), "mrfrec compare takes several.")
    return _something(texts[0]) if texts else ""


def _something(text: str) -> str:
    if not text.strip():
        raise ParameterError("--model", "a model such as SLIM, or left out", text)
    return text


def parse_model(text: str, file: Path | None = None, option: str = "--model") -> Spec:
    """Parse `KIND`, or `NAME: part, part, …`: `parameter=value`, `model=KIND`, `preset=paper`, `FILE.json`.

    The kind of model is given by a name that is one, by `model=KIND` or by a file; it is MRF by default.
    Later parts override earlier ones, and `file` comes first. The name defaults to the text, or to that of a
    file alone. `option` is the option that was typed.
    """
    head, colon, rest = text.partition(":")
    is_named = bool(colon) and "=" not in head and not head.strip().endswith(".json")
    name, what = (head.strip(), rest.strip()) if is_named else ("", text.strip())
    if not is_named and kind_named(what):
        name, what = what, ""
    parts = [part for part in (part.strip() for part in what.replace(";", ",").split(",")) if part]
    kinds = {"its name": kind_named(name)}  # by where the kind was given
    parameters: dict[str, Any] = {}
    sources: dict[str, str] = {}

    def take(where: str, given: Mapping[str, Any]) -> None:
        parameters.update(given)
        sources.update({key: f"{where}: {key}" for key in given})

    if file is not None:
        kinds[str(file)], found = read_parameters(file)
        take(str(file), found)
    for part in parts:
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if part.endswith(".json") and not equals:
            kinds[part], found = read_parameters(Path(part))
            take(part, found)
            name = name or (Path(part).stem if part == what else "")
        elif not equals or not value or " " in key:
            rule = "a model such as 'SLIM: l1=1', a file of parameters (.json), or parameter=value, …"
            near = nearest_kind(part)
            raise ParameterError(option, rule, text, f"Did you mean {near!r}?" if near else "")
        elif key == "preset":
            if value != "paper":
                raise ParameterError(option, "with preset=paper, the paper's parameters of MRF", text)
            kinds[part] = "MRF"
            take(f"{option} {text!r}", PAPER)
        elif key == "model":
            try:
                kinds[part] = model_class(value).__name__
            except ParameterError as error:
                raise error.named(option) from None
        else:
            take(f"{option} {text!r}", {key: parse_value(value)})
    said = {where: kind for where, kind in kinds.items() if kind is not None}
    if len(set(said.values())) > 1:
        each = " and ".join(f"{kind} by {where}" for where, kind in said.items())
        raise ParameterError(option, "of one kind", text, f"It is {each}.")
    spec = Spec(name or what or "MRF", next(iter(said.values()), "MRF"), parameters, sources)
    known = model_class(spec.kind).defaults()
    for parameter in (key for key in parameters if key not in known):
        near = None if said else nearest_kind(name)
        if near:  # the name may be a misspelt kind
            rule = f"of a kind that knows {parameter}, which MRF does not"
            raise ParameterError(option, rule, text, f"Did you mean {near}?")
        raise DataError(_unknown(spec, parameter))
    return spec


def _unknown(spec: Spec, parameter: str) -> str:
    """Say that a model has no such parameter, and suggest one with a similar name."""
    known = list(model_class(spec.kind).defaults())
    where = spec.sources[parameter].removesuffix(f": {parameter}")
    near = get_close_matches(parameter, known, 1)
    message = f"{where}: {spec.kind} has no parameter {parameter} (it has {', '.join(known) or 'none'})."
    return message + (f" Did you mean {near[0]}?" if near else "")


def parse_models(texts: Iterable[str]) -> list[Spec]:
    """Parse several models; models that would share the name of a kind get the typed text as name."""
    specs = [(text.strip(), parse_model(_something(text))) for text in texts]
    names = Counter(spec.name for _, spec in specs)
    return [
        spec._replace(name=text) if names[spec.name] > 1 and kind_named(spec.name) else spec
        for text, spec in specs
    ]


def read_parameters(path: Path) -> tuple[str | None, dict[str, Any]]:
    """Read a file written by mrfrec tune: the kind of model, None if it is not given, and parameters."""
    try:
        content = json.loads(expanded(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}.") from error
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path} is not a file of parameters: {error}.") from error
    if isinstance(content, dict) and "parameters" not in content:
        kind_alone = {"model": content.pop("model")} if "model" in content else {}
        content = {**kind_alone, "parameters": content}
    if not isinstance(content, dict) or not isinstance(content["parameters"], dict):
        raise DataError(f'{path} is not a file of parameters, such as {{"parameters": {{"l2": 6}}}}.')
    if "model" not in content:
        return None, content["parameters"]
    kind = kind_named(str(content["model"]))
    if kind is None:
        raise DataError(f"{path} is for a model {content['model']!r}; this mrfrec knows {', '.join(MODELS)}.")
    return kind, content["parameters"]


def make(spec: Spec, machine: Mapping[str, Any]) -> "Recommender":
    """Build a model that can be trained on this machine; errors say where a parameter was given."""
    try:
        made = build(spec.kind, spec.parameters, machine)
        made.check_ready()
    except ParameterError as error:
        if machine.get(error.name) is not None:
            raise error.named(_option(error.name)) from None
        raise error.named(spec.sources.get(error.name, error.name)) from None
    return made


# ── options beside them ───────────────────────────────────────────────────────────────────────────


def with_options(spec: Spec, typed: Mapping[str, Any]) -> Spec:
    """Override parameters by options that were typed; refuse options that the model does not have."""
    for name, value in typed.items():
        refuse_option(spec.kind, name, value)
    parameters = spec.parameters
    if {"sparsity", "threshold"} & typed.keys():  # these exclude each other: keep the typed one only
        parameters = {name: x for name, x in parameters.items() if name not in ("sparsity", "threshold")}
    sources = {**spec.sources, **{name: _option(name, value) for name, value in typed.items()}}
    return spec._replace(parameters={**parameters, **typed}, sources=sources)


def _option(name: str, value: object = None) -> str:
    return f"--{'no-' if value is False else ''}{name.replace('_', '-')}"


def refuse_option(kind: str, name: str, value: object) -> None:
    """Refuse an option that a kind of model has no parameter for."""
    usual = model_class(kind).defaults()
    if name in usual:
        return
    own = [parameter for parameter in usual if parameter not in model_class(kind).machine_parameters]
    advice = f"Its own are {', '.join(own)}: --model '{kind}: {own[0]}={usual[own[0]]}'." if own else ""
    typed = True if isinstance(value, bool) else value  # a flag has no value of its own
    rule = f"left out with {kind}, which has no such parameter"
    raise ParameterError(_option(name, value), rule, typed, advice)


def check_machine(machine: Mapping[str, Any], kinds: Iterable[str]) -> None:
    """Check machine options, also if the models ignore them; refuse options that none of the models has."""
    if machine.get("threads") is not None:
        check_count("--threads", machine["threads"])
    if machine.get("memory_limit") is not None:
        parse_bytes(machine["memory_limit"])
    given = list(dict.fromkeys(kinds))
    having = [kind for kind in MODELS if "device" in model_class(kind).defaults()]
    if machine.get("device") is not None and not set(given) & set(having):
        rule, advice = f"left out with {', '.join(given)}", f"It is for {', '.join(having)}."
        raise ParameterError("--device", rule, str(machine["device"]), advice)


def parse_vary(texts: Iterable[str], spec: Spec, *, searched: bool) -> dict[str, Any]:
    """Parse the values that a tuning tries, and check each together with the parameters of `spec`.

    `texts` are those of --vary: `l1=0.1,1` for values, `l1=0.1..10` for a range.
    """
    from mrfrec.evaluation.grids import check_values
    from mrfrec.models.axes import Range

    cls = model_class(spec.kind)
    defaults = cls.defaults()
    known = [name for name in defaults if name not in cls.machine_parameters]
    varied: dict[str, Any] = {}
    for text in texts:
        name, equals, values = (part.strip() for part in text.partition("="))
        if not equals or not values:
            raise ParameterError("--vary", "PARAMETER=VALUE,VALUE or PARAMETER=LOW..HIGH", text)
        if name not in known:
            near = get_close_matches(name, known, 1)
            rule = f"of a parameter of {spec.kind} that changes results ({', '.join(known) or 'it has none'})"
            raise ParameterError("--vary", rule, text, f"Did you mean {near[0]}?" if near else "")
        if name in varied:
            raise ParameterError("--vary", f"the only option that varies {name}", text)
        if name in spec.parameters:
            fixed = f"{name}={spec.parameters[name]}"
            raise ParameterError("--model", f"without {name} when --vary {text} is given", fixed)
        varied[name] = _values(text, values, defaults[name])
        if isinstance(varied[name], Range) and not searched:
            raise ParameterError("--vary", "a list of values", text, "Ranges need --method search.")
        try:
            check_values(spec.kind, name, varied[name], spec.parameters)
        except ParameterError as error:
            raise error.named(f"--vary {text}: {error.name}") from None
    return varied


def _values(text: str, values: str, default: Any) -> "list[Any] | Range":
    from mrfrec.models.axes import Range

    low, dots, high = values.partition("..")
    parsed = [parse_value(part.strip()) for part in ([low, high] if dots else values.split(","))]
    if dots and not all(type(x) in (int, float) for x in parsed):
        raise ParameterError("--vary", "a range of numbers, as 0.1..10", text)
    if type(default) is float:
        parsed = [float(str(x)) if type(x) is int else x for x in parsed]  # of many digits: infinite
    if not dots:
        return list(dict.fromkeys(parsed))
    try:
        return Range.between(parsed[0], parsed[1], whole=type(default) is int)
    except ParameterError as error:
        raise error.named(f"--vary {text}: the range") from None


def numbers(option: str, text: str | None) -> list[float] | None:
    """Parse numbers separated by commas, such as 0.5,0.75; None if the option was left out."""
    if text is None:
        return None
    try:
        found = list(dict.fromkeys(float(part) for part in text.split(",")))
    except ValueError:
        found = [math.nan]
    if not all(map(math.isfinite, found)):
        raise ParameterError(option, "finite numbers, separated by commas", text)
    return found
