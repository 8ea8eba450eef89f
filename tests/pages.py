"""What pages and messages say: commands and options, which are parsed; results of README and claims."""

import ast
import re
import shlex
from collections import defaultdict
from collections.abc import Iterable, Iterator
from decimal import ROUND_HALF_UP, Decimal
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import typer

from mrfrec.cli.app import app
from mrfrec.cli.models import parse_model, parse_vary
from mrfrec.errors import MrfrecError
from mrfrec.evaluation.metrics import parse as parse_metric
from mrfrec.models.registry import build, model_class

ROOT = Path(__file__).parents[1]
_SCRIPTS = {"benchmarks", "experiments", "tools"}
_FOLDERS = ("*.md", "docs/**/*.md", "experiments/*.md", "experiments/results/*.md")
PAGES = sorted(page for folder in _FOLDERS for page in ROOT.glob(folder))
_BLOCK = re.compile(r"^( *)```(\w*)\n(.*?)^\1```", re.MULTILINE | re.DOTALL)
_EXAMPLE = re.compile(r"^(?:  Try:   |  Then:  | {9}| {4})(?=mrfrec )")  # of a help text
_MEANT = {"K": "1", "NAME": "SLIM", "PARAMETER=VALUE,VALUE": "l2=1,2"}  # by words that stand for others
_APP: Any = typer.main.get_command(app)
# What neither a page nor a message says, and why.
_FORBIDDEN = {"mrfrec[": 'the package is in no index; in a clone: pip install ".[extra]"'}


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

    Without `scripts`, those of benchmarks/, experiments/ and tools/ are not looked up.
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
    if first.startswith("python") and re.match(r"(-m )?(benchmarks|experiments|tools)\b", " ".join(rest)):
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
def _leaves(group: Any = _APP) -> list[tuple[str, ...]]:
    """Return the words of all commands: fit, …, paper reproduce, …."""
    found: list[tuple[str, ...]] = []
    for name, command in group.commands.items():
        found += [(name, *rest) for rest in _leaves(command)] if hasattr(command, "commands") else [(name,)]
    return found


def _parse(words: tuple[str, ...], whole: bool) -> None:
    command = _APP
    given = [word for word in words if word not in ("…", "--help", "--debug")]
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
    for name in parse_vary(given.get("vary") or [], kind):
        if name not in model_class(kind).defaults():
            raise ValueError(f"{kind} has no parameter {name}")
    for metric in (given.get("metrics") or given.get("metric") or "").split(","):
        if metric:
            parse_metric(metric)


# ── scripts and make ──────────────────────────────────────────────────────────────────────────────


def _check_module(words: tuple[str, ...]) -> None:
    target, *given = words[1:] if words[0] == "-m" else words
    path = ROOT / (f"{target.replace('.', '/')}.py" if words[0] == "-m" else target)
    if not path.exists():
        raise ValueError(f"there is no {target}")
    for option in (word.partition("=")[0] for word in given if word.startswith("--")):
        if option != "--help" and f'"{option}"' not in path.read_text():
            raise ValueError(f"{target} has no option {option}")


def _parse_make(words: tuple[str, ...]) -> None:
    rules = (ROOT / "Makefile").read_text()
    for word in words:
        name, equals, _ = word.partition("=")
        pattern = rf"\$\({name}\)" if equals else rf"^{re.escape(name)}:"
        if not re.search(pattern, rules, re.MULTILINE):
            raise ValueError(f"the Makefile has no {'variable' if equals else 'target'} {name}")


# ── results ───────────────────────────────────────────────────────────────────────────────────────


def _rounded(text: str, page: str) -> bool:
    """Return whether a page has a number that rounds to this one."""
    digits = Decimal(text)
    numbers = (Decimal(number) for number in re.findall(r"(?<![\d.])\d*\.\d+", page))
    return any(number.quantize(digits, ROUND_HALF_UP) == digits for number in numbers)


def _seconds_in(line: str) -> list[Decimal]:
    return [
        60 * Decimal(minutes or 0) + Decimal(x)
        for minutes, x in re.findall(r"(?:(\d+) min )?([\d.]+) s\b", line)
    ]


def check_results(readme: str) -> None:
    """Look up every number of the README's results in the page that its cell, row or column links to."""
    section = readme.split("## Results")[1].split("\n## ")[0]
    lines = [line.strip("| ").split(" | ") for line in section.splitlines() if line.startswith("| ")]
    pages = {
        path: (ROOT / path).read_text()
        for path in re.findall(r"\]\((experiments/results/\S+\.md)\)", section)
    }
    head, *rows = lines
    for row in rows:
        for place in range(1, len(head), 2):
            cells = (row[place], row[0], head[place])
            page = next(
                pages[link[1]] for cell in cells if (link := re.search(r"\((experiments/\S+)\)", cell))
            )
            (number,) = re.findall(r"\d\.\d{4} ± \d\.\d{4}", row[place])
            found = [line for line in page.splitlines() if number in line]
            assert found, f"{row[0]}: {number}"
            least, _, most = row[place + 1].partition(" to ")  # of trials
            assert least == "–" or f"{least} trials" in page, f"{row[0]}: {least} trials"
            assert not most or f"up to {int(most) - int(least)} more trials" in page, (
                f"{row[0]}: {most} trials"
            )
    text = "\n".join(line for line in section.splitlines() if not line.startswith("|"))
    for number in re.findall(r"\b\d\.\d{3,}\b", text):
        assert any(_rounded(number, page) for page in pages.values()), number


