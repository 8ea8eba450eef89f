"""The items of a model: titles, popularity, features, and the search for an item by id or title."""

import re
from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple
from unicodedata import combining, normalize

import numpy as np
import numpy.typing as npt

from mrfrec.checks import counted, shortened
from mrfrec.core.rows import Rows
from mrfrec.data.ids import Id, Ids, Texts, inverse_of
from mrfrec.data.item_table import ItemFeatures, ItemTable
from mrfrec.data.pairs import Origin
from mrfrec.errors import DataError

# These bound the work of a search: the words of the text that count, the most popular items with the rarest
# word that are checked for the other words, and the spellings that are tried for a misspelt word, which must
# be similar to it by a percentage.
_MOST_WORDS = 10
_MOST_CANDIDATES = 5_000
_MOST_SPELLINGS = 3
_LEAST_SIMILARITY = 60
# C, C++ and C# are three words.
_WORD = re.compile(r"[^\W_]+(?:(?:\+\+|#)(?!\w))?")

Lines = npt.NDArray[np.int32]


class NameIndex:
    """An index of the words in the titles of items, and in their ids if the ids are text.

    Items are numbered by popularity, so that the first matches are the most popular ones. Capitals, accents
    and punctuation do not count. A part of the index is built when it is first needed.
    """

    def __init__(self, items: Ids, titles: Texts | None, popularity_rank: npt.NDArray[np.int32]) -> None:
        self._columns = [names for names in (items if items.is_text else None, titles) if names is not None]
        self._items = np.argsort(popularity_rank)

    def search(self, text: str, k: int) -> list[int]:
        """Return the indices of up to k items: equal names first, then names that begin with the text, then
        names with all words of the text.

        Words may come in any order, and the beginning of a word is enough. Equal matches come by popularity.
        If nothing matches, unknown words are replaced by the words spelt most like them.
        """
        words = words_of(text).split()[:_MOST_WORDS]
        lines = self._matching(words, k)
        if not lines and words and self._index[0]:
            frequencies = {word: self._frequency(word) for word in words}
            rarest = sorted(words, key=lambda word: frequencies[word])[:2]
            unknown = [word for word in rarest if not frequencies[word]] or rarest[:1]
            spellings = {word: self._nearest(word) for word in unknown}
            for attempt in range(_MOST_SPELLINGS):
                tried = [spellings.get(word, [])[attempt : attempt + 1] or [word] for word in words]
                lines = lines or self._matching([word for (word,) in tried], k)
        return [int(self._items[line]) for line in lines]

    def exact(self, text: str) -> list[int]:
        """Return the indices of the items whose name has exactly the words of the text."""
        names, lines = self._names
        key = words_of(text)
        first = bisect_left(names, key)
        last = bisect_left(names, key + "\0", first)
        return [int(self._items[line]) for line in sorted({*lines[first:last].tolist()})]

    # ── the index ─────────────────────────────────────────────────────────────────────────────────

    @cached_property
    def _lines(self) -> list[str]:
        """The words of an item's names in one line: spaces around words, tabs between names."""
        columns = [list(names) for names in self._columns]
        return [
            "\t".join(f" {words_of(str(column[i]))} " for column in columns) for i in self._items.tolist()
        ]

    @cached_property
    def _names(self) -> tuple[list[str], Lines]:
        """All names in alphabetical order, and the line of their item."""
        pairs = [(name[1:-1], line) for line, names in enumerate(self._lines) for name in names.split("\t")]
        pairs.sort()
        return [name for name, _ in pairs], np.array([line for _, line in pairs], np.int32)

    @cached_property
    def _index(self) -> tuple[list[str], npt.NDArray[np.int64], Lines]:
        """All words in alphabetical order, the offset of each word's items, and the items."""
        numbers: dict[str, int] = {}
        tokens: list[int] = []
        owners: list[int] = []
        for line, names in enumerate(self._lines):
            for word in {*names.split()}:
                tokens.append(numbers.setdefault(word, len(numbers)))
                owners.append(line)
        vocabulary = sorted(numbers)
        rank = np.empty(len(numbers), np.int64)
        rank[[numbers[word] for word in vocabulary]] = np.arange(len(numbers))
        token = rank[np.array(tokens, np.int64)]
        # A stable sort keeps the items of a word in the order of popularity.
        order = np.argsort(token, kind="stable")
        ptr = np.searchsorted(token[order], np.arange(len(numbers) + 1))
        return vocabulary, ptr, np.array(owners, np.int32)[order]

    # ── matching ──────────────────────────────────────────────────────────────────────────────────

    def _matching(self, words: list[str], k: int) -> list[int]:
        """Return the lines of matching items: the better matches first, then by popularity."""
        if not words:
            return []
        names, lines = self._names
        phrase = " ".join(words)
        first = bisect_left(names, phrase)
        matches = np.unique(lines[first : bisect_left(names, phrase + "\0", first)])[:k].tolist()
        if len(matches) < k:
            matches += _lowest(
                lines[first : bisect_left(names, phrase + "\U0010ffff", first)], k + len(matches)
            )
        if len(dict.fromkeys(matches)) < k:
            candidates = self._with_beginning(words)
            with_all = [x for x in candidates if all(f" {word}" in self._lines[x] for word in words)]
            matches += sorted(with_all, key=lambda line: (phrase not in self._lines[line], line))
        return list(dict.fromkeys(matches))[:k]

    def _with_beginning(self, words: list[str]) -> list[int]:
        """Return the most popular items with a word that begins like the rarest of these words."""
        vocabulary, ptr, lines = self._index
        firsts = [bisect_left(vocabulary, word) for word in words]
        lasts = [bisect_left(vocabulary, word + "\U0010ffff") for word in words]
        spans = [slice(int(ptr[a]), int(ptr[b])) for a, b in zip(firsts, lasts, strict=True)]
        return _lowest(lines[min(spans, key=lambda span: span.stop - span.start)], _MOST_CANDIDATES)

    def _frequency(self, word: str) -> int:
        vocabulary, ptr, _ = self._index
        index = bisect_left(vocabulary, word)
        known = index < len(vocabulary) and vocabulary[index] == word
        return int(ptr[index + 1] - ptr[index]) if known else 0

    def _nearest(self, word: str) -> list[str]:
        """Return the indexed words spelt most like this one; words of equal similarity come by frequency."""
        from rapidfuzz import fuzz, process

        vocabulary, ptr, _ = self._index
        similar = process.extract(
            word, vocabulary, scorer=fuzz.ratio, processor=None, score_cutoff=_LEAST_SIMILARITY, limit=None
        )
        ranked = [
            (-ratio, int(ptr[index] - ptr[index + 1]), other)
            for other, ratio, index in similar
            if other != word
        ]
        return [other for _, _, other in sorted(ranked)[:_MOST_SPELLINGS]]


