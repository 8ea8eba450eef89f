"""Find the columns of a table that hold users, items and the rest; say what looks wrong with them."""

import re
from collections.abc import Collection, Mapping, Sequence
from itertools import pairwise

import numpy as np
import polars as pl

from mrfrec.checks import in_words
from mrfrec.data.pairs import DataNote
from mrfrec.errors import DataError, ParameterError
from mrfrec.io.batches import ID_ROLES, MISSING, OTHER, Source

# Names of columns that are recognised, without case, spaces and punctuation. If several columns fit a role,
# the one with one of the first two names is taken.
_NAMES = {
    "user": "user userid uid users username customer customerid member memberid account accountid visitor "
    "visitorid session sessionid profile profileid client clientid player playerid reviewer reviewerid "
    "buyer buyerid shopper shopperid subscriber subscriberid person personid",
    "item": "item itemid iid items product productid movie movieid song songid track trackid artist artistid "
    "book bookid isbn asin anime animeid game gameid article articleid sku venue venueid location "
    "locationid poi poiid business businessid show showid recipe recipeid film filmid video videoid "
    "stockcode productcode itemcode",
    "value": "value rating ratings stars count counts plays playcount weight quantity score "
    "qty units listens views clicks overall bookrating userrating movierating reviewrating reviewscore "
    "ratingscore starrating",
    "title": "title itemtitle itemname productname producttitle movietitle booktitle songtitle name label",
    "time": "timestamp time date datetime unixtime unixreviewtime ts created createdat ordered orderedat "
    "orderdate ordertime purchasedat purchasedate eventtime eventdate eventtimestamp orderedon purchasedon "
    "purchasetime boughtat watchedat viewedat playedat listenedat ratedat clickedat occurredat invoicedate",
    "event": "event eventtype kind action behavior behaviour eventname actiontype interactiontype",
}
# In lists of recommendations, the smallest rank or the largest score comes first.
_RANKS = "rank ranking position place"
_SCORES = "score prediction predicted predictedrating relevance rating value weight"
_NAMES_IN_ITEM_TABLE = ": call the one of the ids item, and that of titles, which may be left out, title."


def letters(name: str) -> str:
    """Return a name in lower case without spaces, punctuation, and what stands in brackets."""
    return re.sub(r"[\W_]", "", re.sub(r"(?<=\S)\s*[(\[](?!column \d).*", "", name)).lower()


def find_roles(
    table: Source,
    named: Mapping[str, object],
    needed: tuple[str, ...],
    usual: Mapping[str, str] | None = None,
    compared: Collection[str] = ID_ROLES,
) -> dict[str, str]:
    """Return the column of each role: a named column, else the usual one, else a recognised one.

    The usual columns are the columns of an earlier table. If several columns fit a role in `compared`, the
    result has all of them, and `check_that_columns_agree` refuses a table in which they differ.
    """
    names = {role: name for role in _NAMES if isinstance(name := named.get(role), str)}
    roles = {role: _named(table, role, name) for role, name in names.items()}
    for role, name in (usual or {}).items():
        if role not in roles and name in table.columns and name not in roles.values():
            roles[role] = name
    for role in (role for role in _NAMES if role not in roles):
        fitting = _recognised(table, role, roles.values())
        every = _fitting(table, role, roles.values())
        if len(every) > 1 and role in compared:
            roles[role] = fitting[0]
            roles |= {f"{OTHER}{role} {name}": name for name in every if name != fitting[0]}
        elif len(fitting) == 1 and not (role == "title" and letters(fitting[0]) == "name"):
            roles[role] = fitting[0]
        elif role in needed:
            headless = "needs one, or names for all: columns=… of read_interactions (fit --columns)"
            advice = f". Name it: {_how_to_name(role)}. A file without a header line {headless}."
            raise _unclear(table, role, advice, fitting)
    for (role, name), (other, same) in pairwise(sorted(roles.items(), key=lambda pair: pair[1])):
        if name == same:
            raise ParameterError(role, f"another column than {other}", name)
    return roles


def _how_to_name(role: str) -> str:
    where = f'--{role}-column; in a job {role} = "…" in [source]'
    return f"{role}=… of read_interactions or update ({where})"


