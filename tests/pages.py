"""What pages and messages say: commands and options, which are parsed; results of README and claims."""

import ast
import re
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import typer

from mrfrec.cli.app import application
from mrfrec.cli.named import parse_model, parse_space
from mrfrec.errors import MrfrecError
from mrfrec.evaluation.metrics import parse as parse_metric
from mrfrec.models.registry import build, model_class

ROOT = Path(__file__).resolve().parents[1]
_SCRIPTS = {"benchmarks", "lab", "tools"}
_FOLDERS = ("*.md", "docs/**/*.md")
PAGES = sorted(page for folder in _FOLDERS for page in ROOT.glob(folder))
_BLOCK = re.compile(r"^( *)```(\w*)\n(.*?)^\1```", re.MULTILINE | re.DOTALL)
_EXAMPLE = re.compile(r"^(?:  Try:   |  Then:  | {9}| {4})(?=mrfrec )")  # of a help text
_MEANT = {"K": "1", "NAME": "EASE", "PARAMETER=VALUE,VALUE": "l2=1,2"}  # by words that stand for others
_APP: Any = typer.main.get_command(application())
# What neither a page nor a message says, and why.
_FORBIDDEN = {"mrfrec[": 'the package is in no index; in a clone: pip install ".[extra]"'}
_FORBIDDEN |= {"`paper": "mrfrec has no such command; the lab has"}


class Typed(NamedTuple):
    """A command as a page has it. One that is not `whole` may lack required arguments and values."""

    words: tuple[str, ...]
    whole: bool

    def __str__(self) -> str:
        return shlex.join(self.words)


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def paths_linked(page: Path, *, scripts: bool) -> list[Path]:
    """Return where the links of a page within the project lead: to `scripts` and results, or elsewhere."""
    targets = re.findall(r"\]\(([^)#]+)\)", page.read_text())
    paths = [(page.parent / target).resolve() for target in targets if "://" not in target]
    return [path for path in paths if scripts != _SCRIPTS.isdisjoint(path.relative_to(ROOT).parts[:1])]


def faults(page: str, *, scripts: bool = True) -> list[str]:
    """Return what is wrong with a page: forbidden words, and commands and options that do not exist.

    Without `scripts`, those of benchmarks/, lab/ and tools/ are not looked up.
    """
    found = [f"{text}: {why}" for text, why in _FORBIDDEN.items() if text in page]
    for typed in commands_in(page):
        if not scripts and _kind(typed.words) == "python":
            continue
        try:
            check(typed)
        except (ValueError, MrfrecError) as error:
            found.append(f"{typed}: {error}")
    return found


def messages_in(source: str) -> str:
    """Return the strings of a Python file as a page: errors, log lines, help and docstrings.

    An ellipsis stands for the values in a string. Style sheets, whose variables look like options, are
    left out.
    """
    tree = ast.parse(source)
    made = [node.values for node in ast.walk(tree) if isinstance(node, ast.JoinedStr)]
    parts = {id(part) for values in made for part in values}
    made += [[node] for node in ast.walk(tree) if isinstance(node, ast.Constant) and id(node) not in parts]
    texts = (
        "".join(str(part.value) if isinstance(part, ast.Constant) else "…" for part in values)
        for values in made
    )
    whole = (re.sub(r"--\S*…", "…", text) for text in texts if ":root" not in text)
    return "\n".join(f"```text\n{text}\n```" for text in whole)


def commands_in(page: str) -> list[Typed]:
    """Return the commands of this project in a page, and options that stand alone."""
    found = []
    for _, language, block in _BLOCK.findall(page):
        if language in ("python", "py", "toml"):
            lines = re.findall(r'"(mrfrec [^"]+)"', block)
        else:
            lines = block.replace("\\\n", " ").splitlines()
            if language == "text":  # a help text
                options = dict.fromkeys(re.findall(r"(?<![\w-])--[a-z][a-z0-9-]*", block))
                found += [Typed((option,), whole=False) for option in options]
                lines = [line for line in lines if _EXAMPLE.match(line)]
        for line in lines:
            words = _EXAMPLE.sub("", line)
            found += [Typed(words, whole=True) for words in _segments(words) if _kind(words) != "options"]
    for code in re.findall(r"`([^`]+)`", _BLOCK.sub("", page)):
        found += [Typed(words, whole=False) for words in _segments(" ".join(code.split()))]
    return found


def _segments(line: str) -> Iterator[tuple[str, ...]]:
    """Split a line as a shell does, and yield the commands of this project that are in it."""
    line = re.sub(r"(^|\s)#.*", "", re.sub(r"\{\{.*?\}\}", "2026-11-15", line))
    lexer = shlex.shlex(line, posix=True, punctuation_chars="|&;<>")
    lexer.whitespace_split, lexer.commenters = True, ""
    try:
        words = list(lexer)
    except ValueError:  # an apostrophe: no command
        words = []
    while words:
        end = next((i for i, word in enumerate(words) if set(word) <= set("|&;<>")), len(words))
        start = max((i for i in range(end) if words[i].endswith("/bin/mrfrec")), default=0)
        segment = words[start + (words[0] == "chronic") : end]
        if segment and _kind(tuple(segment)):
            yield tuple(segment)
        words = words[end + 1 :]


