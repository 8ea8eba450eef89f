"""Which column of a table holds the users, the items, the values and the titles."""

import re
from collections.abc import Sequence
from difflib import get_close_matches
from itertools import pairwise

from mrfrec.errors import DataError, ParameterError
from mrfrec.io.sources import Source

__all__ = ["check_that_rows_may_be_counted", "find_roles", "find_titles"]

# Names of columns that are recognised, without case, spaces and punctuation. The first two of each are so
# plain that they win where a table has several.
_NAMES = {
    "user": "user userid uid users username customer customerid member memberid account accountid visitor "
    "visitorid session sessionid profile profileid client clientid player playerid reviewer reviewerid",
    "item": "item itemid iid items product productid movie movieid song songid track trackid artist artistid "
    "book bookid isbn asin anime animeid game gameid article articleid sku venue venueid location "
    "locationid poi poiid business businessid show showid recipe recipeid",
    "value": "value rating ratings stars count counts plays playcount weight quantity score",
    "title": "title itemtitle itemname productname producttitle movietitle booktitle songtitle name label",
}
_TIMES = "timestamp time date datetime unixtime created createdat"


def _plain(name: str) -> str:
    return re.sub(r"[\W_]", "", name).lower()


def find_roles(
    table: Source,
    user: str | None,
    item: str | None,
    value: str | None,
    title: str | None,
    needed: tuple[str, ...] = ("user", "item"),
) -> dict[str, str]:
    """Which column plays which part."""
    roles = {}
    for role, given in (("user", user), ("item", item), ("value", value), ("title", title)):
        if given is not None:
            roles[role] = _named(table, role, given)
    for role in ("user", "item", "value", "title"):
        if role not in roles:
            found = _recognised(table, role, taken=set(roles.values()))
            if found is not None and not (role == "title" and _plain(found) == "name"):
                roles[role] = found
            elif role in needed:
                raise DataError(
                    f"{table.name}: which column holds the {role}s? None of {_listed(table.columns)} "
                    f"tells by its name alone. Say {role}=… (--{role}-column at the command line); a file "
                    "without a header line also needs columns=… (--columns)."
                )
    for (role, name), (other, same) in pairwise(sorted(roles.items(), key=lambda pair: pair[1])):
        if name == same:
            raise ParameterError(role, f"another column than {other}", name)
    return roles


def _named(table: Source, role: str, name: str) -> str:
    if name not in table.columns:
        near = get_close_matches(str(name), table.columns, 1)
        advice = f"Did you mean {near[0]!r}?" if near else ""
        raise ParameterError(role, f"a column of {table.name}: {_listed(table.columns)}", name, advice)
    return name


def _recognised(table: Source, role: str, taken: set[str]) -> str | None:
    """The one column whose name fits, or None where none does or several do."""
    known = _NAMES[role].split()
    fitting = [name for name in table.columns if _plain(name) in known and name not in taken]
    plainest = [name for name in fitting if _plain(name) in known[:2]]
    for names in (plainest, fitting):
        if len(names) == 1:
            return names[0]
    return None


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(repr(name) for name in names[:12])
    return shown + (", …" if len(names) > 12 else "")


def check_that_rows_may_be_counted(table: Source, roles: dict[str, str]) -> None:
    """Without a value, each row counts 1; but not where some other column may be meant."""
    others = [
        name for name in table.columns if name not in roles.values() and _plain(name) not in _TIMES.split()
    ]
    if others:
        raise DataError(
            f"{table.name}: which column holds the values? It may be one of {_listed(others)}: say value=… "
            "(--value-column at the command line)."
        )


def find_titles(table: Source, title: str | None) -> tuple[str, str]:
    """The columns of a table of items: their ids and their titles."""
    ids = _recognised(table, "item", taken=set())
    if ids is None:
        ids = next((name for name in table.columns if _plain(name) == "id"), None)
    titles = _named(table, "title", title) if title is not None else _recognised(table, "title", taken=set())
    if ids is None or titles is None:
        raise DataError(
            f"{table.name}: which column holds the {'ids' if ids is None else 'titles'}? The columns are "
            f"{_listed(table.columns)}; call them item and title."
        )
    return ids, titles