def check_that_columns_agree(
    table: Source, roles: Mapping[str, str], batch: pl.DataFrame, before: int
) -> None:
    """Refuse rows in which two columns of one role differ; `before` is the number of earlier rows."""
    for other in (role for role in roles if role.startswith(OTHER)):
        role = other.removeprefix(OTHER).partition(" ")[0]
        first, second = (batch[each].cast(pl.String).str.strip_suffix(".0") for each in (role, other))
        if (different := first.ne_missing(second)).any():
            row = int(different.arg_true()[0])
            raise DataError(
                f"{table.name}: which column holds the {role}s? It may be {roles[role]!r} or "
                f"{roles[other]!r}, which differ: in row {before + row + 1:,} they are {first[row]!r} "
                f"and {second[row]!r}. Name it: {_how_to_name(role)}."
            )


def _named(table: Source, role: str, name: str) -> str:
    if name not in table.columns:
        raise ParameterError(role, f"a column of {table.name}: {name_list(table.columns)}", name)
    return name


def _recognised(table: Source, role: str, taken: Collection[str | None]) -> list[str]:
    """Return the columns whose names fit the role, or only the column with one of the first two names."""
    known, fitting = _NAMES[role].split(), _fitting(table, role, taken)
    plainest = [name for name in fitting if letters(name) in known[:2]]
    return plainest if len(plainest) == 1 else fitting


def _fitting(table: Source, role: str, taken: Collection[str | None]) -> list[str]:
    """Return the columns whose names fit the role."""
    known = _NAMES[role].split()
    return [name for name in table.columns if letters(name) in known and name not in taken]


def find_lists(
    table: Source, user: str | None, item: str | None, rank: str | None, score: str | None
) -> dict[str, str]:
    """Return the columns of a table of lists: users, items, and ranks or scores if it has them."""
    roles = {role: _named(table, role, name) for role, name in (("user", user), ("item", item)) if name}
    for role in ("user", "item"):
        if role not in roles:
            fitting = _recognised(table, role, roles.values())
            if len(fitting) != 1:
                raise _unclear(table, role, f". Name it: {role}=… of read_lists, or call it {role}.")
            roles[role] = fitting[0]
    for role, name, known in (("rank", rank, _RANKS), ("score", score, _SCORES)):
        fitting = [c for c in table.columns if letters(c) in known.split() and c not in roles.values()]
        if name is not None:
            roles[role] = _named(table, role, name)
        elif len(fitting) == 1 and not {"rank", "score"} & {*roles} and score is None:
            roles[role] = fitting[0]
    return roles


def name_list(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names[:12])) + (", …" if len(names) > 12 else "")


def check_that_rows_may_be_counted(table: Source, roles: dict[str, str]) -> None:
    """Refuse to count rows as values if another column may hold the values."""
    times = _NAMES["time"].split()
    others = [name for name in table.columns if name not in roles.values() and letters(name) not in times]
    if others:
        raise DataError(
            f"{table.name}: which column holds the values? It may be one of {name_list(others)}: name it by "
            'value=… of read_interactions (--value-column; in a job value = "…" in [source]).'
        )


def find_item(table: Source, item: str | None, taken: str | None = None) -> str:
    """Return the column of an item table that holds the ids."""
    if item is not None:
        return _named(table, "item", item)
    fitting = _recognised(table, "item", {taken}) or [n for n in table.columns if letters(n) == "id"]
    if len(fitting) != 1:
        raise _unclear(table, "item", _NAMES_IN_ITEM_TABLE)
    return fitting[0]


def find_item_columns(table: Source, item: str | None, title: str | None = None) -> tuple[str, str | None]:
    """Return the columns of an item table that hold the ids and the titles; the titles may be missing."""
    named = None if title is None else _named(table, "title", title)
    ids = find_item(table, item, named)
    if named == ids:
        raise ParameterError("title", "another column than item", title)
    if len(table.columns) == 1:
        raise DataError(f"{table.name} has no column beside {ids!r}.")
    if named is None:
        fitting = _recognised(table, "title", {ids})
        named = fitting[0] if len(fitting) == 1 else None
    return ids, named


