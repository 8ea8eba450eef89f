"""Make the options of commands from their signatures, and from the parameters of the library.

An option of a command is a parameter `Annotated[type, help]`, or `Annotated[type, word, help]` with a word
for its value. A parameter that is a dataclass holds several: its fields.

A parameter that is `Derived` holds options of the library. The signature and the docstring of a function or
class give their names, types, defaults and help, or the fields of a dataclass with the comments beside them.
The source is parsed, not imported: printing help loads neither numpy nor polars.
"""

import ast
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import is_dataclass
from functools import cache, partial
from inspect import Parameter, Signature, signature
from operator import itemgetter
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, get_args, get_type_hints

from typer import Option

from mrfrec.data import reading_options
from mrfrec.errors import ParameterError

_PACKAGE = Path(__file__).parents[1]
# Options that are not spelled as the parameter of the command, or of the library.
_OWN = {"k": "-k", "output": "-o --output", "best": "-o --output", "form": "--format", "source": "--from"}
_OWN |= {"all_users": "--all", "all_items": "--all"}
_SPELLED = {role: f"--{role}-column" for role in ("user", "item", "value", "title", "event", "time")}
_SPELLED |= {"binary": "--binary/--values", "exclude_seen": "--exclude-seen/--seen", "k": "-k"}
_SPELLED |= {"origins": "--cors", "hosts": "--allowed-hosts"}
_METAVARS = {"int": "N", "float": "X", "Path": "FILE", "object": "FILE", "Duration": "TIME", "Moment": "TIME"}
_METAVARS |= {"Mapping[str, float]": "LIST", "Sequence[str]": "NAMES", "ItemFilter": "ITEMS"}
_WORDS: dict[str, Any] = {"none": None, "dense": None, "true": True, "false": False, "yes": True, "no": False}


class Declared(NamedTuple):
    """A parameter as it is declared."""

    name: str
    kinds: tuple[str, ...]  # types of the annotation, without None
    default: Any
    about: str  # the first sentence of its description


class Derived(NamedTuple):
    """Marks a parameter of a command: it holds the typed options for a function of the library, by name."""

    file: str  # the source, below the package
    name: str  # of the function or class
    only: tuple[str, ...] = ()  # of its parameters; all if empty
    without: tuple[str, ...] = ()
    shows_defaults: bool = True

    def declared(self) -> list[Declared]:
        found = parameters_of(self.file, self.name)
        return [found[name] for name in self.only or found if name not in self.without]

    def options(self) -> list[Parameter]:
        """Return the options as parameters of a command, with names that its own do not have."""
        made = []
        for each in self.declared():
            kind, metavar, _ = _type_of(each)
            help_ = _help(each.about)
            if self.shows_defaults and each.default is not False and each.default not in (None, "", ()):
                usual = each.name.replace("_", "-") if each.default is True else each.default
                help_ += f"  [default: {usual}]"
            option = _SPELLED.get(each.name, _dashed(each.name))
            if kind is bool and "/" not in option and each.default is not False:
                option += f"/--no-{option.removeprefix('--')}"
            made.append(_parameter(f"{each.name}_", kind | None, option, metavar, help_, None))
        return made

    def take(self, given: dict[str, Any]) -> dict[str, Any]:
        """Return the values of those of the given options that were typed."""
        values = [(each, given[f"{each.name}_"]) for each in self.declared()]
        return {each.name: _type_of(each)[2](value) for each, value in values if value is not None}


@cache
def parameters_of(file: str, name: str) -> Mapping[str, Declared]:
    """Return the parameters of a function, a class or a dataclass by name."""
    text = (_PACKAGE / file).read_text(encoding="utf-8")
    node: Any = next(node for node in ast.parse(text).body if getattr(node, "name", None) == name)
    made = next((each for each in node.body if getattr(each, "name", None) == "__init__"), node)
    if isinstance(made, ast.FunctionDef):
        defaults = [*made.args.defaults, *made.args.kw_defaults]
        arguments = [*made.args.args, *made.args.kwonlyargs][-len(defaults) :]
        found = [(x.arg, x.annotation, value) for x, value in zip(arguments, defaults, strict=True)]
        described = _descriptions(ast.get_docstring(node) or "")
    else:
        fields: Any = [each for each in node.body if isinstance(each, ast.AnnAssign)]
        found = [(x.target.id, x.annotation, x.value) for x in fields]
        lines = {x.target.id: text.splitlines()[x.end_lineno - 1].partition("  # ")[2] for x in fields}
        described = {each: f"{line[:1].upper()}{line[1:]}." for each, line in lines.items()}
    return {
        each: Declared(
            each,
            tuple(kind for kind in ast.unparse(annotation).strip("'").split(" | ") if kind != "None"),
            ast.literal_eval(default),
            described.get(each, ""),
        )
        for each, annotation, default in found
        if annotation is not None and default is not None
    }


def _descriptions(docstring: str) -> dict[str, str]:
    """Return the first sentence about each parameter, from a docstring with numpy's sections."""
    section = re.split(r"^\w+\n-+\n", docstring, flags=re.MULTILINE)[1]
    found = {}
    for name, text in re.findall(r"^(\w+)\n((?:[ ]+.*\n?)+)", section, re.MULTILINE):
        sentence = re.split(r'(?<=[.])\s+(?=[A-Z"`0-9λ])', text.strip())[0]
        found[name] = " ".join(sentence.split())
    return found


