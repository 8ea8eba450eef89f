"""Find items and users named by id or title on the command line or in files."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from mrfrec.answers.people import UnknownIds, people_of
from mrfrec.checks import warn
from mrfrec.data.catalogue import Catalogue, name_with_id
from mrfrec.data.ids import Id, Ids
from mrfrec.data.interactions import Interactions
from mrfrec.errors import DataError
from mrfrec.io.atomic import expanded
from mrfrec.io.tables import RowsBefore, read_events, read_users
from mrfrec.models.recommender import Recommender

_GUESSES = 3


class ItemNames:
    """Finds items by id or title."""

    def __init__(self, catalogue: Catalogue) -> None:
        self._catalogue = catalogue

    def find_all(self, texts: Iterable[str]) -> list[Id]:
        """Return the ids of items named one by one, separated by commas, or in @FILE, one per line."""
        return [self.find(name) for name in self._named(texts)]

    def history(self, texts: Iterable[str], disliked: Iterable[str] | None, usual: float) -> Any:
        """Return a history for `recommend`: ids in their order or, with dislikes, values without an order."""
        liked = self.find_all(texts)
        if not disliked:
            return liked
        values = dict.fromkeys(liked, usual)
        for item in self.find_all(disliked):
            if item in values and values[item] > 0:
                raise DataError(f"item {item!r} is in --history and in --dislike: name it in one of them.")
            values[item] = -usual
        return values

    def find_known(self, texts: Iterable[str], option: str) -> list[Id]:
        """Return the ids as `find_all` does; warn of the unknown names, and leave them out."""
        found = {name: self._known(name) for name in self._named(texts)}
        unknown: list[Id] = [name for name, known in found.items() if known is None]
        if unknown:
            UnknownIds(option, unknown, len(found)).warn()
        return [known for known in found.values() if known is not None]

    def _named(self, texts: Iterable[str]) -> Iterator[str]:
        """Yield each name: a text is one if an item is called so, whatever its commas and its first sign."""
        for text in texts:
            if self._known(text) is not None:
                yield text
            elif text.startswith("@") and "," not in text:
                yield from _lines(Path(text[1:]))
            else:
                names = [name.strip() for name in text.split(",") if name.strip()]
                if not names:
                    raise DataError(f"{text!r} names no item.")
                yield from names

    def find(self, text: str) -> Id:
        """Return the id of the item that has this id or this title."""
        known = self._known(text)
        if known is None:
            own = self._catalogue
            near = [name_with_id(own.items[i], own.short_title(i)) for i in own.search(text, _GUESSES)]
            advice = f" Did you mean {', '.join(near)}?" if near else ""
            raise DataError(f"no item has the id or the title {text!r}.{advice}")
        return known

    def _known(self, text: str) -> Id | None:
        items = self._catalogue.items
        titles = self._catalogue.titles
        if items.is_text or text.removeprefix("-").isdecimal():
            wanted = items.parse(text, "item")
            if items.find([wanted], "item")[0] >= 0:
                return wanted
        alike = self._catalogue.names.exact(text) if titles is not None and text else []
        named = {place: self._catalogue.title(place) or "" for place in alike}
        folded = [place for place, title in named.items() if title.casefold() == text.casefold()]
        matches = [place for place in folded if named[place] == text] or folded
        if len(matches) > 1:
            ids = ", ".join(str(items[place]) for place in matches[:_GUESSES])
            raise DataError(f"several items have the title {text!r}: {ids}. Name one by id.")
        return items[matches[0]] if matches else None


def users_of(model: Recommender) -> Ids:
    """Return the ids of the training users; raise if the model has none."""
    if model.users_ is None:
        people_of(model.fitted_)  # raises
    assert model.users_ is not None
    return model.users_


def find_users(
    model: Recommender,
    users: list[str] | None,
    path: Path | None,
    column: str | None = None,
    *,
    or_texts: bool = False,
) -> list[Id]:
    """Return user ids given one by one, or in a file: one per line, or as a column of a table.

    They have the type of those of the model, and are texts where it has no histories and `or_texts`.
    """
    ids = Ids.of([""], "user") if or_texts and model.users_ is None else users_of(model)
    if path is None or path.suffix.lower() in (".txt", ""):
        return [ids.parse(text, "user") for text in (users or [] if path is None else _lines(path))]

    return read_users(path, ids, column)


def typed_as(items: Ids, data: Interactions, path: Path) -> Interactions:
    """Return what was read from a file, with item ids of the model's type."""
    if items.is_text and not data.items.is_text:  # ids of digits alone were read as numbers
        data = Interactions(data.matrix, data.users, [str(item) for item in data.items], copy=False)
    for text in data.items if data.items.is_text and not items.is_text else ():
        items.parse(str(text), f"{path}: item")  # raises for the first that is no integer
    return data


def read_exclusions(
    path: Path, users: Iterable[Id], user_ids: Ids, items: Ids, columns: dict[str, Any]
) -> dict[Id | None, list[Id]]:
    """Read a table of items not to recommend to each of the users; `user_ids` tells the type of their ids."""
    data = typed_as(items, read_events(path, RowsBefore({}), **columns), path)
    wanted = set(users)
    X = data.matrix
    by_user: dict[Id | None, list[Id]] = {}
    for row, user in enumerate(data.users):
        name = user_ids.parse(str(user), f"{path}: user")
        if name in wanted:
            by_user[name] = data.items.take(X.indices[X.indptr[row] : X.indptr[row + 1]])
    if others := data.n_users - len(by_user):
        warn(f"{path}: {others:,} of {data.n_users:,} users are not among those asked for; ignored.")
    return by_user


def _lines(path: Path) -> list[str]:
    """Return the non-empty lines of a text file."""
    try:
        text = expanded(path).read_text(encoding="utf-8-sig")
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise DataError(f"{path} cannot be read: it is not text in UTF-8 ({error.reason}).") from error
    return [line.strip() for line in text.split("\n") if line.strip()]