def _unclear(table: Source, role: str, advice: str, fitting: Sequence[str] = ()) -> DataError:
    columns = name_list(table.columns)
    may = f"It may be {in_words(map(repr, fitting), 'or')}; the" if fitting else "The"
    return DataError(f"{table.name}: which column holds the {role}s? {may} columns are {columns}{advice}")


# Words in names of columns that may say which rows are no likes.
_TELLING = re.compile(
    "rating|score|stars|overall|like|click|purchas|bought|return|refund|cancel|target|label|convert|positive|"
    "implicit|feedback|vote|thumb|relevan"
)
_RATINGS = re.compile("rating|stars|overall|score|^value$")
# Words in kinds of events that are no likes.
_NO_LIKE = "(?i)refund|return|cancel|dislike|remove|skip|down"
# A column of titles has more distinct values than this, unless there are as few items, and differs within at
# most this share of the items.
_FEW_TITLES = 2
_DIFFERENT = 0.1
# One user or item in all rows is odd from so many rows on, and a full table from so many users and items on.
_ROWS = 10


def unread_columns(table: Source, roles: Mapping[str, str]) -> list[str]:
    """Return the columns to look at: of values that no option uses, and others with a telling name."""
    known = {name for role in ("time", "title") for name in _NAMES[role].split()}
    taken = {name for role, name in roles.items() if role != "value"}
    names = [name for name in table.columns if name not in taken and letters(name) not in known]
    return [name for name in names if name == roles.get("value") or _TELLING.search(letters(name))]


class UnreadColumn:
    """The range of the values of a column that no option uses.

    `holds_values` says whether it was recognised as the column of values, `counts` what each row counts.
    """

    def __init__(self, name: str, table: str, counts: str, *, holds_values: bool) -> None:
        self.column = f"column {name!r} of {table}"
        self.name = name
        self.holds_values = holds_values
        # What a row counts, in words.
        self._counts = counts
        self._count = self._zeros = self._negative = self._ones = self._missing = self._odd = 0
        self._least, self._most = np.inf, -np.inf
        self._are_halves = True
        # A text that is no number.
        self._example = ""

    def add(self, raw: pl.Series) -> None:
        if raw.dtype in (pl.Categorical, pl.Enum):
            raw = raw.cast(pl.String)
        if raw.dtype == pl.String:
            raw = raw.str.strip_chars()
            raw = raw.replace(
                {"true": "1", "True": "1", "TRUE": "1", "false": "0", "False": "0", "FALSE": "0"}
            )
        if not (raw.dtype.is_numeric() or raw.dtype in (pl.String, pl.Boolean)):
            return
        number = raw.cast(pl.Float64, strict=False).fill_nan(None)
        if raw.dtype == pl.String and len(odd := raw.filter(number.is_null() & ~raw.is_in(["", *MISSING]))):
            self._odd += len(odd)
            self._example = self._example or odd[0]
        values = number.drop_nulls().to_numpy()
        self._missing += len(raw) - len(values)
        self._count += len(values)
        self._zeros += int((values == 0).sum())
        self._ones += int((values == 1).sum())
        self._negative += int((values < 0).sum())
        self._least = min(self._least, float(values.min(initial=np.inf)))
        self._most = max(self._most, float(values.max(initial=-np.inf)))
        self._are_halves = self._are_halves and bool((values * 2 == np.floor(values * 2)).all())

    def note(self) -> DataNote | None:
        """Return a note if it seems wrong to count every row as a like."""
        of_all = f"of {self._count:,} values"
        least, count = 1, self._zeros
        # Ratings from here on mean that the item is liked.
        good = 4 if self._most <= 5 else 8 if self._most <= 10 else 80
        if self._zeros and self._ones and self._zeros + self._ones == self._count:
            seems = f"looks like labels: {self._zeros:,} {of_all} are 0, the others 1"
        elif self._may_be_ratings() and self._least < min(good, self._most):
            least, count = good, self._count
            seems = f"looks like ratings from {self._least:g} to {self._most:g}"
        elif self._negative:
            count = self._negative
            seems = f"looks like one with returns or dislikes: {self._negative:,} {of_all} are below 0"
        elif not self.holds_values:
            return None
        elif self._zeros:
            seems = f"has values of 0: {self._zeros:,} {of_all}"
        elif self._missing:
            count = self._missing
            what = f"are no numbers, such as {self._example!r}" if self._odd else "are missing"
            seems = f"has {self._odd or count:,} of {self._count + count:,} values that {what}"
        else:
            return None
        return DataNote("looks like", count, f"{self.column} {seems}, but {self.ways(least)}")

    def _may_be_ratings(self) -> bool:
        name = letters(self.name)
        if not _RATINGS.search(name) or not 1 < self._most <= (5 if name == "value" else 100):
            return False
        return self._are_halves or bool(re.search("rating|stars|overall", name))

    def ways(self, least: int = 1) -> str:
        """Say what the rows count, and how to change that."""
        return (
            f"every row counts {self._counts}. To count only good ones: value={self.name!r}, "
            f"min_value={least} (--value-column, --min-value). If every row is one: value=False "
            "(--value-column no)."
        )


