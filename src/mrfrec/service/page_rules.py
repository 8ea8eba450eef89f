"""The rules of the page's recommendations: filters, quotas and variety, in its address and as controls.

In the address, a condition is WORD.COLUMN=VALUE, with the words of `where`, and a quota is
at_most.COLUMN=NUMBER. What a control adds, at_most=COLUMN&each=NUMBER, means the same.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import polars as pl

from mrfrec.answers.where import WORDS
from mrfrec.checks import shortened
from mrfrec.data.item_table import Groups, ItemTable
from mrfrec.errors import ParameterError
from mrfrec.service.schemas import MOST_ON_PAGE, PageQuery

Content = dict[str, Any]

_SIGNS = {"any": "", "least": "≥ ", "most": "≤ "}
"""The words of conditions that a page takes, and how it writes them."""

_MOST_RULES = 20  # conditions and quotas of an address
_LONGEST = 200  # characters of a name or a value in an address
_MOST_COLUMNS = 20  # that have controls
_FIRST_COLUMNS = 6  # whose controls are always visible
_MOST_CHOICES = 50  # of a control
_MOST_DIFFERENT = 1000  # values of a column that has choices
_SHOWN = 40  # characters of a name or a value


@dataclass(frozen=True)
class PageRules:
    """What the address of a page says besides the history: values as texts, by word and column."""

    conditions: Mapping[tuple[str, str], list[str]] = field(default_factory=dict)
    quotas: Mapping[str, int] = field(default_factory=dict)
    variety: float = 0.0

    @classmethod
    def of(cls, query: PageQuery, asked: Iterable[tuple[str, str]]) -> "PageRules":
        """Read the names and values of an address; refuse too many, and words that no page takes."""
        conditions: dict[tuple[str, str], list[str]] = {}
        quotas: dict[str, int] = {}
        for name, text in asked:
            word, _, column = name.partition(".")
            if not column or not text or word not in (*WORDS, "at_most"):
                continue  # an empty text is an empty control
            shown = shortened(name, _SHOWN)
            if len(name) > _LONGEST or len(text) > _LONGEST:
                raise ParameterError(shown, f"a name and a value of up to {_LONGEST} characters", text)
            if word == "at_most":
                quotas[column] = _whole(shown, text)
            elif word not in _SIGNS:
                advice = "The API takes all words."
                raise ParameterError(shown, f"about one of the words {', '.join(_SIGNS)}", word, advice)
            elif text not in (values := conditions.setdefault((word, column), [])):
                values.append(text)
        if query.at_most:
            quotas[query.at_most] = query.each
        for (word, column), values in conditions.items():
            if word != "any" and len(values) > 1:
                raise ParameterError(shortened(f"{word}.{column}", _SHOWN), "given once", values[1])
        count = sum(map(len, conditions.values()))
        if len(conditions) + len(quotas) > _MOST_RULES or count > MOST_ON_PAGE:
            rule = f"up to {_MOST_RULES} conditions and quotas, with {MOST_ON_PAGE} values"
            raise ParameterError("the filter", rule, len(conditions) + len(quotas))
        return cls(conditions, quotas, query.variety)

    def query(self, without: tuple[str, str] | None = None) -> dict[str, list[str]]:
        """Return names and values of an address that has these rules, without one of them."""
        pairs = [(f"{word}.{column}", values) for (word, column), values in self.conditions.items()]
        pairs += [(f"at_most.{column}", [str(most)]) for column, most in self.quotas.items()]
        pairs += [("variety", [f"{self.variety:g}"])] if self.variety else []
        left = ((name, [x for x in values if (name, x) != without]) for name, values in pairs)
        return {name: values for name, values in left if values}

    def options(self, table: ItemTable | None) -> dict[str, Any]:
        """Return the fields of a `Question`, with values of the types of the columns."""
        where: dict[str, dict[str, Any]] = {}
        for (word, column), texts in self.conditions.items():
            name = shortened(f"{word}.{column}", _SHOWN)
            kind = None if table is None else table.kind(column, name)
            values = [_typed(name, kind, text) for text in texts]
            where.setdefault(column, {})[word] = values if word == "any" else values[0]
        return {"where": where or None, "at_most": self.quotas or None, "variety": self.variety}

    def controls(self, table: ItemTable | None) -> Content:
        """Return what the page shows of a table: controls of its columns, and `others`, rules without one.

        These have their names and values in an address, and a text.
        """
        columns = () if table is None else table.frame.columns
        made = (self._control(name, table) for name in columns if table is not None)
        controls = [control for control in made if control is not None][:_MOST_COLUMNS]
        held = {pair for control in controls for pair in control["holds"]}
        others = [
            (
                f"{word}.{column}",
                text,
                f"{shortened(column, _SHOWN)}: {_SIGNS[word]}{shortened(text, _SHOWN)}",
            )
            for (word, column), texts in self.conditions.items()
            for text in texts
            if (f"{word}.{column}", text) not in held
        ]
        others += [
            (f"at_most.{column}", str(most), f"at most {most} of each {shortened(column, _SHOWN)}")
            for column, most in self.quotas.items()
        ]
        first, rest = controls[:_FIRST_COLUMNS], controls[_FIRST_COLUMNS:]
        return {
            "first": first,
            "rest": rest,
            "is_open": any(control["holds"] for control in rest),
            "others": others,
            "grouping": [
                (name, shortened(name, _SHOWN)) for name in columns if table and _has_groups(table, name)
            ][:_MOST_COLUMNS],
            "variety": self.variety if table is not None or self.variety else None,
        }

    def _control(self, name: str, table: ItemTable) -> Content | None:
        """Return the control of a column, and which names and values it `holds`; None if it has none."""
        column, kind = table.column(name, name), table.kind(name, name)
        if not 0 < len(name) <= _LONGEST - len("at_most.") or column.null_count() == len(column):
            return None
        control: Content = {"name": name, "label": shortened(name, _SHOWN), "holds": []}
        chosen = self.conditions.get(("any", name), [])
        if kind in ("text", "list"):
            groups = table.groups(name, name)
            if not _has_groups(table, name) or len(groups.values) > _MOST_DIFFERENT:
                return None
            choices = _choices(groups, chosen)
            return control | {"kind": "choice", "choices": choices, "is_chosen": bool(chosen)}
        least, most = column.min(), column.max()
        if kind == "flag" or (column.dtype == pl.Int64 and (least, most) == (0, 1)):
            yes = "true" if kind == "flag" else "1"
            return control | {"kind": "flag", "yes": yes, "holds": [(f"any.{name}", yes)] * (yes in chosen)}
        is_time = kind == "time"
        typed = [(self.conditions.get((word, name)) or [""])[0] for word in ("least", "most")]
        if is_time:
            least, most = (str(x)[:10] for x in (least, most))
        return control | {
            "kind": "range",
            "entry": "number" if not is_time else "date" if {*map(len, typed)} <= {0, 10} else "text",
            "bounds": [
                ("least", "from", typed[0], f"{least:.6g}" if isinstance(least, float) else least),
                ("most", "to", typed[1], f"{most:.6g}" if isinstance(most, float) else most),
            ],
            "holds": [
                (f"{word}.{name}", text) for word, text in zip(("least", "most"), typed, strict=True) if text
            ],
        }


def _choices(groups: Groups, chosen: list[str]) -> list[tuple[str, str]]:
    """Return the most frequent values of a column that are not chosen yet, and how a page shows them."""
    made: list[tuple[str, str]] = []
    for code in np.argsort(-groups.counts, kind="stable").tolist():
        text = groups.values[code]
        if 0 < len(text) <= _LONGEST and text not in chosen and len(made) < _MOST_CHOICES:
            made.append((text, f"{shortened(text, _SHOWN)} ({groups.counts[code]:,})"))
    return made


def _has_groups(table: ItemTable, name: str) -> bool:
    """Return whether a column of texts or lists has a value that several items share."""
    is_text = table.kind(name, name) in ("text", "list")
    return is_text and int(table.groups(name, name).counts.max(initial=0)) > 1


def _whole(name: str, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ParameterError(name, "a whole number", text) from None


def _typed(name: str, kind: str | None, text: str) -> Any:
    """Return a value of the type of a column; times stay texts."""
    if kind == "flag":
        if text not in ("true", "false"):
            raise ParameterError(name, "true or false", text)
        return text == "true"
    if kind != "number":
        return text
    try:
        return int(text)
    except ValueError:
        pass
    try:
        return float(text)
    except ValueError:
        raise ParameterError(name, "a number", text) from None