def check_index(index: str) -> None:
    """Look up the results in the answers of the experiments' index in the pages that their rows link to."""
    for row in index.splitlines():
        paths = re.findall(r"\]\((results/[^)#]+\.md)", row) if row.startswith("| ") else []
        text = "\n".join((ROOT / "experiments" / path).read_text() for path in paths)
        for number in re.findall(r"(?<![\d.])\.\d{4}\b", row):
            assert _rounded(number, text), f"{number} in {row}"


def check_figures(page: Path) -> None:
    """Look up the figures of a page with three or more decimals in the results that its sections link to.

    Blocks of code and of output do not count.
    """
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    for section in re.split(r"^## ", text, flags=re.MULTILINE):
        paths = re.findall(r"\]\(([^)#]*experiments/results/[^)#]+\.md)", section)
        results = "\n".join((page.parent / path).read_text() for path in paths)
        for number in re.findall(r"(?<![\d.])0?\.\d{3,}", section):
            assert _rounded(number, results), f"{number} in {page.name}, {section.splitlines()[0]}"


def check_claims(claims: str) -> None:
    """Look up the numbers of the claims' column "here" in the pages linked for the data set that they follow.

    A whole percentage with a sign is a ratio of two numbers that the row has for the data set; another one is
    on the page, or is what is missing to 100 % or beyond it. Rows of arithmetic have no pages.
    """
    rows = [line.strip("| ").split(" | ") for line in claims.splitlines() if line.startswith("| ")]
    pages = {row[0]: _texts_linked(row[2]) for row in rows if len(row) == 3 and "(../" in row[2]}
    everything = "\n".join(pages.values())
    for row in rows:
        if len(row) != 4 or row[2].startswith("Arithmetic"):
            continue
        linked = _texts_linked(" ".join(row))
        values = defaultdict[str, list[Decimal]](list)
        for cell in row[2:]:
            name, page = "", everything
            for part in re.split(rf"\b({'|'.join(pages)})\b", re.sub(r"\]\(\S+\)", "]", cell)):
                name, page = (part, pages[part]) if part in pages else (name, page)
                values[name] += map(Decimal, re.findall(r"(?<!± )(?<![\d.])\.\d{4}", part))
                missing = _missing(part, _numbers_of(f"{page}\n{linked}"), values[name])
                assert not missing, f"{row[0]}: {', '.join(missing)} in {part!r}"


def _texts_linked(text: str) -> str:
    paths = re.findall(r"\]\(([^)#]+\.md)[^)]*\)", text)
    return "\n".join((ROOT / "docs" / "explanation" / path).read_text() for path in paths)


class Numbers(NamedTuple):
    """The numbers of a page: of any kind, percentages, and factors ("3.3 ×"). Times are also in seconds."""

    text: str
    all: set[Decimal]
    shares: set[Decimal]
    factors: set[Decimal]


@cache
def _numbers_of(page: str) -> Numbers:
    shares = {Decimal(x) for x in re.findall(r"(\d+(?:\.\d+)?) ?%", page)}
    factors = {Decimal(x) for x in re.findall(r"([\d.]+) ×", page)}
    whole = re.findall(r"(?<![\d.,])\d*\.?\d+(?![\d.,]|%| %)", page)
    times = chain.from_iterable(map(_seconds_in, page.splitlines()))
    return Numbers(page, {*map(Decimal, whole), *times}, shares, factors)


def _missing(text: str, page: Numbers, values: list[Decimal]) -> list[str]:
    """Return the numbers of a text that no number of a page rounds to."""

    def lacks(number: str, known: Iterable[Decimal]) -> bool:
        x = Decimal(number)
        return not any(each.quantize(x, ROUND_HALF_UP) == x for each in known)

    found = [x for x in re.findall(r"(?<![\d.])0?\.\d{3,}", text) if lacks(x, page.all)]
    listed = re.sub(r"([\d.]+)(?=(?:, [\d.]+)* s\b)", r"\1 s", text)
    found += [f"{x} s" for x in _seconds_in(listed) if lacks(str(x), page.all)]
    found += [x for x in re.findall(r"\d{1,3}(?:,\d{3})+", text) if x not in page.text]
    found += [f"{x} times" for x in re.findall(r"([\d.]+) times", text) if lacks(x, page.factors)]
    changes = {100 * (a / b - 1) for a in values for b in values}
    shares = page.shares | {abs(100 - share) for share in page.shares}
    for sign, x in re.findall(r"([+−]?)(\d+(?:\.\d+)?) %", text):
        is_change = sign and "." not in x
        if lacks(sign.replace("−", "-") + x, changes) if is_change else lacks(x, shares):
            found.append(f"{sign}{x} %")
    return found
