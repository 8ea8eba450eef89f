"""What is named on the command line: models, and items and users by id or title.

A model is named as `EASE`, `EASE: l2=100`, `dense: l2=6, sparsity=dense` or `best.json`.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from mrfrec.answers.people import UnknownIds, people_of
from mrfrec.checks import in_words, warn
from mrfrec.cli.derived import parse_value
from mrfrec.data.catalogue import Catalogue, name_with_id
from mrfrec.data.ids import Id, Ids
from mrfrec.data.interactions import Interactions
from mrfrec.errors import DataError, ParameterError
from mrfrec.io.atomic import expanded
from mrfrec.io.tables import RowsBefore, read_events, read_users
from mrfrec.models.mrf.parameters import PAPER
from mrfrec.models.recommender import Recommender
from mrfrec.models.registry import MODELS, build, kind_named, model_class, nearest_kind

_GUESSES = 3


class Spec(NamedTuple):
    """A model as typed: its name in tables, its kind and its parameters."""

    name: str
    kind: str
    parameters: dict[str, Any]


def only_model(texts: Sequence[str] | None) -> str:
    """Return the model of a command that takes one, or "" if none was typed."""
    if texts and len(texts) > 1:
        raise ParameterError("--model", "given once", in_words(texts), "mrfrec compare takes several.")
    if texts and not texts[0].strip():
        raise ParameterError("--model", "a model such as EASE, or left out", texts[0])
    return texts[0] if texts else ""


def parse_model(text: str, file: Path | None = None) -> Spec:
    """Parse `KIND`, or `NAME: part, part, …`: `parameter=value`, `model=KIND`, `preset=paper`, `FILE.json`.

    The kind of model is given by a name that is one, by `model=KIND` or by a file; it is MRF by default.
    Later parts override earlier ones, and `file` comes first. The name defaults to the text, or to that of a
    file alone.
    """
    head, colon, rest = text.partition(":")
    is_named = bool(colon) and "=" not in head and not head.strip().endswith(".json")
    name, what = (head.strip(), rest.strip()) if is_named else ("", text.strip())
    if not is_named and kind_named(what):
        name, what = what, ""
    parts: list[tuple[str | None, Mapping[str, Any]]] = [(kind_named(name), {})]
    if file is not None:
        parts.append(read_parameters(file))
    for part in filter(None, (part.strip() for part in what.split(","))):
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if part.endswith(".json") and not equals:
            parts.append(read_parameters(Path(part)))
            name = name or (Path(part).stem if part == what else "")
        elif not equals or not value or " " in key:
            rule = f"one of {', '.join(MODELS)}, a file of parameters (.json), or parameter=value, …"
            near = nearest_kind(part)
            raise ParameterError("--model", rule, text, f"Did you mean {near!r}?" if near else "")
        elif part == "preset=paper":
            parts.append(("MRF", PAPER))
        elif key == "model":
            parts.append((model_class(value).__name__, {}))
        else:
            parts.append((None, {key: parse_value(value)}))
    kinds = {kind for kind, _ in parts if kind is not None}
    if len(kinds) > 1:
        raise ParameterError("--model", f"of one kind, not {in_words(sorted(kinds))}", text)
    parameters = {key: x for _, values in parts for key, x in values.items()}
    return Spec(name or what or "MRF", next(iter(kinds), "MRF"), parameters)


def read_parameters(path: Path) -> tuple[str | None, dict[str, Any]]:
    """Read a file written by mrfrec tune: the kind of model, None if it is not given, and parameters."""
    content = read_object(path)
    if not isinstance(content.get("parameters"), dict):
        raise DataError(f'{path} is not a file of parameters, such as {{"parameters": {{"l2": 6}}}}.')
    kind = model_class(content["model"]).__name__ if "model" in content else None
    return kind, content["parameters"]


def read_object(path: Path) -> dict[str, Any]:
    """Read a JSON object with parameters in it."""
    try:
        content = json.loads(expanded(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}.") from error
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path} is not a file of parameters: {error}.") from error
    if not isinstance(content, dict):
        raise DataError(f"{path} is not a file of parameters: it holds no JSON object.")
    return content


def make_models(specs: Sequence[Spec], machine: Mapping[str, Any]) -> list[Recommender]:
    """Build models that can be trained on this machine."""
    check_machine(machine, [spec.kind for spec in specs])
    made = [build(spec.kind, spec.parameters, machine) for spec in specs]
    for each in made:
        each.check_ready()
    return made


def with_options(spec: Spec, typed: Mapping[str, Any]) -> Spec:
    """Override parameters by options that were typed."""
    return spec._replace(parameters={**spec.parameters, **typed})


def check_machine(machine: Mapping[str, Any], kinds: Iterable[str]) -> None:
    """Refuse machine options that none of the models has."""
    used = list(dict.fromkeys(kinds))
    having = [kind for kind in MODELS if "device" in model_class(kind).defaults()]
    if machine.get("device") is not None and not set(used) & set(having):
        rule = f"left out with {', '.join(used)}"
        raise ParameterError("--device", rule, str(machine["device"]), f"It is for {', '.join(having)}.")


def parse_space(texts: Iterable[str]) -> dict[str, Any]:
    """Parse what a tuning varies: `l2=1:1000:log`, `sparsity=dense,0.01`, or `novelty=no`."""
    space: dict[str, Any] = {}
    for text in texts:
        name, _, typed = (part.strip() for part in text.partition("="))
        if not typed or name in space:
            raise ParameterError("--vary", "NAME=LOW:HIGH or NAME=VALUE,VALUE, once for each name", text)
        is_range = ":" in typed
        values = [parse_value(part.strip()) for part in typed.split(":" if is_range else ",")]
        space[name] = None if typed == "no" else tuple(values) if is_range else list(dict.fromkeys(values))
    return space


# ── items and users ───────────────────────────────────────────────────────────────────────────────


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
