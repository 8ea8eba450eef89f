"""Show results as tables: text, Markdown, HTML for notebooks, JSON, and data frames."""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import singledispatch
from html import escape
from io import StringIO
from typing import TYPE_CHECKING, Any
from unicodedata import category

import polars as pl

from mrfrec import __version__
from mrfrec.checks import check_frames

if TYPE_CHECKING:
    from rich.table import Table

_NUMBER = re.compile(r"[+−-]?\d|–$|$")  # Matches a cell that begins with a number, is a dash, or is empty.


@dataclass(frozen=True)
class Section:
    """A table whose cells are texts."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    title: str = ""

    def markdown(self) -> str:
        rows = (self.columns, ["---"] * len(self.columns), *self.rows)
        lines = ("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows)
        return "\n".join([f"## {self.title}\n", *lines] if self.title else lines)

    def html(self) -> str:
        """Return a table for a notebook, with columns of numbers aligned to the right."""
        title = f"<p><strong>{_escaped(self.title)}</strong></p>" if self.title else ""
        sides = [
            "right" if all(map(_NUMBER.match, cells)) else "left" for cells in zip(*self.rows, strict=True)
        ]
        sides = sides or ["left"] * len(self.columns)
        cells = (
            "".join(
                f'<{tag} style="text-align: {side}">{_escaped(cell)}</{tag}>'
                for cell, side in zip(row, sides, strict=True)
            )
            for tag, row in [("th", self.columns), *(("td", row) for row in self.rows)]
        )
        head, *body = (f"<tr>{row}</tr>" for row in cells)
        return f"{title}<table><thead>{head}</thead><tbody>{''.join(body)}</tbody></table>"


@dataclass(frozen=True)
class Report:
    """Results as tables and as data, with a few lines on how they were obtained."""

    about: Sequence[str]
    sections: Sequence[Section]
    data: dict[str, Any] = field(default_factory=dict)
    notes: Sequence[str] = field(default_factory=tuple)
    records: Sequence[Mapping[str, Any]] = ()  # rows of a data frame
    library: str | None = None  # of the data frame; polars if None
    headline: int = 1  # number of sections, from the first, that `brief` shows

    def on(self, data: dict[str, Any]) -> "Report":
        """Add where the data came from, as the user typed it."""
        options = "".join(f", {name}={value}" for name, value in data.items() if name != "data")
        about = [f"data: {' '.join(map(str, data.get('data', ())))}{options}", *self.about]
        return replace(self, about=about, data={"data": data, **self.data})

    def markdown(self) -> str:
        parts = ["\n".join(f"- {line}" for line in self.about)] if self.about else []
        parts += [section.markdown() for section in self.sections]
        parts += ["\n".join(f"- {note}" for note in self.notes)] if self.notes else []
        return "\n\n".join(parts) + "\n"

    def html(self) -> str:
        about, notes = ("<br>".join(map(_escaped, lines)) for lines in (self.about, self.notes))
        parts = [f"<p>{about}</p>" if about else "", *(section.html() for section in self.sections)]
        parts += [f"<p><small>{notes}</small></p>"] if notes else []
        return f'<div style="overflow-x: auto">{"".join(parts)}</div>'

    def brief(self) -> str:
        """Return the lines in `about` and the headline tables as text."""
        lines = [*self.about]
        for section in self.sections[: self.headline]:
            lines += ["", *([section.title] if section.title else [])]
            lines.append(table_text(section.rows, section.columns).rstrip("\n"))
        return "\n".join(lines)

    def json(self) -> str:
        """Return the results in full precision, and the version of mrfrec, as JSON."""
        data = {"mrfrec": __version__, **self.data}
        return json.dumps(data, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


@singledispatch
def report_of(value: object) -> Report:
    """Return the report of a value; modules register a function for each class that has one."""
    raise NotImplementedError(f"nothing is known to show of {type(value).__name__}")


class Tabular:
    """A result that shows itself as tables: in a terminal, in a notebook, and as a data frame."""

    def __repr__(self) -> str:
        return report_of(self).brief()

    def _repr_html_(self) -> str:
        return report_of(self).html()

    def to_markdown(self) -> str:
        """Return the tables as Markdown, with a few lines on how the results were obtained."""
        return report_of(self).markdown()

    def to_frame(self, frames: str | None = None) -> "pl.DataFrame | Any":
        """Return the results as a data frame of "polars", "pandas" or "pyarrow".

        The default is the library of the training data, or polars if that was not a data frame.
        """
        import narwhals as nw

        report = report_of(self)
        names = dict.fromkeys(name for record in report.records for name in record)
        columns = {name: _alike([record.get(name) for record in report.records]) for name in names}
        library: Any = check_frames(frames) or report.library or "polars"
        return nw.from_dict(columns, backend=library).to_native()


def _alike(values: list[Any]) -> list[Any]:
    """Return the values of a column with one type: a mix of types becomes strings, or floats if numeric."""
    types = {type(value) for value in values if value is not None}
    if types <= {int, float} or (len(types) == 1 and types <= {bool, str}):
        return [float(x) if x is not None and float in types else x for x in values]
    return [None if value is None else str(value) for value in values]


# ── cells and tables ──────────────────────────────────────────────────────────────────────────────


def number_or_none(value: float) -> float | None:
    """Return None instead of NaN, which neither JSON nor a data frame should contain."""
    return value if value == value else None


def seconds_text(seconds: float | None) -> str:
    """Format a duration: 0.42 s, 12.3 s, 2 min 5 s."""
    if seconds is None:
        return "–"
    if seconds < 60:
        return f"{seconds:.2f} s" if seconds < 10 else f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def parameter_text(name: str, value: object) -> str:
    """Format the value of a parameter for a table."""
    if value is None:
        return "dense" if name == "sparsity" else "none"
    return f"{value:g}" if isinstance(value, float) else str(value)


def printable(text: str) -> str:
    """Replace control characters, surrogates and line separators by spaces."""
    return "".join(" " if category(c) in ("Cc", "Cs", "Zl", "Zp") else c for c in text)


def _escaped(text: str) -> str:
    return escape(printable(text))


def cell_text(value: object) -> str:
    """Format a cell of a table: four decimals for floats, a dash for None."""
    if value is None:
        return "–"
    return printable(f"{value:.4f}" if isinstance(value, float) else str(value))


def drawn_table(rows: Iterable[Sequence[Any]], names: Sequence[str]) -> "Table":
    """Draw a table for a terminal, with columns of numbers aligned to the right."""
    from rich.table import Table
    from rich.text import Text  # unlike str, interpreted neither as markup nor as emoji names

    drawn = Table(header_style="bold", box=None, pad_edge=False)
    for name in names:
        drawn.add_column(Text(cell_text(name)), overflow="fold")
    numeric = set(range(len(names)))
    for row in rows:
        drawn.add_row(*(Text(cell_text(value)) for value in row))
        numeric -= {index for index, value in enumerate(row) if not isinstance(value, int | float | None)}
    for index in numeric if drawn.row_count else ():
        drawn.columns[index].justify = "right"
    return drawn


def table_text(rows: Iterable[Sequence[Any]], names: Sequence[str]) -> str:
    """Return a table as text, as wide as needed."""
    from rich.console import Console

    buffer = StringIO()
    plain: dict[str, Any] = {"force_terminal": False, "force_jupyter": False, "color_system": None}
    Console(file=buffer, width=1_000_000, **plain).print(drawn_table(rows, names))
    return "".join(line.rstrip() + "\n" for line in buffer.getvalue().split("\n")[:-1])
