"""Make the options of commands from their signatures, and from the parameters of the library.

An option of a command is a parameter `Annotated[type, help]`, or `Annotated[type, word, help]` with a word
for its value. A parameter that is a dataclass holds several: its fields.

A parameter that is `Derived` holds options of the library. Those of a dataclass are its fields, with their
metadata. Those of a function or class are the parameters of its signature that have a default, with the first
sentence of the docstring about each.
"""

import ast
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import is_dataclass
from datetime import date, timedelta
from functools import cache, partial
from inspect import Parameter, Signature, getdoc, signature
from operator import itemgetter
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

from typer import Option

from mrfrec.errors import ParameterError
from mrfrec.options import Options

# Options that are not spelled as the parameter of the command, or of the library.
_OWN = {"k": "-k", "output": "-o --output", "best": "-o --output", "form": "--format", "source": "--from"}
_OWN |= {"all_users": "--all", "all_items": "--all"}
_SPELLED = {role: f"--{role}-column" for role in ("user", "item", "value", "title", "event", "time")}
_SPELLED |= {"binary": "--binary/--values", "exclude_seen": "--exclude-seen/--seen", "k": "-k"}
_SPELLED |= {"origins": "--cors", "hosts": "--allowed-hosts"}
_METAVARS: dict[Any, str] = {int: "N", float: "X", Path: "FILE", object: "FILE", timedelta: "TIME"}
_METAVARS |= {date: "TIME", Mapping: "LIST", Sequence: "NAMES", Iterable: "ITEMS"}
_VALUES = {"where": "SQL", "measure": "METRIC"}  # whose types do not tell
_WORDS: dict[str, Any] = {"none": None, "dense": None, "true": True, "false": False, "yes": True, "no": False}


class Declared(NamedTuple):
    """A parameter as it is declared."""

    name: str
    kind: Any  # its annotation
    default: Any
    help: str  # a sentence


class Derived(NamedTuple):
    """Marks a parameter of a command: it holds the typed options for a function of the library, by name."""

    source: Callable[..., Any]  # a function or class
    only: tuple[str, ...] = ()  # of its parameters; all if empty
    without: tuple[str, ...] = ()
    shows_defaults: bool = True

    def declared(self) -> list[Declared]:
        every = parameters_of(self.source)
        return [every[name] for name in self.only or every if name not in self.without]

    def options(self) -> list[Parameter]:
        """Return the options as parameters of a command, with names that its own do not have."""
        made = []
        for each in self.declared():
            kind, metavar, _ = _typed(each)
            help_ = _in_shell_words(each.help)
            if self.shows_defaults and each.default is not False and each.default not in (None, "", ()):
                usual = each.default
                if usual is True:
                    usual = each.name.replace("_", "-") if kind is bool else "yes"
                help_ += f"  [default: {usual}]"
            name = f"{each.name}_"
            option = _SPELLED.get(each.name, _dashed(name.removesuffix("_")))
            if kind is bool and "/" not in option and each.default is not False:
                option += f"/--no-{option.removeprefix('--')}"
            made.append(_parameter(name, kind | None, option, metavar, help_, None))
        return made

    def take(self, options: dict[str, Any]) -> dict[str, Any]:
        """Return the values of those of these options that were typed."""
        values = [(each, options[f"{each.name}_"]) for each in self.declared()]
        return {each.name: _typed(each)[2](value) for each, value in values if value is not None}


@cache
def parameters_of(source: Any) -> Mapping[str, Declared]:
    """Return the parameters of a function or class that have a default, or the fields of a dataclass."""
    if isinstance(source, type) and issubclass(source, Options):
        return {
            name: Declared(name, field.annotation, field.default, field.description or "")
            for name, field in source.model_fields.items()
        }
    helps = _sentences(getdoc(source))
    kinds = get_type_hints(vars(source).get("__init__", source))
    optional = [each for each in signature(source).parameters.values() if each.default is not Parameter.empty]
    return {x.name: Declared(x.name, kinds[x.name], x.default, helps[x.name]) for x in optional}


def _sentences(docstring: str | None) -> dict[str, str]:
    """Return the first sentence about each parameter, from a docstring with numpy's sections."""
    section = re.split(r"^(?:Returns|Attributes)\n-+\n", docstring or "", flags=re.MULTILINE)[0]
    sentences = {}
    for name, text in re.findall(r"^(\w+)\n((?:[ ]+.*\n?)+)", section, re.MULTILINE):
        sentence = re.split(r'(?<=[.])\s+(?=[A-Z"`0-9λ])', text.strip())[0]
        sentences[name] = " ".join(sentence.split())
    return sentences


