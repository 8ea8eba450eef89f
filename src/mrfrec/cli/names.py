"""Find items and users named by id or title on the command line or in files."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from mrfrec.checks import warn
from mrfrec.data.catalogue import Catalogue
from mrfrec.data.ids import Id, Ids
from mrfrec.errors import DataError
from mrfrec.io.atomic import expanded
from mrfrec.models.answers.histories import UnknownIds, query_of
from mrfrec.models.recommender import Recommender

if TYPE_CHECKING:
    from mrfrec.data.interactions import Interactions

_GUESSES = 5


class ItemNames:
    """Finds items by id or title; suggests close matches if neither fits."""

    def __init__(self, catalogue: Catalogue) -> None:
        self._catalogue = catalogue

    def find_all(self, texts: Iterable[str]) -> list[Id]:
        """Return the ids of items named one by one, separated by commas, or in @FILE, one per line."""
        return [self.find(name) if known is None else known for name, known in self._named(texts)]

    def find_known(self, texts: Iterable[str], option: str) -> list[Id]:
        """Return the ids as `find_all` does; warn of the unknown names, and leave them out."""
        named = list(self._named(texts))
        unknown: list[Id] = [name for name, known in named if known is None]
        if unknown:
            UnknownIds(option, unknown, len(named)).warn()
        return [known for _, known in named if known is not None]

    def _named(self, texts: Iterable[str]) -> Iterator[tuple[str, Id | None]]:
        """Yield each name and its id, None if it is unknown."""
        for text in texts:
            # Ids may also start with @, such as @types/node.
            is_file = text.startswith("@") and self._known(text) is None
            if is_file and ("," not in text or expanded(text[1:]).is_file()):
                yield from ((line, self._known(line)) for line in _lines(Path(text[1:])))
            else:
                yield from self._split(text)

    def find(self, text: str) -> Id:
        """Return the id of the item that has this id or this title."""
        known = self._known(text)
        if known is None:
            near = self._catalogue.search(text, _GUESSES)
            advice = f" Did you mean {self._shown(near)}?" if near else ""
            raise DataError(f"no item has the id or the title {text!r}.{advice}")
        return known

    def _known(self, text: str) -> Id | None:
        items, titles = self._catalogue.items, self._catalogue.titles
        if items.is_text or text.removeprefix("-").isdecimal():
            wanted = items.parse(text, "item")
            if items.find([wanted], "item")[0] >= 0:
                return wanted
        alike = self._catalogue.index.exact(text) if titles is not None and text else []
        named = {place: self._catalogue.title(place) or "" for place in alike}
        folded = [place for place, title in named.items() if title.casefold() == text.casefold()]
        for matches in ([place for place in folded if named[place] == text], folded):
            if len(matches) > 1:
                shown = self._shown(matches)
                raise DataError(f"several items have the title {text!r}: {shown}. Name one by id.")
            if matches:
                return items[matches[0]]
        return None

    def _split(self, text: str) -> Iterator[tuple[str, Id | None]]:
        """Split names at commas; names may contain commas, so the longest known name wins.

        Names may be in quotation marks, as in CSV files.
        """
        pieces = text.split(",")
        if not text.strip(" ,"):
            raise DataError(f"{text!r} names no item.")
        start = 0
        while start < len(pieces):
            longest = min(len(pieces), start + 1 + self._most_commas)
            for stop in range(longest, start, -1):
                exact = ",".join(pieces[start:stop])
                name = exact.strip()
                known = self._known(exact)  # ids of tables with types may begin or end with spaces
                known = self._known(name) if known is None else known
                if known is None and len(name) > 2 and name[0] == name[-1] == '"':
                    known = self._known(name[1:-1])
                if known is not None or (stop == start + 1 and name):
                    yield name, known
                    break
            start = stop

    @cached_property
    def _most_commas(self) -> int:
        names = (*(self._catalogue.titles or ()), *self._catalogue.items)
        return max((str(name).count(",") for name in names), default=0)

    def _shown(self, positions: list[int]) -> str:
        named = [
            (self._catalogue.items[place], self._catalogue.title(place)) for place in positions[:_GUESSES]
        ]
        more = "" if len(positions) <= _GUESSES else f" and {len(positions) - _GUESSES} more"
        return "; ".join(f"{item} ({title})" if title else f"{item}" for item, title in named) + more


def find_users(
    model: Recommender, users: list[str] | None, path: Path | None, known: bool = False
) -> list[Id]:
    """Return user ids given one by one, or in a file: one per line, or as a column of a table.

    `known` refuses those the model was not trained on.
    """
    ids = model.users_
    if ids is None:
        query_of(model)  # raises if histories are missing
    assert ids is not None
    if path is None or path.suffix.lower() in (".txt", ""):
        found = [ids.parse(text, "user") for text in (users or [] if path is None else _lines(path))]
    else:
        from mrfrec.io.tables import read_users

        with _reading("--users", path):
            found = read_users(path, ids)
    if repeated := len(found) - len(dict.fromkeys(found)):
        found = list(dict.fromkeys(found))
        warn(f"{repeated:,} of {repeated + len(found):,} user ids are repetitions; each user counts once.")
    strangers = [id_ for id_, place in zip(found, ids.find(found, "user"), strict=True) if place < 0]
    if known and strangers:
        raise DataError(f"user {strangers[0]!r} is unknown to the model.")
    return found


def read_histories(
    path: Path,
    items: Ids,
    binary: bool,
    user_column: str | None,
    item_column: str | None,
    option: str = "--history-file",
) -> "Interactions":
    """Read a table of histories, with item ids of the model's type."""
    from mrfrec.data.interactions import Interactions
    from mrfrec.io.tables import read_interactions

    with _reading(option, path):
        data = read_interactions(path, user_column, item_column, binary=binary)
        if items.is_text and not data.items.is_text:  # ids of digits alone were read as numbers
            data = Interactions(data.matrix, data.users, [str(item) for item in data.items], copy=False)
        _check_types(data.items, items, "item")
    return data


