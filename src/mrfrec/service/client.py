"""Ask a service as one asks a model: the same methods, the same tables."""

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, Self
from urllib.parse import quote

from mrfrec.checks import check_count, check_flag, check_number, warn
from mrfrec.data.ids import Id
from mrfrec.errors import DataError, MissingLibraryError, ParameterError, ServiceError

if TYPE_CHECKING:
    pass

_COLUMNS = ("user", "item", "title", "score", "rank", "source")
_NEIGHBOR_COLUMNS = ("item", "title", "score", "rank")
_LONGEST_PAUSE = 10.0  # seconds to wait at most for a busy service before it is asked again
_KEPT = 100_000  # names of items that are remembered


class _Histories(NamedTuple):
    """Histories as the API takes them, and the names of their owners."""

    names: list[Id]
    histories: list[list[Any]]


class Client:
    """A service that is asked like a model.

    `recommend`, `similar_items`, `explain` and `search` take what those of a model take, and return the same
    tables, in polars: code that has a model can have a client instead.

    Parameters
    ----------
    url
        Where the service is, such as "http://127.0.0.1:8000".
    key
        API key, if it asks for one.
    model
        Name of the model to ask; by default the one that the service chooses.
    timeout
        Seconds to wait for an answer.
    retries
        How often to ask again while the service says that it is busy (503), after the pause it asks for.
    batch
        Histories in one request.
    """

    def __init__(
        self,
        url: str,
        key: str | None = None,
        *,
        model: str | None = None,
        timeout: float = 10.0,
        retries: int = 2,
        batch: int = 100,
    ) -> None:
        try:
            import httpx
        except ImportError:
            raise MissingLibraryError('a client needs httpx: pip install "mrfrec[client]".') from None
        self._retries, self._batch = check_count("retries", retries, least=0), check_count("batch", batch)
        timeout = check_number("timeout", timeout, "above 0", lambda x: x > 0)
        headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        self._errors = httpx.HTTPError
        self._model, self._url = model, str(url).rstrip("/")
        try:
            self._http: httpx.Client = httpx.Client(base_url=self._url, headers=headers, timeout=timeout)
        except (httpx.InvalidURL, UnicodeError) as error:
            raise ParameterError("url", 'such as "http://127.0.0.1:8000"', url, f"{error}.") from None
        self._known: dict[str, dict[str, Any]] = {}  # models by fingerprint
        self._names: dict[tuple[str, Id], str] = {}  # of items for people, by fingerprint

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    # ── questions ─────────────────────────────────────────────────────────────────────────────────

    def recommend(
        self,
        users: object = None,
        *,
        history: object = None,
        k: int = 10,
        exclude_seen: bool = True,
        allow: Iterable[Id] | None = None,
        exclude: Iterable[Id] | None = None,
        novelty: float | None = None,
        explain: int = 0,
    ) -> Any:
        """Return the k best items of each user: see `Recommender.recommend`.

        Users are training users of a model with histories, each asked for alone. A history is item ids, or a
        mapping from item to value; several people's are a list of these, or a mapping from names to them.
        """
        explain = check_count("explain", explain, least=0)
        options: dict[str, Any] = {
            "k": check_count("k", k), "exclude_seen": check_flag("exclude_seen", exclude_seen),
            "allow": _ids("allow", allow), "exclude": _ids("exclude", exclude) or [], "novelty": novelty,
            "reasons": explain, "model": self._model,
        }  # fmt: skip
        if (users is None) == (history is None):
            raise ParameterError("users", "given, or else history", users)
        if history is None:
            names = _users(users)
            answers = list(self._of_users(names, options))
        else:
            names, histories = _histories(history)
            answers = list(self._of_histories(histories, options))
            self._warn_of_unknown(answers, histories, options)
        if short := sum(len(answer["items"]) < k for answer in answers):
            warn(
                f"{short:,} of {len(answers):,} users get fewer than k={k} items: no more are left that they "
                "have not seen and that are not excluded."
            )
        return self._recommended(names, answers, bool(explain))

    def similar_items(self, item: Id | Iterable[Id], k: int = 10) -> Any:
        """Return the items that go with an item most strongly: see `Recommender.similar_items`."""
        several = isinstance(item, Iterable) and not isinstance(item, str | bytes)
        wanted = _ids("item", item if several else [item]) or []
        check_count("k", k)
        found = []
        for one in wanted:
            answer = self._get("similar", {"item": str(one), "k": k})
            if answer["item"] != one:
                kind = self._about(answer["model"])["item_ids"]
                raise DataError(f"item ids are {kind} here; got {one!r}.")
            found.append(answer)
        if short := sum(len(answer["items"]) < k for answer in found):
            warn(f"{short:,} of {len(found):,} items have fewer than k={k} similar items.")
        rows = [{"similar_to": each["item"], **row} for each in found for row in each["items"]]
        names = ("similar_to", *_NEIGHBOR_COLUMNS) if several else _NEIGHBOR_COLUMNS
        return self._table(rows, names, self._about(found[0]["model"]) if found else self.info())

    def explain(
        self, item: Id, *, user: Id | None = None, history: object = None, novelty: float | None = None
    ) -> Any:
        """Return what a history adds to the score of one item: see `Recommender.explain`."""
        if (user is None) == (history is None):
            raise ParameterError("user", "given, or else a history", user)
        asked: dict[str, Any] = {"item": _plain(item), "novelty": novelty, "model": self._model}
        if history is None:
            asked["user"] = _plain(user)
        else:
            histories = _histories(history).histories
            if len(histories) != 1:
                raise ParameterError("history", "of one person", history)
            asked["history"] = histories[0]
        answer = self._post("explain", asked)
        if answer["unknown"]:
            warn(f"history: {len(answer['unknown']):,} items are unknown to the model; ignored.")
        names = ("item", "title", "value", "weight", "contribution")
        return self._table(answer["contributions"], names, self._about(answer["model"]))

    def search(self, text: str, k: int = 10) -> Any:
        """Find items by id or title: see `Recommender.search`."""
        if not isinstance(text, str):
            raise ParameterError("text", "a string", text)
        answer = self._get("search", {"q": text, "k": check_count("k", k)})
        return self._table(answer["items"], ("item", "title", "users"), self._about(answer["model"]))

    def info(self) -> dict[str, Any]:
        """Describe the model: its name, fingerprint, kind, parameters and training data."""
        if self._model is not None:
            return self._get(f"models/{quote(self._model, safe='')}", {})
        models: list[dict[str, Any]] = self._get("models", {})["models"]
        return next(model for model in models if model["default"])

    # ── answers ───────────────────────────────────────────────────────────────────────────────────

    def _of_users(self, users: Sequence[Id], options: dict[str, Any]) -> Iterator[dict[str, Any]]:
        self.info()  # there is such a model: what is not found below are users
        unknown = 0
        for user in users:
            try:
                yield self._post("recommend", {**options, "user": user})
            except DataError as error:
                if getattr(error.__cause__, "status", None) != 404:
                    raise
                unknown += 1
                yield self._post("recommend", {**options, "history": []})
        if unknown:
            count = f"{unknown:,} of {len(users):,}"
            warn(f"{count} users are unknown to the model; they get the most popular items.")

    def _of_histories(
        self, histories: Sequence[list[Any]], options: dict[str, Any]
    ) -> Iterator[dict[str, Any]]:
        if len(histories) == 1:
            yield self._post("recommend", {**options, "history": histories[0]})
            return
        for start in range(0, len(histories), self._batch):
            some = histories[start : start + self._batch]
            answer = self._post("recommend/batch", {**options, "histories": some})
            for each in answer["answers"]:
                yield {**each, "model": answer["model"]}

    @staticmethod
    def _warn_of_unknown(
        answers: Sequence[dict[str, Any]], histories: Sequence[list[Any]], options: dict[str, Any]
    ) -> None:
        missing = {item for answer in answers for item in answer["unknown"]}
        items = [one["item"] if isinstance(one, dict) else one for each in histories for one in each]
        for name, given in (("history", items), ("allow", options["allow"]), ("exclude", options["exclude"])):
            if unknown := sum(one in missing for one in given or ()):
                warn(f"{name}: {unknown:,} of {len(given):,} items are unknown to the model; ignored.")

    def _recommended(self, names: Sequence[Id], answers: Sequence[dict[str, Any]], with_reasons: bool) -> Any:
        rows = [
            {"user": name, **row, **({"because": self._because(answer, row)} if with_reasons else {})}
            for name, answer in zip(names, answers, strict=True)
            for row in answer["items"]
        ]
        columns = (*_COLUMNS, "because") if with_reasons else _COLUMNS
        about = self._about(answers[0]["model"]) if answers else self.info()
        return self._table(rows, columns, about, names)

    def _because(self, answer: dict[str, Any], row: dict[str, Any]) -> str:
        return ", ".join(
            f"{self._name(answer['model'], each['item'])} ({each['contribution']:+.2f})"
            for each in row["reasons"]
        )

    def _name(self, model: dict[str, Any], item: Id) -> str:
        """Return a name for people: the id, or the title of an item that is only numbered."""
        about = self._about(model)
        if about["item_ids"] == "strings" or not about["titles"]:
            return str(item)
        found = self._names.get((model["fingerprint"], item))
        if found is None:
            title = self._get("item", {"item": str(item), "model": model["name"]})["title"]
            if len(self._names) >= _KEPT:
                self._names.clear()
            found = self._names[model["fingerprint"], item] = title or str(item)
        return found

    def _about(self, model: dict[str, Any]) -> dict[str, Any]:
        """Describe the model of an answer."""
        found = self._known.get(model["fingerprint"])
        if found is None:
            if len(self._known) >= 100:
                self._known.clear()
            found = self._get(f"models/{quote(model['name'], safe='')}", {})
            self._known[model["fingerprint"]] = found
        return found

    @staticmethod
    def _table(
        rows: Sequence[Mapping[str, Any]],
        names: Sequence[str],
        about: dict[str, Any],
        users: Sequence[Id] = (),
    ) -> Any:
        from mrfrec.io.frames import frame

        of_items, of_scores = about["types"]["item"], about["types"]["score"]
        of_users = "string" if any(isinstance(user, str) for user in users) else "int64"
        if of_users == "int64" and any(user >= 2**63 for user in users):  # type: ignore[operator]
            of_users = "uint64"
        kinds = {"item": of_items, "similar_to": of_items, "user": of_users}
        if "source" in names:
            kinds["score"] = of_scores
        return frame([{name: [row[name] for row in rows] for name in names}], names, kinds, None)

    # ── requests ──────────────────────────────────────────────────────────────────────────────────

    def _get(self, path: str, parameters: dict[str, Any]) -> dict[str, Any]:
        if self._model is not None and not path.startswith("models"):
            parameters = {"model": self._model, **parameters}
        return self._ask("GET", path, {"params": parameters})

    def _post(self, path: str, content: dict[str, Any]) -> dict[str, Any]:
        return self._ask("POST", path, {"json": content})

    def _ask(self, method: str, path: str, given: dict[str, Any]) -> dict[str, Any]:
        for attempt in range(self._retries + 1):
            try:
                response = self._http.request(method, f"/v1/{path}", **given)
            except self._errors as error:
                reason = str(error) or type(error).__name__
                raise ServiceError(f"{self._url} cannot be asked: {reason}.") from error
            except ValueError as error:  # a number that JSON does not have
                raise DataError(f"the values of a request must be finite numbers: {error}.") from error
            if response.status_code != 503 or attempt == self._retries:
                break
            time.sleep(_pause(response.headers.get("Retry-After")))
        try:
            content = response.json()
            if response.status_code == 200:
                return dict(content)
            detail = str(content["detail"])
        except (ValueError, TypeError, KeyError):
            detail = "the answer is not one of mrfrec serve."
        problem = ServiceError(f"{self._url} says {response.status_code}: {detail}", response.status_code)
        if response.status_code in (400, 404, 413, 422):
            raise DataError(f"{detail[:1].lower()}{detail[1:]}") from problem
        raise problem