def _typed(declared: Declared) -> tuple[Any, str | None, Callable[[Any], Any]]:
    """Return the type of an option, the word for its value, and how the value is converted."""
    kinds = get_args(declared.kind) if get_origin(declared.kind) in (Union, UnionType) else [declared.kind]
    first, *others = [kind for kind in kinds if kind is not NoneType]
    origin = get_origin(first)
    if first is bool and not others:
        return bool, None, bool
    if origin is Literal:
        return first, None, str
    words = [
        _VALUES.get(declared.name),
        *(_METAVARS.get(get_origin(kind) or kind) for kind in (first, *others)),
    ]
    metavar = next(filter(None, words), "NAME" if declared.name in _SPELLED else "TEXT")
    if first is bool:  # or yes, no and other words
        return str, metavar, parse_value
    if first in (int, float) and not others:
        return first, metavar, lambda x: x
    if first in (int, float):  # or a word, such as auto or 8GB
        return str, "SIZE" if str in others else metavar, parse_value
    if first is str and bool in others:  # or no, for none
        return str, metavar, lambda text: False if _WORDS.get(text.lower(), text) is False else text
    if first is str and any(get_origin(kind) is Literal for kind in others):  # or a word, such as none
        return str, metavar, lambda text: _WORDS.get(text.lower(), text)
    if origin is Iterable:
        return list[str], metavar, list
    if origin is tuple:
        return list[str], "NAMES", lambda texts: tuple(name for text in texts for name in _names(text))
    if declared.name == "separator":
        return str, metavar, lambda text: text.replace("\\t", "\t")
    if origin is Mapping:
        return str, metavar, partial(parse_weights, declared.name)
    return str, metavar, _names if origin is Sequence else str


def _names(typed: str) -> list[str]:
    return [name.strip() for name in typed.split(",")]


def parse_weights(name: str, text: str) -> dict[str, Any]:
    """Parse a=1,b=2 with values that should be numbers, which the library checks."""
    return {key: parse_value(value) for key, value in parse_pairs(name, text).items()}


def parse_pairs(name: str, text: str) -> dict[str, str]:
    """Parse a=1,b=2."""
    pairs = [[side.strip() for side in part.rpartition("=")[::2]] for part in text.split(",")]
    values = {key: value for key, value in pairs if key and value}
    if len(values) < len(pairs):
        raise ParameterError(name, "pairs such as a=1,b=2, with each name once", text)
    return values


def parse_value(text: str) -> Any:
    """Parse a number or a word such as dense; leave other texts as they are."""
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    for kind in (int, float):
        with suppress(ValueError):
            return kind(text)
    return text.strip("\"'")


def _in_shell_words(sentence: str) -> str:
    """Return a sentence of help with options in place of parameters, and values as they are typed."""
    text = re.sub(r"`(\w+)`", lambda name: _dashed(name[1]), sentence)
    text = text.replace("False", "no").replace("None", "none")
    for literal in re.findall(r"\{\".*?\}|\[\".*?\]", text):
        value = ast.literal_eval(literal)
        words = [f"{key}={x}" for key, x in value.items()] if isinstance(value, dict) else value
        text = text.replace(literal, ",".join(words))
    return re.sub(r'"([^" ]+)"', r"\1", text)


# ── commands ──────────────────────────────────────────────────────────────────────────────────────


def takes_options(command: Callable[..., None]) -> Callable[..., None]:
    """Return a command for typer, with a parameter for each option."""
    options, call = _options_of(command)

    def typed(**values: Any) -> None:
        call(values)

    typed.__name__, typed.__doc__ = command.__name__, command.__doc__
    typed.__signature__ = Signature(options)  # type: ignore[attr-defined]
    typed.__annotations__ = {each.name: each.annotation for each in options}
    return typed


def _options_of(made: Callable[..., Any]) -> tuple[list[Parameter], Callable[[dict[str, Any]], Any]]:
    """Return the options of a command or a dataclass, and a function that calls it with their values."""
    hints = get_type_hints(made, include_extras=True)
    options: list[Parameter] = []
    takes: dict[str, Callable[[dict[str, Any]], Any]] = {}
    for name, each in signature(made).parameters.items():
        hint, takes[name] = hints[name], itemgetter(name)
        mark = getattr(hint, "__metadata__", (None,))[0]
        if isinstance(mark, Derived):
            more, takes[name] = mark.options(), mark.take
        elif is_dataclass(hint):
            more, takes[name] = _options_of(hint)  # type: ignore[arg-type]
        elif isinstance(mark, str):
            kind, *words, help_ = get_args(hint)
            words += [_METAVARS[x] for x in (kind, *get_args(kind)) if x in (int, float, Path)]
            option = _OWN.get(name, _dashed(name))
            more = [_parameter(name, kind, option, next(iter(words), None), help_, each.default)]
        else:  # the context, or an argument
            more = [each.replace(kind=Parameter.KEYWORD_ONLY, annotation=hint)]
        options += more
    return options, lambda values: made(**{name: take(values) for name, take in takes.items()})


def _parameter(
    name: str, kind: Any, option: str, metavar: str | None, help_: str, default: object
) -> Parameter:
    annotation = Annotated[kind, Option(*option.split(), metavar=metavar, help=help_)]
    return Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _dashed(name: str) -> str:
    return f"--{name.replace('_', '-')}"