class UnreadEvents:
    """Kinds of events that no option uses and that may be no likes."""

    def __init__(self, name: str, table: str, counts: str) -> None:
        self.name = name
        self._column = f"column {name!r} of {table}"
        self._counts = counts
        self._count = 0
        self._example = ""

    def add(self, raw: pl.Series) -> None:
        if raw.dtype in (pl.String, pl.Categorical, pl.Enum):
            texts = raw.cast(pl.String)
            if len(odd := texts.filter(texts.str.contains(_NO_LIKE))):
                self._count += len(odd)
                self._example = self._example or odd[0]

    def note(self) -> DataNote | None:
        if not self._count:
            return None
        text = (
            f"{self._column} has {self._count:,} events such as {self._example!r}, but every row counts "
            f"{self._counts}. Say what each kind counts: event_weights={{{self._example!r}: 0, 'other': 1}} "
            "(--event-weights). If every row is one: value=False (--value-column no)."
        )
        return DataNote("looks like", self._count, text)


def note_on_titles(column: str, titles: pl.DataFrame) -> DataNote | None:
    """Return a note if a column that was recognised by its name holds no titles.

    `titles` has a row for each item, with its first and its last title in alphabetical order.
    """
    if not len(titles):
        return None
    every = pl.concat([titles["first"], titles["last"]]).unique()
    different = int((titles["first"] != titles["last"]).sum())
    if len(titles) > _FEW_TITLES and len(every) <= _FEW_TITLES:
        why = f"it has {'one value' if len(every) == 1 else 'two values'} for {len(titles):,} items"
    elif every.str.strip_chars().cast(pl.Float64, strict=False).null_count() == 0:
        why = "it holds numbers"
    elif different > _DIFFERENT * len(titles):
        why = f"it differs within {different:,} of {len(titles):,} items"
    else:
        return None
    text = (
        f"column {column!r} is not read as titles: {why}. If it holds them: title={column!r} "
        f"(--title-column). If it says who liked an item: value={column!r}, min_value=1."
    )
    return DataNote("looks like", len(titles), text)


def note_on_one_id(role: str, column: str, ids: int, rows: int) -> DataNote | None:
    """Return a note if all rows have the same user, or the same item."""
    if ids > 1 or rows < _ROWS:
        return None
    text = (
        f"column {column!r} has one {role} in all {rows:,} rows: does it hold the {role}s? If another column "
        f"does, name it: {role}=… (--{role}-column)."
    )
    return DataNote("looks like", rows, text)


def note_on_all_pairs(users: int, items: int, pairs: int) -> DataNote | None:
    """Return a note if every user has every item, as in a table that was made from a matrix."""
    if min(users, items) < _ROWS or pairs < users * items:
        return None
    text = (
        f"each of {users:,} users has each of {items:,} items: nothing can be learned from this. If rows of "
        "value 0 are no interactions, leave them out: value=…, min_value=1 (--value-column, --min-value)."
    )
    return DataNote("looks like", pairs, text)