def _lowest(lines: Lines, most: int) -> list[int]:
    """Return the distinct values among the `most` lowest lines, ascending."""
    some = lines if len(lines) <= most else np.partition(lines, most - 1)[:most]
    lowest: list[int] = np.unique(some).tolist()
    return lowest


def words_of(text: str) -> str:
    """Return the words of a text without capitals, accents and punctuation; a text without words stays."""
    if text.isascii():
        folded = text.lower()
    else:
        folded = "".join(c for c in normalize("NFKD", text.casefold()) if not combining(c))
    return " ".join(_WORD.findall(folded)) or " ".join(folded.split())


Columns = dict[str, Any]
# At most so many common features of two items are named.
_NAMED_FEATURES = 3


class DataSize(NamedTuple):
    """The size of a matrix, which decides between a dense and a sparse model."""

    users: int
    items: int
    pairs: int
    # Whether every value is 1.
    binary: bool

    def __str__(self) -> str:
        users, items = counted(self.users, "user"), counted(self.items, "item")
        return f"{users} × {items}, {counted(self.pairs, 'pair')}"


@dataclass(frozen=True)
class Catalogue:
    """The items of a model. The order by popularity and the search index are built when first needed.

    `popularity` is the number of users of each item; the item table has the same items.
    """

    items: Ids
    titles: Texts | None
    popularity: npt.NDArray[np.int64]
    n_users: int
    features: ItemFeatures | None = None
    table: ItemTable | None = None

    @cached_property
    def popularity_rank(self) -> npt.NDArray[np.int32]:
        """The rank of each item by popularity, from 0 for the most popular one; ties go by index."""
        return inverse_of(np.argsort(-self.popularity, kind="stable"), len(self.items))

    @cached_property
    def names(self) -> NameIndex:
        return NameIndex(self.items, self.titles, self.popularity_rank)

    def search(self, text: str, k: int) -> list[int]:
        """Return the indices of up to k items whose id or title matches the text, the best match first.

        An id that is a number must match as a whole.
        """
        number = text.strip()
        if self.items.is_text or not (number.isascii() and number.isdigit()):
            return self.names.search(text, k)
        known = [index for index in self.items.find([int(number)], "item").tolist() if index >= 0]
        return list(dict.fromkeys([*known, *self.names.search(text, k)]))[:k]

    def index_of(self, item: Id) -> int:
        """Return the index of an item; raise if it is unknown."""
        return int(self.indices_of([item])[0])

    def indices_of(self, items: Iterable[Id]) -> npt.NDArray[np.int64]:
        """Return the indices of items; raise if one is unknown."""
        wanted = list(items)
        indices = self.items.find(wanted, "item")
        if (indices < 0).any():
            item = wanted[int(np.argmax(indices < 0))]
            raise DataError(f"item {item!r} is unknown to the model. Find items by id or title: search(…).")
        return indices

    def title(self, item: int) -> str | None:
        return (self.titles[item] or None) if self.titles is not None else None

    def short_title(self, item: int) -> str | None:
        """Return the title, cut to 80 characters for lists of several titles."""
        return None if (title := self.title(item)) is None else shortened(title, 80)

    def name(self, item: int) -> str:
        """Return the title, or the id of an item without one."""
        title = self.title(item)
        return title if title and title.strip() else str(self.items[item])

    def columns(self, items: npt.NDArray[Any]) -> Columns:
        """Return the ids and titles of items by their indices."""
        titles = [""] * len(items) if self.titles is None else self.titles.take(items)
        return {"item": self.items.take(items), "title": [title or None for title in titles]}

    def in_common(self, item: int, other: int) -> list[str]:
        """Return the rarest features that two items share, if features make up most of the weight.

        That is so where features add more to S than users could: at most all users of the less popular item
        have both.
        """
        if self.features is None:
            return []
        names, squares = self.features.shared(item, other)
        users = int(min(self.popularity[item], self.popularity[other]))
        return names[:_NAMED_FEATURES] if self.features.weight**2 * squares > users else []


def name_with_id(item: Id, title: str | None) -> str:
    """Return "title [id]", or the id alone if the title is missing or the same."""
    name = shortened(str(item), 80)
    return f"{title} [{name}]" if title and title != name else name


@dataclass(frozen=True)
class Training:
    """The users a model was trained on and their histories."""

    users: Ids
    histories: Rows
    # How the histories were made from rows.
    origin: Origin | None = None