def _type_of(declared: Declared) -> tuple[Any, str | None, Callable[[Any], Any]]:
    """Return the type of an option, the word for its value, and how the value is converted."""
    first, *others = declared.kinds
    alias = getattr(reading_options, first, None)
    if first == "bool":
        return bool, None, bool
    if first.startswith("Literal["):
        alias = Literal[ast.literal_eval(f"({first[8:-1]},)")]
    if getattr(alias, "__origin__", None) is Literal:
        return alias, None, str
    metavar = _METAVARS.get(first, "NAME" if declared.name in _SPELLED else "TEXT")
    if first in ("int", "float") and not others:
        return {"int": int, "float": float}[first], metavar, lambda x: x
    if first in ("int", "float"):  # or a word, such as auto or 8GB
        return str, "SIZE" if "str" in others else metavar, parse_value
    if first == "ItemFilter":
        return list[str], metavar, list
    if first == "tuple[str, ...]":
        return list[str], "NAMES", lambda texts: tuple(name for text in texts for name in _names(text))
    if declared.name == "separator":
        return str, metavar, lambda text: text.replace("\\t", "\t")
    if first == "Mapping[str, float]":
        return str, metavar, partial(parse_weights, declared.name)
    return str, metavar, _names if first == "Sequence[str]" else str


def _names(typed: str) -> list[str]:
    return [name.strip() for name in typed.split(",")]


def parse_weights(name: str, text: str) -> dict[str, Any]:
    """Parse a=1,b=2 with values that should be numbers, which the library checks."""
    return {key: parse_value(value) for key, value in parse_pairs(name, text).items()}


def parse_pairs(name: str, text: str) -> dict[str, str]:
    """Parse a=1,b=2."""
    pairs = [[side.strip() for side in part.rpartition("=")[::2]] for part in text.split(",")]
    found = {key: value for key, value in pairs if key and value}
    if len(found) < len(pairs):
        raise ParameterError(name, "pairs such as a=1,b=2, with each name once", text)
    return found


def parse_value(text: str) -> Any:
    """Parse a number or a word such as dense; leave other texts as they are."""
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    for kind in (int, float):
        with suppress(ValueError):
            return kind(text)
    return text.strip("\"'")


def _help(about: str) -> str:
    """Say a description in the words of the shell: options for parameters, values as they are typed."""
    text = re.sub(r"`(\w+)`", lambda found: f"--{found[1].replace('_', '-')}", about)
    for literal in re.findall(r"\{\".*?\}|\[\".*?\]", text):
        value = ast.literal_eval(literal)
        words = [f"{key}={x}" for key, x in value.items()] if isinstance(value, dict) else value
        text = text.replace(literal, ",".join(words))
    return re.sub(r'"([^" ]+)"', r"\1", text)


# ── commands ──────────────────────────────────────────────────────────────────────────────────────


def takes_options(command: Callable[..., None]) -> Callable[..., None]:
    """Return a command for typer, with a parameter for each option."""
    options, call = _options_of(command)

    def typed(**given: Any) -> None:
        call(given)

    typed.__name__, typed.__doc__ = command.__name__, command.__doc__
    typed.__signature__ = Signature(options)  # type: ignore[attr-defined]
    typed.__annotations__ = {each.name: each.annotation for each in options}
    return typed


def _options_of(made: Callable[..., Any]) -> tuple[list[Parameter], Callable[[dict[str, Any]], Any]]:
    """Return the options of a command or a dataclass, and a function that calls it with the given ones."""
    hints = get_type_hints(made, include_extras=True)
    options: list[Parameter] = []
    takes: dict[str, Callable[[dict[str, Any]], Any]] = {}
    for name, each in signature(made).parameters.items():
        hint, takes[name] = hints[name], itemgetter(name)
        mark = getattr(hint, "__metadata__", (None,))[0]
        if isinstance(mark, Derived):
            found, takes[name] = mark.options(), mark.take
        elif is_dataclass(hint):
            found, takes[name] = _options_of(hint)  # type: ignore[arg-type]
        elif isinstance(mark, str):
            kind, *words, help_ = get_args(hint)
            words += [_METAVARS[x.__name__] for x in (kind, *get_args(kind)) if x in (int, float, Path)]
            option = _OWN.get(name, _dashed(name))
            found = [_parameter(name, kind, option, next(iter(words), None), help_, each.default)]
        else:  # the context, or an argument
            found = [each.replace(kind=Parameter.KEYWORD_ONLY, annotation=hint)]
        options += found
    return options, lambda given: made(**{name: take(given) for name, take in takes.items()})


def _parameter(
    name: str, kind: Any, option: str, metavar: str | None, help_: str, default: object
) -> Parameter:
    annotation = Annotated[kind, Option(*option.split(), metavar=metavar, help=help_)]
    return Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _dashed(name: str) -> str:
    return f"--{name.replace('_', '-')}"
