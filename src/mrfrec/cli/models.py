"""Models as they are typed: `dense: l2=6, sparsity=dense`, or a file of parameters."""

import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from mrfrec.errors import DataError, ParameterError
from mrfrec.io.atomic import expanded

__all__ = ["Spec", "merged", "numbers", "parse_model", "read_parameters"]

_WORDS: dict[str, Any] = {"none": None, "dense": None, "true": True, "false": False, "yes": True, "no": False}


class Spec(NamedTuple):
    """A kind of model and its parameters, with a name for tables."""

    name: str
    kind: str
    parameters: dict[str, Any]


def parse_model(text: str, machine: Mapping[str, Any] | None = None) -> Spec:
    """`NAME: parameter=value, …`, of which a part may be a file of parameters, `NAME: FILE.json, l2=3`.

    What comes later wins. Without a name, the text is the name, or the file's. `machine` are parameters that
    do not come from there, such as threads.
    """
    head, colon, rest = text.partition(":")
    is_named = bool(colon) and "=" not in head and not head.strip().endswith(".json")
    name, what = (head.strip(), rest.strip()) if is_named else ("", text.strip())
    kind: str = "MRF"
    parameters: dict[str, Any] = {}
    for part in filter(None, (part.strip() for part in what.replace(";", ",").split(","))):
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if part.endswith(".json") and not equals:
            kind, found = read_parameters(Path(part))
            parameters |= found
            name = name or (Path(part).stem if part == what else "")
        elif not equals or not value:
            raise ParameterError(
                "--model", "parameter=value, separated by commas, or a file of them (.json)", text
            )
        else:
            parameters[key] = _value(value)
    return Spec(name or what or "MRF", kind, {**parameters, **(machine or {})})


def read_parameters(path: Path) -> tuple[str, dict[str, Any]]:
    """A kind of model and its parameters, as mrfrec tune writes them."""
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
    return str(found.get("model", "MRF")), found["parameters"]


def merged(
    options: Mapping[str, Any], typed: Collection[str], path: Path | None
) -> tuple[str, dict[str, Any]]:
    """A kind of model and its parameters: out of a file, but for the options that were typed."""
    kind, found = ("MRF", {}) if path is None else read_parameters(path)
    if {"sparsity", "threshold"} & set(typed):  # of the two that decide one thing, the typed one alone
        found = {name: value for name, value in found.items() if name not in ("sparsity", "threshold")}
    return kind, {**options, **found, **{name: options[name] for name in typed}}


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
