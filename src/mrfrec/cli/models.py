"""Parse models on the command line: `EASE`, `EASE: l2=100`, `dense: l2=6, sparsity=dense`, `best.json`."""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from mrfrec.checks import in_words
from mrfrec.cli.derived import parse_value
from mrfrec.errors import DataError, ParameterError
from mrfrec.io.atomic import expanded
from mrfrec.models.mrf.parameters import PAPER
from mrfrec.models.recommender import Recommender
from mrfrec.models.registry import MODELS, build, kind_named, model_class, nearest_kind


class Spec(NamedTuple):
    """A model as typed: its name in tables, its kind and its parameters."""

    name: str
    kind: str
    parameters: dict[str, Any]


def only_model(texts: Sequence[str] | None) -> str:
    """Return the model of a command that takes one, or "" if none was typed."""
    if texts and len(texts) > 1:
        raise ParameterError("--model", "given once", in_words(texts), "mrfrec compare takes several.")
    if texts and not texts[0].strip():
        raise ParameterError("--model", "a model such as EASE, or left out", texts[0])
    return texts[0] if texts else ""


def parse_model(text: str, file: Path | None = None) -> Spec:
    """Parse `KIND`, or `NAME: part, part, …`: `parameter=value`, `model=KIND`, `preset=paper`, `FILE.json`.

    The kind of model is given by a name that is one, by `model=KIND` or by a file; it is MRF by default.
    Later parts override earlier ones, and `file` comes first. The name defaults to the text, or to that of a
    file alone.
    """
    head, colon, rest = text.partition(":")
    is_named = bool(colon) and "=" not in head and not head.strip().endswith(".json")
    name, what = (head.strip(), rest.strip()) if is_named else ("", text.strip())
    if not is_named and kind_named(what):
        name, what = what, ""
    parts: list[tuple[str | None, Mapping[str, Any]]] = [(kind_named(name), {})]
    if file is not None:
        parts.append(read_parameters(file))
    for part in filter(None, (part.strip() for part in what.split(","))):
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if part.endswith(".json") and not equals:
            parts.append(read_parameters(Path(part)))
            name = name or (Path(part).stem if part == what else "")
        elif not equals or not value or " " in key:
            rule = "a model such as 'EASE: l2=100', a file of parameters (.json), or parameter=value, …"
            near = nearest_kind(part)
            raise ParameterError("--model", rule, text, f"Did you mean {near!r}?" if near else "")
        elif part == "preset=paper":
            parts.append(("MRF", PAPER))
        elif key == "model":
            parts.append((model_class(value).__name__, {}))
        else:
            parts.append((None, {key: parse_value(value)}))
    kinds = {kind for kind, _ in parts if kind is not None}
    if len(kinds) > 1:
        raise ParameterError("--model", f"of one kind, not {in_words(sorted(kinds))}", text)
    parameters = {key: x for _, values in parts for key, x in values.items()}
    return Spec(name or what or "MRF", next(iter(kinds), "MRF"), parameters)


def read_parameters(path: Path) -> tuple[str | None, dict[str, Any]]:
    """Read a file written by mrfrec tune: the kind of model, None if it is not given, and parameters."""
    content = read_object(path)
    if not isinstance(content.get("parameters"), dict):
        raise DataError(f'{path} is not a file of parameters, such as {{"parameters": {{"l2": 6}}}}.')
    kind = model_class(content["model"]).__name__ if "model" in content else None
    return kind, content["parameters"]


def read_object(path: Path) -> dict[str, Any]:
    """Read a JSON object with parameters in it."""
    try:
        content = json.loads(expanded(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}.") from error
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path} is not a file of parameters: {error}.") from error
    if not isinstance(content, dict):
        raise DataError(f"{path} is not a file of parameters: it holds no JSON object.")
    return content


def make_models(specs: Sequence[Spec], machine: Mapping[str, Any]) -> list[Recommender]:
    """Build models that can be trained on this machine."""
    check_machine(machine, [spec.kind for spec in specs])
    made = [build(spec.kind, spec.parameters, machine) for spec in specs]
    for each in made:
        each.check_ready()
    return made


def with_options(spec: Spec, typed: Mapping[str, Any]) -> Spec:
    """Override parameters by options that were typed."""
    return spec._replace(parameters={**spec.parameters, **typed})


def check_machine(machine: Mapping[str, Any], kinds: Iterable[str]) -> None:
    """Refuse machine options that none of the models has."""
    used = list(dict.fromkeys(kinds))
    having = [kind for kind in MODELS if "device" in model_class(kind).defaults()]
    if machine.get("device") is not None and not set(used) & set(having):
        rule = f"left out with {', '.join(used)}"
        raise ParameterError("--device", rule, str(machine["device"]), f"It is for {', '.join(having)}.")


def parse_space(texts: Iterable[str]) -> dict[str, Any]:
    """Parse what a tuning varies: `l2=1:1000:log`, `sparsity=dense,0.01`, or `novelty=no`."""
    space: dict[str, Any] = {}
    for text in texts:
        name, _, typed = (part.strip() for part in text.partition("="))
        if not typed or name in space:
            raise ParameterError("--vary", "NAME=LOW:HIGH or NAME=VALUE,VALUE, once for each name", text)
        is_range = ":" in typed
        values = [parse_value(part.strip()) for part in typed.split(":" if is_range else ",")]
        space[name] = None if typed == "no" else tuple(values) if is_range else list(dict.fromkeys(values))
    return space