def _kind(words: tuple[str, ...]) -> str:
    first, *rest = words
    if first == "mrfrec" or first.endswith("/bin/mrfrec"):
        return "mrfrec" if rest and rest[0] != "COMMAND" else ""
    if first.startswith("python") and re.match(r"(-m )?(benchmarks|lab|mrfrec_lab|tools)\b", " ".join(rest)):
        return "python"
    if first == "make" and rest:
        return "make"
    if (first,) in _leaves() and any(word.startswith("--") for word in rest):
        return "command"  # `tune --vary`
    return "options" if re.match(r"--[a-z]", first) else ""


def check(typed: Typed) -> None:
    """Parse a command without running it; raise an error that says what is wrong."""
    kind = _kind(typed.words)
    if kind == "mrfrec":
        _parse(typed.words[1:], typed.whole)
    elif kind == "command":
        _parse(typed.words, whole=False)
    elif kind == "options":
        _parse_by_any(typed.words)
    elif kind == "python":
        _check_module(typed.words[1:])
    else:
        _parse_make(typed.words[1:])


# ── mrfrec ────────────────────────────────────────────────────────────────────────────────────────


@cache
def _leaves() -> list[tuple[str, ...]]:
    """Return the words of all commands."""
    return [(name,) for name in _APP.commands]


def _parse(words: tuple[str, ...], whole: bool) -> None:
    command = _APP
    given = [word for word in words if word not in ("…", "--help", "--help-all", "--debug")]
    whole = whole and len(given) == len(words)
    while given and hasattr(command, "commands") and not given[0].startswith("-"):
        if given[0] not in command.commands:
            raise ValueError(f"there is no command {given[0]}")
        command = command.commands[given.pop(0)]
    given = [_MEANT.get(word, word) for word in given]
    try:
        context = command.make_context(command.name, [*given])  # which empties the list
    except Exception as error:
        missing = type(error).__name__ == "MissingParameter" or "requires an argument" in str(error)
        if whole or not missing:
            raise ValueError(getattr(error, "message", None) or str(error)) from error
        context = command.make_context(command.name, given, resilient_parsing=True)
    _check_values(context.params)


@cache
def _parse_by_any(words: tuple[str, ...]) -> None:
    """Parse options that stand alone: one command must take all of them."""
    reasons = set()
    for command in ((), *_leaves()):
        try:
            return _parse((*command, *words), whole=False)
        except ValueError as error:
            reasons.add(str(error))
    raise ValueError(f"no command takes these options: {'; '.join(sorted(reasons))}")


def _check_values(given: dict[str, Any]) -> None:
    """Check models, parameters and metrics, which commands parse themselves."""
    models = given.get("model")  # of some commands it is a file
    specs = [parse_model(text) for text in models if ".json" not in text] if isinstance(models, list) else []
    for spec in specs:
        build(spec.kind, spec.parameters, {})
    kind = specs[0].kind if specs else "MRF"
    for name in parse_space(given.get("vary") or []):
        if name not in model_class(kind).defaults():
            raise ValueError(f"{kind} has no parameter {name}")
    for metric in (given.get("metrics") or given.get("metric") or "").split(","):
        if metric:
            parse_metric(metric)


# ── scripts and make ──────────────────────────────────────────────────────────────────────────────


def _check_module(words: tuple[str, ...]) -> None:
    if words[:2] == ("-m", "mrfrec_lab") and words[2:3] in _leaves():  # a command of mrfrec
        _parse(words[2:], whole=False)
        return
    target, *given = words[1:] if words[0] == "-m" else words
    home = ROOT / "lab" / "src" if target.startswith("mrfrec_lab") else ROOT
    module = f"{target}.__main__" if target == "mrfrec_lab" else target
    path = home / f"{module.replace('.', '/')}.py" if words[0] == "-m" else ROOT / target
    if not path.exists():
        raise ValueError(f"there is no {target}")
    for option in (word.partition("=")[0] for word in given if word.startswith("--")):
        if option not in ("--help", "--help-all") and f'"{option}"' not in path.read_text():
            raise ValueError(f"{target} has no option {option}")


def _parse_make(words: tuple[str, ...]) -> None:
    folder, words = (words[1], words[2:]) if words[0] == "-C" else (".", words)
    rules = (ROOT / folder / "Makefile").read_text()
    for word in words:
        name, equals, _ = word.partition("=")
        pattern = rf"\$\({name}\)" if equals else rf"^{re.escape(name)}:"
        if not re.search(pattern, rules, re.MULTILINE):
            raise ValueError(f"the Makefile has no {'variable' if equals else 'target'} {name}")