def read_exclusions(
    path: Path, users: Ids, everybody: bool, items: Ids, user_column: str | None, item_column: str | None
) -> dict[Id | None, list[Id]]:
    """Read a table of items not to recommend, by user; only of the users asked for.

    `everybody` says that all users are asked for, so that the others are unknown.
    """
    option = "--exclude-file"
    data = read_histories(path, items, True, user_column, item_column, option)
    with _reading(option, path):
        if not users.is_text:
            _check_types(data.users, users, "user")
    names = [str(user) if users.is_text else user for user in data.users]
    asked = users.find(names, "user") >= 0
    if not asked.any():
        warn(f"{path} names none of the users asked for: are the ids the same?")
    elif everybody and not asked.all():
        count, first = f"{int((~asked).sum()):,} of {len(names):,}", names[int((~asked).argmax())]
        warn(f"{option}: {count} users are unknown to the model; ignored (the first is {first!r}).")
    known = items.find(data.items, "item") >= 0
    ptr, places = data.matrix.indptr, data.matrix.indices
    excluded: dict[Id | None, list[Id]] = {}
    unknown: list[Id] = []
    for row in asked.nonzero()[0].tolist():
        had = places[ptr[row] : ptr[row + 1]]
        excluded[names[row]] = data.items.take(had[known[had]])
        unknown += data.items.take(had[~known[had]])
    if unknown:
        UnknownIds(option, unknown, len(unknown) + sum(map(len, excluded.values()))).warn()
    return excluded


@contextmanager
def _reading(option: str, path: Path) -> Iterator[None]:
    """Name the option and the file in errors about it. Its rows cannot be skipped."""
    try:
        yield
    except DataError as error:
        from mrfrec.io.row_reader import OR_SKIP

        text = str(error).replace(OR_SKIP, "")
        raise DataError(f"{option}: {text if str(path) in text else f'{path}: {text}'}") from error


def _check_types(ids: Ids, known: Ids, name: str) -> None:
    """Refuse texts in place of integers, and name the first that is none."""
    for text in ids if ids.is_text and not known.is_text else ():
        known.parse(str(text), name)
    known.find(ids[:1], name)  # all are of one type


def _lines(path: Path) -> list[str]:
    """Return the non-empty lines of a text file."""
    try:
        text = expanded(path).read_text(encoding="utf-8-sig")
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise DataError(f"{path} cannot be read: it is not text in UTF-8 ({error.reason}).") from error
    return [line.strip() for line in text.split("\n") if line.strip()]
