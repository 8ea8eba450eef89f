"""The numbers that pages quote, looked up in the pages of results that they link to."""

import re
from collections import defaultdict
from collections.abc import Iterable
from decimal import ROUND_HALF_UP, Decimal
from functools import cache
from itertools import chain
from pathlib import Path
from typing import NamedTuple

LAB = Path(__file__).resolve().parents[1]
ROOT = LAB.parent


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
    pages = {path: (ROOT / path).read_text() for path in re.findall(r"\]\((lab/results/\S+\.md)\)", section)}
    head, *rows = lines
    for row in rows:
        for place in range(1, len(head), 2):
            cells = (row[place], row[0], head[place])
            page = next(pages[link[1]] for cell in cells if (link := re.search(r"\((lab/\S+)\)", cell)))
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
    """Look up the results in the answers of the lab's index in the pages that their rows link to."""
    for row in index.splitlines():
        paths = re.findall(r"\]\((results/[^)#]+\.md)", row) if row.startswith("| ") else []
        text = "\n".join((LAB / path).read_text() for path in paths)
        for number in re.findall(r"(?<![\d.])\.\d{4}\b", row):
            assert _rounded(number, text), f"{number} in {row}"


def check_figures(page: Path) -> None:
    """Look up the figures of a page with three or more decimals in the results that its sections link to.

    Blocks of code and of output do not count.
    """
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    for section in re.split(r"^## ", text, flags=re.MULTILINE):
        paths = re.findall(r"\]\(([^)#]*lab/results/[^)#]+\.md)", section)
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
    return "\n".join((LAB / "docs" / path).read_text() for path in paths)


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