def _pause(asked_for: str | None) -> float:
    """Return the seconds to wait, which a busy service asks for in a header."""
    try:
        return min(_LONGEST_PAUSE, max(0.0, float(asked_for or 1)))
    except ValueError:
        return 1.0


def _plain(value: object) -> Any:
    """Return a number of numpy as one of Python."""
    return value.item() if hasattr(value, "item") and not isinstance(value, str) else value


def _ids(name: str, given: object) -> list[Id] | None:
    if given is None:
        return None
    if isinstance(given, str | bytes | Mapping) or not isinstance(given, Iterable):
        raise ParameterError(name, "a sequence of item ids", given)
    return [_plain(one) for one in given]


def _users(users: object) -> list[Id]:
    if isinstance(users, str) or not isinstance(users, Iterable):
        return [_plain(users)]
    return [_plain(user) for user in users]


def _histories(history: object) -> _Histories:
    """Return histories as the API takes them, and a name for each."""
    rule = "item ids, a mapping from item to value, or several of these"
    if isinstance(history, str | bytes) or not isinstance(history, Iterable) or hasattr(history, "columns"):
        raise ParameterError("history", rule, history)
    if isinstance(history, Mapping):
        if all(isinstance(_plain(value), int | float) for value in history.values()):
            return _Histories([0], [_history(history)])
        return _Histories([_plain(name) for name in history], [_history(each) for each in history.values()])
    given = list(history)
    if any(isinstance(each, Iterable) and not isinstance(each, str | bytes) for each in given):
        return _Histories(list(range(len(given))), [_history(each) for each in given])
    return _Histories([0], [_history(given)])


def _history(given: object) -> list[Any]:
    if isinstance(given, str | bytes) or not isinstance(given, Iterable):
        raise ParameterError("history", "a sequence of item ids", given)
    if isinstance(given, Mapping):
        return [{"item": _plain(item), "value": _plain(value)} for item, value in given.items()]
    return [_plain(item) for item in given]
