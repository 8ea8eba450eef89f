"""Ask a service as one asks a model: the same methods, the same tables."""

import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote

from mrfrec.checks import check_count, check_frames, check_number, warn
from mrfrec.data.catalogue import because_text, name_with_id, unknown_item
from mrfrec.data.ids import Id, Ids, Texts
from mrfrec.errors import DataError, MissingLibraryError, MrfrecError, ParameterError, ServiceError
from mrfrec.models.answers.histories import UnknownIds
from mrfrec.models.answers.question import Question, check_novelty
from mrfrec.service.client_inputs import (
    checked_key,
    checked_url,
    checked_visitor,
    histories_of,
    item_list,
    plain_ids,
    users_of,
)

_COLUMNS = ("user", "item", "title", "score", "rank", "source")
_NEIGHBOR_COLUMNS = ("item", "title", "score", "rank")
_REASON_COLUMNS = ("item", "title", "value", "weight", "contribution")
_LONGEST_PAUSE = 10.0  # seconds to wait at most for a busy service before it is asked again
_NO_IDS = {"integers": Ids.range(0), "strings": Ids(Texts.of([]))}  # which refuse ids of the other type


class Client:
    """A service that is asked like a model.

    `recommend`, `similar_items`, `explain` and `search` take the arguments of a model's methods and return
    the same tables, so that code written for a model works with a client.

    Parameters
    ----------
    url
        Where the service is, such as "http://127.0.0.1:8000".
    key
        API key, if it asks for one. Spaces and line ends around it do not count.
    model
        Name of the model to ask; by default the one that the service chooses.
    timeout
        Seconds to wait for a connection, and then each time for the next piece of an answer.
    retries
        How often to ask again while the service says that it is busy (503), after the pause it asks for.
    batch
        Histories in one request.
    frames
        Data frame library of the tables: "polars" (as None), "pandas" or "pyarrow".
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
        frames: str | None = None,
    ) -> None:
        try:
            import httpx
        except ImportError:
            raise MissingLibraryError('a client needs httpx: pip install "mrfrec[client]".') from None
        self._retries, self._batch = check_count("retries", retries, least=0), check_count("batch", batch)
        self._frames = check_frames(frames)
        timeout = check_number("timeout", timeout, "above 0", lambda x: x > 0)
        if not isinstance(model, str | None):
            raise ParameterError("model", "the name of a model, or None", model)
        headers = {} if key is None else {"Authorization": f"Bearer {checked_key(key)}"}
        base = checked_url(url)
        self._failures, self._not_sent = httpx.HTTPError, (httpx.InvalidURL, ValueError)
        self._model, self._url = model, str(base.copy_with(userinfo=b"")).rstrip("/")  # without a password
        self._http = httpx.Client(base_url=base, headers=headers, timeout=timeout)
        self._known: dict[str, dict[str, Any]] = {}  # models by fingerprint

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
        visitor: Id | None = None,
    ) -> Any:
        """Return the k best items of each user: see `Recommender.recommend`.

        Users are training users of a model with histories, each asked for alone. A history is item ids, or a
        mapping from item to value; several people's are a list of these, or a mapping from names to them.
        `visitor`, anything that tells people apart, chooses the model if the service splits people between
        several; without it, histories get the default model, and users the model of their id.
        """
        allow, exclude = item_list("allow", allow), item_list("exclude", exclude) or []
        options = vars(Question(k, exclude_seen, allow, exclude, novelty, explain)).copy()
        options |= {"reasons": options.pop("explain"), "model": self._model}
        options["visitor"] = checked_visitor(visitor, users)
        if (users is None) == (history is None):
            raise ParameterError("users", "given, or else history", users)
        histories: list[list[Any]] | None = None
        if history is None:
            names = users_of(users)
        else:
            names, histories = histories_of(history)
        kind = Ids.of(dict.fromkeys(names), "user").kind
        with self._reading():
            if histories is None:
                answers = list(self._of_users(names, options))
            else:
                answers = list(self._of_histories(histories, options))
            about = self._about(answers[0]["model"]) if answers else self.info()
            self._warn_of_unknown(about, answers, histories or [], options)
            if short := sum(len(answer["items"]) < k for answer in answers):
                warn(
                    f"{short:,} of {len(answers):,} users get fewer than k={k} items: no more are left that "
                    "they have not seen and that are not excluded."
                )
            rows = [
                {"user": name, **row, **({"because": _because(row)} if explain else {})}
                for name, answer in zip(names, answers, strict=True)
                for row in answer["items"]
            ]
            return self._table(rows, (*_COLUMNS, "because") if explain else _COLUMNS, about, kind)

    def similar_items(self, item: Id | Iterable[Id], k: int = 10) -> Any:
        """Return the items that go with an item most strongly: see `Recommender.similar_items`."""
        several = isinstance(item, Iterable) and not isinstance(item, str | bytes)
        wanted = item_list("item", item if several else [item]) or []
        k = check_count("k", k)
        with self._reading():
            found = []
            for one in wanted:
                answer = self._find("GET", "similar", self._query({"item": str(one), "k": k}))
                if answer is None:
                    raise self._unknown_item(one)
                _check_types([one], self._about(answer["model"]))
                found.append(answer)
            if short := sum(len(answer["items"]) < k for answer in found):
                whose = f"{short:,} of {len(found):,} items have" if several else f"item {item!r} has"
                warn(f"{whose} fewer than k={k} similar items: the model knows no more.")
            rows = [{"similar_to": each["item"], **row} for each in found for row in each["items"]]
            names = ("similar_to", *_NEIGHBOR_COLUMNS) if several else _NEIGHBOR_COLUMNS
            return self._table(rows, names, self._about(found[0]["model"]) if found else self.info())

    def explain(
        self,
        item: Id,
        *,
        user: Id | None = None,
        history: object = None,
        novelty: float | None = None,
        visitor: Id | None = None,
    ) -> Any:
        """Return the contributions of a history to the score of one item: see `Recommender.explain`.

        `visitor` is that of `recommend`.
        """
        if (user is None) == (history is None):
            raise ParameterError("user", "given, or else a history", user)
        histories = [] if history is None else histories_of(history).histories
        if len(histories) > 1:
            raise ParameterError("history", "of one person", history)
        [item] = plain_ids([item], "item")
        asked: dict[str, Any] = {
            "item": item, "novelty": check_novelty(novelty), "model": self._model,
            "visitor": checked_visitor(visitor, user),
        }  # fmt: skip
        with self._reading():
            if histories:
                answer = self._find("POST", "explain", _body({**asked, "history": histories[0]}))
            else:
                [user] = plain_ids([user], "user")
                answer = self._find("POST", "explain", _body({**asked, "user": user}))
                if answer is None:  # the user is unknown, or else the item is
                    stranger = {**asked, "history": [], "visitor": user}
                    answer = self._find("POST", "explain", _body(stranger))
                    if answer is not None:
                        UnknownIds("users", [user], 1).warn()
            if answer is None:
                raise self._unknown_item(item)
            about = self._about(answer["model"])
            self._warn_of_unknown(about, [answer], histories, {})
            return self._table(answer["contributions"], _REASON_COLUMNS, about)

    def search(self, text: str, k: int = 10) -> Any:
        """Find items by id or title: see `Recommender.search`."""
        if not isinstance(text, str):
            raise ParameterError("text", "a string", text)
        k = check_count("k", k)
        with self._reading():
            answer = self._ask("GET", "search", self._query({"q": text, "k": k}))
            return self._table(answer["items"], ("item", "title", "users"), self._about(answer["model"]))

    def info(self) -> dict[str, Any]:
        """Describe the model: its name, fingerprint, kind, parameters and training data."""
        name = self._model
        with self._reading():
            models: list[dict[str, Any]] = self._ask("GET", "models", {})["models"]
            for model in models:
                if model["default"] if name is None else model["name"] == name:
                    return model
        if name is None:
            raise ServiceError(f"{self._url} has no default model: name one with model=….")
        raise DataError(f"there is no model {name!r} at {self._url}.")

    # ── answers ───────────────────────────────────────────────────────────────────────────────────

    @contextmanager
    def _reading(self) -> Iterator[None]:
        """Raise a `ServiceError` for answers that `mrfrec serve` would not give."""
        try:
            yield
        except MrfrecError:
            raise
        except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
            raise ServiceError(
                f"an answer of {self._url} is not one of mrfrec serve, or its model has just been replaced "
                "by one with other ids: check the URL, or ask again."
            ) from error

    def _of_users(self, users: Sequence[Id], options: dict[str, Any]) -> Iterator[dict[str, Any]]:
        unknown: list[Id] = []
        for user in users:
            answer = self._find("POST", "recommend", _body({**options, "user": user}))
            if answer is None:
                unknown.append(user)
                stranger = {**options, "history": [], "visitor": user}  # of the same model in a split
                answer = self._ask("POST", "recommend", _body(stranger))
            yield answer
        if unknown:
            UnknownIds("users", unknown, len(users)).warn()

    def _of_histories(
        self, histories: Sequence[list[Any]], options: dict[str, Any]
    ) -> Iterator[dict[str, Any]]:
        if len(histories) == 1:
            yield self._ask("POST", "recommend", _body({**options, "history": histories[0]}))
            return
        for start in range(0, len(histories), self._batch):
            some = histories[start : start + self._batch]
            answer = self._ask("POST", "recommend/batch", _body({**options, "histories": some}))
            for each in answer["answers"]:
                yield {**each, "model": answer["model"]}

    def _table(
        self,
        rows: Sequence[Mapping[str, Any]],
        names: Sequence[str],
        about: dict[str, Any],
        users: str = "int64",
    ) -> Any:
        from mrfrec.io.frames import frame

        kinds = {**about["types"], "similar_to": about["types"]["item"], "user": users}
        return frame([{name: [row[name] for row in rows] for name in names}], names, kinds, self._frames)

    @staticmethod
    def _warn_of_unknown(
        about: dict[str, Any],
        answers: Sequence[dict[str, Any]],
        histories: Sequence[list[Any]],
        options: dict[str, Any],
    ) -> None:
        missing = dict.fromkeys(item for answer in answers for item in answer["unknown"])
        _check_types(missing, about)
        items = [one["item"] if isinstance(one, dict) else one for each in histories for one in each]
        lists = (("history", items), ("allow", options.get("allow")), ("exclude", options.get("exclude")))
        for name, given in lists:
            if unknown := [one for one in given or () if one in missing]:
                UnknownIds(name, unknown, len(given or ())).warn()

    def _unknown_item(self, item: Id) -> DataError:
        _check_types([item], self.info())
        return unknown_item(item)

    def _about(self, model: dict[str, Any]) -> dict[str, Any]:
        """Describe the model of an answer, or its successor if it has just been replaced."""
        found = self._known.get(model["fingerprint"])
        if found is None:
            found = self._ask("GET", f"models/{quote(model['name'], safe='')}", {})
            if len(self._known) >= 100:
                self._known.clear()
            self._known[found["fingerprint"]] = found
        return found

    # ── requests ──────────────────────────────────────────────────────────────────────────────────

    def _query(self, parameters: dict[str, Any]) -> dict[str, Any]:
        return {"params": parameters if self._model is None else {**parameters, "model": self._model}}

    def _find(self, method: str, path: str, given: dict[str, Any]) -> dict[str, Any] | None:
        """Ask; None if the model does not know the user or the item."""
        try:
            return self._ask(method, path, given)
        except DataError as error:
            if getattr(error.__cause__, "status", None) == 404:
                return None
            raise

    def _ask(self, method: str, path: str, given: dict[str, Any]) -> dict[str, Any]:
        if self._http.is_closed:
            raise ServiceError(f"this client of {self._url} has been closed: create another one.")
        for attempt in range(self._retries + 1):
            try:
                response = self._http.request(method, f"/v1/{path}", **given)
            except self._failures as error:
                reason = (str(error) or type(error).__name__).rstrip(".")
                raise ServiceError(
                    f"{self._url} cannot be asked: {reason}. Check that mrfrec serve runs there, and the "
                    "timeout."
                ) from error
            except self._not_sent as error:
                raise DataError(f"the request cannot be sent: {str(error).rstrip('.')}.") from error
            if response.status_code != 503 or attempt == self._retries:
                break
            time.sleep(_pause(response.headers.get("Retry-After")))
        status, is_problem = response.status_code, "problem+json" in response.headers.get("Content-Type", "")
        try:
            content = response.json()
        except (ValueError, RecursionError):
            content = None
        if status == 200 and isinstance(content, dict):
            return content
        is_problem = is_problem and isinstance(content, dict) and "detail" in content
        if status == 200 or not is_problem or (status == 404 and path == "models"):
            raise ServiceError(
                f"{self._url} answers {status}, and not as mrfrec serve does: check the URL, and any proxy "
                "on the way.",
                status,
            )
        detail = str(content["detail"])
        problem = ServiceError(f"{self._url} says {status}: {detail}", status)
        if status not in (400, 404, 413, 422):
            raise problem
        if status == 404:
            self.info()  # raises if not the user or item is missing, but the service or the model
        raise DataError(f"{detail[:1].lower()}{detail[1:]}") from problem


def _body(content: dict[str, Any]) -> dict[str, Any]:
    try:
        return {"content": json.dumps(content), "headers": {"Content-Type": "application/json"}}
    except ValueError as error:  # an integer of some thousand digits
        raise DataError(f"the request cannot be sent: {error}.") from error


def _because(row: dict[str, Any]) -> str:
    parts = ((name_with_id(one["item"], one["title"]), one["contribution"]) for one in row["reasons"])
    return because_text(row["base"], parts)


def _check_types(items: Iterable[Id], about: dict[str, Any]) -> None:
    """Refuse ids of the wrong type, as the model does."""
    _NO_IDS[about["item_ids"]].find(items, "item")


def _pause(asked_for: str | None) -> float:
    """Return the seconds to wait, which a busy service asks for in a header."""
    try:
        return min(_LONGEST_PAUSE, max(0.0, float(asked_for or 1)))
    except ValueError:
        return 1.0
