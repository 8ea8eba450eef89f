"""Options of commands, derived from the parameters of the library.

The signature and the docstring of a function or class give the name, type, default and help of each option,
and the fields of a dataclass with the comments beside them. The source is parsed, not imported: printing help
loads neither numpy nor polars.
"""

import ast
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache
from inspect import Parameter
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from typer import Option

from mrfrec.data import reading
from mrfrec.data.reading import RULES
from mrfrec.errors import ParameterError

_PACKAGE = Path(__file__).parents[1]
# Options that are not spelled as the parameter.
_SPELLED = {role: f"--{role}-column" for role in ("user", "item", "value", "title", "event", "time")}
_SPELLED |= {"binary": "--binary/--values", "exclude_seen": "--exclude-seen/--seen", "k": "-k"}
_SPELLED |= {"origins": "--cors", "hosts": "--allowed-hosts"}
_METAVARS = {"int": "N", "float": "X", "Duration": "TIME", "Moment": "TIME", "Mapping[str, float]": "LIST"}
_METAVARS |= {"Sequence[str]": "NAMES", "object": "FILE", "ItemFilter": "ITEMS"}
_WORDS: dict[str, Any] = {"none": None, "dense": None, "true": True, "false": False, "yes": True, "no": False}


class Declared(NamedTuple):
    """A parameter as it is declared."""

    name: str
    kinds: tuple[str, ...]  # types of the annotation, without None
    default: Any
    about: str  # the first sentence of its description

    @property
    def option(self) -> str:
        return _SPELLED.get(self.name, f"--{self.name.replace('_', '-')}")


class Derived:
    """Marks a parameter of a command: it holds the typed options for a function of the library, by name.

    `file` is the source, below the package, of the function or class `name`. `only` and `without` choose
    among the parameters. `defaults` says whether to show them.
    """

    def __init__(
        self,
        file: str,
        name: str,
        *,
        only: tuple[str, ...] = (),
        without: tuple[str, ...] = (),
        defaults: bool = True,
    ) -> None:
        self._source, self._shows_defaults = (file, name), defaults
        self._only, self._left_out = only, without

    def without(self, *names: str) -> "Derived":
        """Return the same options but these."""
        return Derived(*self._source, without=(*self._left_out, *names))

    def declared(self) -> list[Declared]:
        found = parameters_of(*self._source)
        return [found[name] for name in self._only or found if name not in self._left_out]

    def options(self) -> list[Parameter]:
        """Return the options as parameters of a function that typer understands."""
        made = []
        for each in self.declared():
            kind, metavar, _ = _type_of(each)
            help_ = _help(each.about)
            if self._shows_defaults and each.default is not False and each.default not in (None, "", ()):
                usual = each.name.replace("_", "-") if each.default is True else each.default
                help_ += f"  [default: {usual}]"
            option = each.option
            if kind is bool and "/" not in option and each.default is not False:
                option += f"/--no-{option.removeprefix('--')}"
            declared = Option(option, metavar=metavar, help=help_)
            annotation = Annotated[kind | None, declared]  # type: ignore[valid-type]
            made.append(Parameter(each.name, Parameter.KEYWORD_ONLY, default=None, annotation=annotation))
        return made

    def take(self, given: dict[str, Any]) -> dict[str, Any]:
        """Remove these options from the given ones; return the values of the options that were typed."""
        values = [(each, given.pop(each.name)) for each in self.declared()]
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
    alias = getattr(reading, first, None)
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
    convert: dict[str, Callable[[str], Any]] = {"Mapping[str, float]": _weights, "Sequence[str]": _names}
    return str, metavar, convert.get(first, str)


def _names(typed: str) -> list[str]:
    return [name.strip() for name in typed.split(",")]


def _weights(typed: str) -> dict[str, Any]:
    return {kind: parse_value(x) for kind, x in parse_pairs("event_weights", typed).items()}


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


_READING = Derived("io/tables.py", "read_interactions", without=("progress",))
_MACHINE = ("threads", "memory_limit", "device")
Reading = Annotated[dict[str, Any], _READING]
"""Parameters of `read_interactions`, as typed."""
ReadingMeasured = Annotated[dict[str, Any], _READING.without("title", "items", "min_items")]
"""The same where models are measured: titles are not shown, and --min-items has another default."""
TableForm = Annotated[dict[str, Any], _READING.without(*RULES)]
"""The same without the rules about rows, which a model keeps: only the form of the table."""
ModelParameters = Annotated[dict[str, Any], Derived("models/mrf.py", "MRF", without=_MACHINE)]
Machine = Annotated[dict[str, Any], Derived("models/mrf.py", "MRF", only=_MACHINE, defaults=False)]
Asked = Annotated[dict[str, Any], Derived("models/answers/question.py", "Question", without=("explain",))]
"""Fields of a `Question`, as typed."""
_SERVED = ("keys", "rate", "origins", "hosts", "root_path", "max_body", "max_batch", "queue", "drain")
ServedSettings = Annotated[
    dict[str, Any],
    Derived("service/settings.py", "ServiceSettings", only=(*_SERVED, "log_requests", "log_clients")),
]
"""Fields of `ServiceSettings`, as typed."""
RankingMachine = Annotated[
    dict[str, Any], Derived("models/mrf.py", "MRF", only=("threads", "device"), defaults=False)
]


def _help(about: str) -> str:
    """Say a description in the words of the shell: options for parameters, values as they are typed."""
    text = re.sub(r"`(\w+)`", lambda found: f"--{found[1].replace('_', '-')}", about)
    for literal in re.findall(r"\{\".*?\}|\[\".*?\]", text):
        value = ast.literal_eval(literal)
        words = [f"{key}={x}" for key, x in value.items()] if isinstance(value, dict) else value
        text = text.replace(literal, ",".join(words))
    return re.sub(r'"([^" ]+)"', r"\1", text)
