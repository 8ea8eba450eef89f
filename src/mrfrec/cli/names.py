"""Items as people name them: by id or by title, with a guess where neither fits."""

from collections.abc import Iterable
from difflib import get_close_matches
from pathlib import Path

from mrfrec.catalogue import Catalogue
from mrfrec.errors import DataError
from mrfrec.ids import Id

__all__ = ["find_item", "find_items"]

_GUESSES = 5


def find_items(texts: Iterable[str], catalogue: Catalogue) -> list[Id]:
    """Ids of the items named: one by one, several with commas between them, or @FILE with one to a line."""
    found: list[Id] = []
    for text in texts:
        if text.startswith("@"):
            names = [line.strip() for line in _lines(text[1:]) if line.strip()]
            found += [find_item(name, catalogue) for name in names]
        elif "," not in text or _known(text, catalogue):  # a title may have commas in it
            found.append(find_item(text, catalogue))
        else:
            found += [find_item(name.strip(), catalogue) for name in text.split(",") if name.strip()]
    return found


def _lines(name: str) -> list[str]:
    try:
        return Path(name).expanduser().read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"@{name} cannot be read: {error}.") from error


def _known(text: str, catalogue: Catalogue) -> bool:
    try:
        find_item(text, catalogue, guess=False)
    except DataError:
        return False
    return True


def find_item(text: str, catalogue: Catalogue, guess: bool = True) -> Id:
    """The id of the item that has this id or this title."""
    items, titles = catalogue.items, catalogue.titles
    if items.is_text or text.lstrip("-").isdecimal():
        wanted = items.parse(text, "item")
        if items.find([wanted], "item")[0] >= 0:
            return wanted
    if titles is not None:
        all_titles = list(titles)
        folded = text.casefold()
        for matches in (
            [i for i, title in enumerate(all_titles) if title == text],
            [i for i, title in enumerate(all_titles) if title.casefold() == folded],
        ):
            if len(matches) == 1:
                return items[matches[0]]
            if matches:
                raise DataError(
                    f"several items have the title {text!r}: {_shown(matches, catalogue)}. Name one by id."
                )
    near = _near(text, catalogue) if guess else []
    advice = f" Did you mean {_shown(near, catalogue)}?" if near else ""
    raise DataError(f"no item has the id or the title {text!r}.{advice}")


def _near(text: str, catalogue: Catalogue) -> list[int]:
    """Items whose id or title contains the text, the most popular first; else those spelt most like it."""
    folded = text.casefold()
    names: dict[str, int] = {}
    for source in (catalogue.items if catalogue.items.is_text else [], catalogue.titles or []):
        for position, name in enumerate(source):
            names.setdefault(str(name).casefold(), position)
    containing = {position for name, position in names.items() if folded and folded in name}
    if containing:
        return sorted(containing, key=lambda i: -int(catalogue.popularity[i]))[:_GUESSES]
    # Comparing with everything takes long in a large catalogue: only with what shares three letters.
    pieces = {folded[i : i + 3] for i in range(max(len(folded) - 2, 1))}
    alike = [name for name in names if any(piece in name for piece in pieces)]
    return list(dict.fromkeys(names[name] for name in get_close_matches(folded, alike, _GUESSES, 0.5)))


def _shown(positions: list[int], catalogue: Catalogue) -> str:
    def one(position: int) -> str:
        title = catalogue.title(position)
        return f"{catalogue.items[position]}" + (f" ({title})" if title else "")

    more = "" if len(positions) <= _GUESSES else f" and {len(positions) - _GUESSES} more"
    return "; ".join(one(position) for position in positions[:_GUESSES]) + more
