"""Ask a service with the methods of a model, and get the same tables."""

import json
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import date
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import quote

import numpy as np

from mrfrec.answers.columns import (
    NEIGHBOR_COLUMNS,
    REASON_COLUMNS,
    RECOMMENDATION_COLUMNS,
    SEARCH_COLUMNS,
    SIMILAR_COLUMNS,
    because_text,
    shared_features_text,
    through_text,
)
from mrfrec.answers.question import Boost, ItemFilter, Question, Quotas, check_at, check_boost, options_of
from mrfrec.answers.where import Where, as_json
from mrfrec.checks import check_count, check_frames, check_number, missing_extra, warn
from mrfrec.data.catalogue import name_with_id
from mrfrec.data.ids import Id, Ids, as_list
from mrfrec.data.reading_options import Moment
from mrfrec.errors import DataError, MrfrecError, ParameterError, ServiceError

if TYPE_CHECKING:
    from mrfrec.io.frames import Frame

_LONGEST_PAUSE = 10.0  # seconds to wait at most for a busy service before it is asked again

Answer = dict[str, Any]


class Client:
    """A service that is asked like a model.

    `recommend`, `similar_items`, `explain` and `search` take the arguments of a model's methods and return
    the same tables, so that code written for a model works with a client. Ids that the model does not know,
    those of the wrong type among them, are ignored with a warning.

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
            raise missing_extra("a client needs httpx", "client") from None
        self._retries = check_count("retries", retries, least=0)
        self._batch = check_count("batch", batch)
        self._frames = check_frames(frames)
        timeout = check_number("timeout", timeout, "above 0", lambda x: x > 0)
        if not isinstance(url, str) or not re.match(r"https?://[^/?#]", url):
            rule = 'the address of a service, such as "http://127.0.0.1:8000"'
            raise ParameterError("url", rule, re.sub(".*@", "…@", str(url)))
        if key is not None and not re.fullmatch(r"\s*[!-~]+\s*", key):  # errors do not show it
            raise ParameterError("key", "one word of ASCII characters, as `mrfrec key` prints it", "…")
        headers = {} if key is None else {"Authorization": f"Bearer {key.strip()}"}
        self._failures = (httpx.HTTPError, httpx.InvalidURL, ValueError, RuntimeError)  # the last: closed
        self._model = model
        self._url = re.sub("//.*@", "//", url).rstrip("/")  # without a password
        self._http = httpx.Client(base_url=url, headers=headers, timeout=timeout)
        self._known: dict[str, Answer] = {}  # models by fingerprint

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def recommend(
        self,
        users: Any = None,
        *,
        history: object = None,
        visitor: Id | None = None,
        k: int = 10,
        exclude_seen: bool = True,
        allow: ItemFilter = None,
        exclude: ItemFilter = None,
        novelty: float | None = None,
        explain: int = 0,
        at: Moment | None = None,
        where: Where = None,
        at_most: Quotas = None,
        boost: Boost = None,
        variety: float = 0.0,
    ) -> "Frame":
        """Return the k best items of each user: see `Recommender.recommend`, also for the options.

        Users are training users of a model with histories, each asked for alone. A history is item ids, or a
        mapping from item to value or time; several people's are a list of these, or a mapping with names.
        `allow` and `exclude` are item ids, `where` is a mapping from columns to conditions. `visitor`,
        anything that tells people apart, chooses the model if the service splits people between several;
        without it, histories get the default model, and users the model of their id.
        """
        checked = Question(**options_of(locals()))
        options = {**vars(checked), "reasons": checked.explain, "visitor": visitor}
        options["where"] = as_json(checked.where)
        del options["explain"]
        for name in ("allow", "exclude"):
            if options[name] is not None:
                options[name] = as_list(options[name], "item", name)
        options["boost"] = _boost(checked.boost)
        if (users is None) == (history is None):
            raise ParameterError("users", "given, or else history", users)
        names: list[Any] = as_list(users, "user", "users") if _is_several(users) else [users]
        histories: list[list[Any]] = []
        if history is not None:
            names, histories = _histories(history)
        kind = Ids.of(dict.fromkeys(names), "user").kind
        with self._reading():
            if history is None:
                answers = [self._of_user(user, options) for user in names]
            else:
                answers = list(self._of_histories(histories, options))
            about = self._about(answers[0]["model"]) if answers else self.info()
            _warn_of_unknown(answers)
            if short := sum(len(answer["items"]) < checked.k for answer in answers):
                checked.warn_of_few(f"{short:,} of {len(answers):,} users get fewer than k={checked.k} items")
            rows = [
                {"user": name, **row, **({"because": _because(row)} if checked.explain else {})}
                for name, answer in zip(names, answers, strict=True)
                for row in answer["items"]
            ]
            columns = (*RECOMMENDATION_COLUMNS, "because") if checked.explain else RECOMMENDATION_COLUMNS
            return self._table(rows, columns, about, kind)

    def similar_items(self, item: Id | Iterable[Id], k: int = 10) -> "Frame":
        """Return the items that go with an item most strongly: see `Recommender.similar_items`."""
        several = _is_several(item)
        k = check_count("k", k)
        items = as_list(item, "item", "item") if several else [item]
        with self._reading():
            found = [self._get("similar", item=str(one), k=k) for one in items]
            if short := sum(len(answer["items"]) < k for answer in found):
                whose = f"{short:,} of {len(found):,} items have" if several else f"item {item!r} has"
                warn(f"{whose} fewer than k={k} similar items: the model knows no more.")
            rows = [{"similar_to": each["item"], **row} for each in found for row in each["items"]]
            names = SIMILAR_COLUMNS if several else NEIGHBOR_COLUMNS
            return self._table(rows, names, self._about(found[0]["model"]) if found else self.info())

    def explain(
        self,
        item: Id,
        *,
        user: Id | None = None,
        history: object = None,
        novelty: float | None = None,
        at: Moment | None = None,
        boost: Boost = None,
        visitor: Id | None = None,
    ) -> "Frame":
        """Return the contributions of a history to the score of one item: see `Recommender.explain`.

        `visitor` is that of `recommend`.
        """
        if (user is None) == (history is None):
            raise ParameterError("user", "given, or else a history", user)
        if history is not None:
            _, histories = _histories(history)
            if len(histories) > 1:
                raise ParameterError("history", "of one person", history)
            history = histories[0]
        with self._reading():
            answer = self._post(
                "explain", item=item, user=user, history=history, novelty=novelty, at=check_at(at),
                boost=_boost(check_boost(boost)),
                visitor=visitor,
            )  # fmt: skip
            _warn_of_unknown([answer])
            about = self._about(answer["model"])
            columns = (*REASON_COLUMNS, "both") if about.get("features") else REASON_COLUMNS
            if any("carried" in row for row in answer["contributions"]):
                columns = (*columns, "carried", "through")
            return self._table([_explained(row) for row in answer["contributions"]], columns, about)

    def search(self, text: str, k: int = 10) -> "Frame":
        """Find items by id or title: see `Recommender.search`."""
        with self._reading():
            answer = self._get("search", q=text, k=check_count("k", k))
            return self._table(answer["items"], SEARCH_COLUMNS, self._about(answer["model"]))

    def info(self) -> Answer:
        """Describe the model: its name, fingerprint, kind, parameters and training data."""
        with self._reading():
            for model in self._ask("GET", "models")["models"]:
                if model["default"] if self._model is None else model["name"] == self._model:
                    return dict(model)
        raise DataError(f"there is no model {self._model!r} at {self._url}.")

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

    def _of_user(self, user: Any, options: dict[str, Any]) -> Answer:
        try:
            return self._post("recommend", **options, user=user)
        except DataError as error:
            if getattr(error.__cause__, "status", None) != 404:
                raise
        warn(f"user {user!r} is unknown to the model, and gets the most popular items.")
        # The user is sent as the visitor, so that the same model of a split answers.
        return self._post("recommend", **{**options, "history": [], "visitor": user})

    def _of_histories(self, histories: Sequence[Any], options: dict[str, Any]) -> Iterator[Answer]:
        if len(histories) == 1:
            yield self._post("recommend", **options, history=histories[0])
            return
        for start in range(0, len(histories), self._batch):
            some = histories[start : start + self._batch]
            answer = self._post("recommend/batch", **options, histories=some)
            answer["answers"][0]["unknown"] += answer["unknown"]  # of allow and exclude, once for all
            for each in answer["answers"]:
                yield {**each, "model": answer["model"]}

    def _table(
        self, rows: Sequence[Mapping[str, Any]], names: Sequence[str], about: Answer, users: str = "int64"
    ) -> "Frame":
        from mrfrec.io.frames import frame

        kinds = {**about["types"], "similar_to": about["types"]["item"], "user": users}
        return frame([{name: [row[name] for row in rows] for name in names}], names, kinds, self._frames)

    def _about(self, model: Answer) -> Answer:
        """Describe the model of an answer, or its successor if it has just been replaced."""
        found = self._known.get(model["fingerprint"])
        if found is None:
            found = self._ask("GET", f"models/{quote(model['name'], safe='')}")
            self._known[found["fingerprint"]] = found
        return found

    def _get(self, path: str, **query: Any) -> Answer:
        named = {} if self._model is None else {"model": self._model}
        return self._ask("GET", path, params={**query, **named})

    def _post(self, path: str, **content: Any) -> Answer:
        """Send JSON; numbers and arrays of numpy, and any iterable of ids, become plain ones."""
        content = {
            name: value for name, value in {**content, "model": self._model}.items() if value is not None
        }
        try:
            text = json.dumps(content, default=lambda x: x.tolist() if hasattr(x, "tolist") else list(x))
        except (TypeError, ValueError) as error:
            raise DataError(f"the request cannot be sent: {error}.") from error
        return self._ask("POST", path, content=text, headers={"Content-Type": "application/json"})

    def _ask(self, method: str, path: str, **options: Any) -> Answer:
        for attempt in range(self._retries + 1):
            try:
                response = self._http.request(method, f"/v1/{path}", **options)
            except self._failures as error:
                reason = (str(error) or type(error).__name__).rstrip(".")
                raise ServiceError(
                    f"{self._url} cannot be asked: {reason}. Check that mrfrec serve runs there, and the "
                    "timeout."
                ) from error
            if response.status_code != 503 or attempt == self._retries:
                break
            time.sleep(_pause(response.headers.get("Retry-After")))
        status = response.status_code
        try:
            content = response.json()
        except (ValueError, RecursionError):
            content = None
        if status == 200 and isinstance(content, dict):
            return content
        is_problem = "problem+json" in response.headers.get("Content-Type", "")
        if not is_problem or not isinstance(content, dict) or (status == 404 and path == "models"):
            raise ServiceError(
                f"{self._url} answers {status}, and not as mrfrec serve does: check the URL, and any proxy "
                "on the way.",
                status,
            )
        detail = str(content.get("detail"))
        problem = ServiceError(f"{self._url} says {status}: {detail}", status)
        if status == 404:
            self.info()  # raises if not the user or item is missing, but the service or the model
        if status in (400, 404, 413, 422):
            raise DataError(detail) from problem
        raise problem


def _is_several(value: object) -> bool:
    return isinstance(value, Iterable) and not isinstance(value, str | bytes)


def _histories(history: Any) -> tuple[list[Any], list[list[Any]]]:
    """Return a name for each history, and the histories as the API takes them."""
    if not _is_several(history) or hasattr(history, "columns"):
        rule = "item ids, a mapping from item to value, or several of these"
        raise ParameterError("history", rule, history)
    named = history if isinstance(history, Mapping) else dict(enumerate(history))
    if not any(map(_is_several, named.values())):  # a single one
        named = {0: history if isinstance(history, Mapping) else list(named.values())}
    return list(named), [
        [_used(item, x) for item, x in each.items()] if isinstance(each, Mapping) else [*each]
        for each in named.values()
    ]


def _used(item: Any, x: Any) -> dict[str, Any]:
    """Return an item of a history with its value or its time, as the API takes it."""
    if isinstance(x, date | np.datetime64):
        return {"item": item, "time": str(x) if isinstance(x, np.datetime64) else x.isoformat()}
    return {"item": item, "value": x}


def _boost(boost: Boost) -> Answer | None:
    """Return a boost as the API takes it, with its items in lists."""
    if boost is None:
        return None
    return {
        way: numbers
        if isinstance(numbers, str)
        else [{"item": item, "value": x} for item, x in numbers.items()]
        for way, numbers in boost.items()
    }


def _warn_of_unknown(answers: Iterable[Answer]) -> None:
    unknown = list(dict.fromkeys(item for answer in answers for item in answer["unknown"]))
    if unknown:
        warn(f"{len(unknown):,} items are unknown to the model; ignored (the first is {unknown[0]!r}).")


def _explained(row: Mapping[str, Any]) -> Answer:
    """Return a contribution as a row of a table, with features and alike items as texts."""
    parts = [(_name(each), each["contribution"]) for each in row.get("through") or ()]
    carried = row.get("carried")
    through = None if carried is None else through_text(carried, parts)
    both = ", ".join(row.get("both") or ()) or None
    return {**row, "both": both, "carried": carried, "through": through}


def _name(item: Mapping[str, Any]) -> str:
    return name_with_id(item["item"], item["title"])


def _because(row: Mapping[str, Any]) -> str:
    parts = []
    for reason in row["reasons"]:
        shared = shared_features_text(reason.get("both") or ())
        through = [_name(each) for each in reason.get("through") or ()]
        parts.append((_name(reason) + shared, reason["contribution"], through))
    return because_text(row["base"], parts, row.get("boost") or 0.0)


def _pause(asked_for: str | None) -> float:
    """Return the seconds to wait, which a busy service asks for in a header."""
    try:
        return min(_LONGEST_PAUSE, max(0.0, float(asked_for or 1)))
    except ValueError:
        return 1.0
