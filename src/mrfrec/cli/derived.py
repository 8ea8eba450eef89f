"""Make the options of commands from classes of options, and from the parameters of models.

A parameter of a command is either a class of options, whose instance the command gets, or `Derived` from a
class of the library: then the command gets the typed values by name. A field says the sentence, the default
and the group of an option, and whether `--help` shows it. The docstring of a model says the same of its
parameters: `--help` shows the section Parameters, and only `--help-all` the section Other Parameters.
"""

import ast
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import date, timedelta
from functools import cache, partial
from inspect import Parameter, Signature, getdoc, signature
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

from typer import Argument, Option

from mrfrec.errors import ParameterError
from mrfrec.options import Options, Shell

_METAVARS: dict[Any, str] = {int: "N", float: "X", Path: "FILE", object: "FILE", timedelta: "TIME"}
_METAVARS |= {date: "TIME", Mapping: "LIST", Sequence: "NAMES", Iterable: "ITEMS"}
_WORDS: dict[str, Any] = {"none": None, "dense": None, "true": True, "false": False, "yes": True, "no": False}


class Declared(NamedTuple):
    """An option as it is declared."""

    name: str
    kind: Any
    """Its annotation."""
    default: Any
    """The default, `Parameter.empty` for none."""
    help: str
    group: str
    shell: Shell


class Derived(NamedTuple):
    """Marks a parameter of a command: it holds the typed options for a class of the library, by name."""

    source: type
    only: tuple[str, ...] = ()
    """Names of some options; all if empty."""
    without: tuple[str, ...] = ()
    shows_defaults: bool = True
    group: str = ""
    is_usual: bool = True
    """Whether `--help` shows any of them."""
    mark: str = "_"
    """What the names of these parameters of a command end with."""

    def declared(self) -> list[Declared]:
        every = declared_by(self.source)
        names = [name for name in self.only or every if name not in self.without]
        made = [every[name]._replace(group=self.group or every[name].group) for name in names]
        return (
            made
            if self.is_usual
            else [each._replace(shell=each.shell._replace(usual=False)) for each in made]
        )

    def options(self) -> list[Parameter]:
        """Return the options as parameters of a command."""
        return [_option(each, each.name + self.mark, self.shows_defaults) for each in self.declared()]

    def take(self, values: dict[str, Any]) -> dict[str, Any]:
        """Return the values of the options that were typed."""
        typed = [(each, values[each.name + self.mark]) for each in self.declared()]
        return {each.name: _typed(each)[2](value) for each, value in typed if value not in (None, [])}


@cache
def declared_by(source: type) -> Mapping[str, Declared]:
    """Return the fields of a class of options, or the parameters of a constructor."""
    if issubclass(source, Options):
        return {name: _field(source, name) for name in source.model_fields}
    parameters, _, others = (getdoc(source) or "").partition("Other Parameters\n")
    usual = _sentences(parameters)
    sentences = {**usual, **_sentences(others.partition("Attributes\n")[0])}
    kinds = get_type_hints(vars(source)["__init__"])
    defaults = {name: each.default for name, each in signature(source).parameters.items()}
    return {
        name: Declared(name, kinds[name], defaults[name], text, "Model", Shell(usual=name in usual))
        for name, text in sentences.items()
        if name in defaults
    }


def _field(source: type[Options], name: str) -> Declared:
    field = source.model_fields[name]
    default = Parameter.empty if field.is_required() else field.default
    home: Any = next(each for each in source.__mro__ if name in vars(each).get("__annotations__", {}))
    shell = next((each for each in field.metadata if isinstance(each, Shell)), Shell())
    return Declared(
        name, field.annotation, default, field.description or "", shell.group or home.group, shell
    )


def _sentences(docstring: str) -> dict[str, str]:
    """Return the first sentence about each parameter, from a section as numpy's."""
    sentences = {}
    for name, text in re.findall(r"^(\w+)\n((?:[ ]+.*\n?)+)", docstring, re.MULTILINE):
        sentence = re.split(r'(?<=[.])\s+(?=[A-Z"`0-9λ])', text.strip())[0]
        sentences[name] = " ".join(sentence.split())
    return sentences


def _option(each: Declared, name: str, shows_default: bool) -> Parameter:
    """Return a parameter as typer reads it. Its default is None: the library has the real one."""
    kind, metavar, _ = _typed(each)
    metavar = each.shell.value or metavar
    help_ = _in_shell_words(each.help)
    is_needed = each.default is Parameter.empty
    if shows_default and not is_needed and each.default is not False and each.default not in (None, "", ()):
        usual = each.default
        if usual is True:
            usual = each.name.replace("_", "-") if kind is bool else "yes"
        help_ += f"  [default: {usual}]"
    made: Any
    if each.shell.argument:
        made = Argument(metavar=metavar, help=help_)
    else:
        flags = each.shell.flags or _dashed(each.name)
        if kind is bool and "/" not in flags and each.default is not False:
            flags += f"/--no-{flags.removeprefix('--')}"
        panel = f"{each.group}{'' if each.shell.usual or is_needed else '+'}"
        made = Option(*flags.split(), metavar=metavar, help=help_, rich_help_panel=panel)
    wanted: Any = kind if is_needed else kind | None
    annotation = Annotated[wanted, made]
    default = Parameter.empty if is_needed else None
    return Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _typed(declared: Declared) -> tuple[Any, str | None, Callable[[Any], Any]]:
    """Return the type of an option, the word for its value, and how the value is converted."""
    first, *others = [kind for kind in _kinds(declared.kind) if kind is not NoneType]
    origin = get_origin(first)
    if first is bool and not others:
        return bool, None, bool
    if origin is Literal:
        return first, None, str
    words = [_METAVARS.get(get_origin(kind) or kind) for kind in (first, *others)]
    metavar = next(filter(None, words), "TEXT")
    if origin is list or first is Path:
        return first, metavar, lambda x: x
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


def _kinds(kind: Any) -> list[Any]:
    """Return the types that a value may have, without the checks that they are annotated with."""
    if get_origin(kind) is Annotated:
        return _kinds(get_args(kind)[0])
    if get_origin(kind) in (Union, UnionType):
        return [one for each in get_args(kind) for one in _kinds(each)]
    return [kind]


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
    options: list[Parameter] = []
    takes: dict[str, Callable[[dict[str, Any]], Any]] = {}
    for name, hint in get_type_hints(command, include_extras=True).items():
        if name == "return":
            continue
        mark = getattr(hint, "__metadata__", (None,))[0]
        is_derived = isinstance(mark, Derived)
        source = mark if isinstance(mark, Derived) else Derived(hint, mark="")
        options += source.options()
        takes[name] = source.take if is_derived else partial(_whole, hint, source)

    def typed(**values: Any) -> None:
        command(**{name: take(values) for name, take in takes.items()})

    typed.__name__, typed.__doc__ = command.__name__, command.__doc__
    options.sort(key=lambda each: each.default is not Parameter.empty)
    typed.__signature__ = Signature(options)  # type: ignore[attr-defined]
    typed.__annotations__ = {each.name: each.annotation for each in options}
    return typed


def _whole(kind: type[Options], source: Derived, values: dict[str, Any]) -> Options:
    return kind.of(**source.take(values))


def _dashed(name: str) -> str:
    return f"--{name.replace('_', '-')}"
