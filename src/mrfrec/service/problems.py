"""What is wrong with a request: every error of the API is an application/problem+json (RFC 9457)."""

import json
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any

from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from mrfrec.checks import shortened

# A reason may repeat what was sent, so it is cut to this number of characters.
_MOST = 400
# Names of types in the paths of pydantic's errors.
_TYPES = ("constrained-int", "constrained-str", "str", "bool", "float", "Used", "Condition")
TOO_MANY = "too many requests at once; try again."


class ProblemError(Exception):
    """Ends a request with a status and a reason."""

    def __init__(self, status: int, detail: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = shortened(detail, _MOST)
        self.headers = dict(headers or {})

    def response(self) -> Response:
        """Return the response to send."""
        title = HTTPStatus(self.status).phrase
        content = {"type": "about:blank", "title": title, "status": self.status, "detail": self.detail}
        body = json.dumps(content, ensure_ascii=False).encode(errors="replace")
        return Response(body, self.status, self.headers, "application/problem+json")


class ClientLeftError(Exception):
    """The client has closed its connection."""


def busy(detail: str = TOO_MANY) -> ProblemError:
    """Return the refusal of a request while the queue is full."""
    return ProblemError(503, detail, {"Retry-After": "1"})


def problem_of(request: Request, error: Exception) -> ProblemError:
    """Return the problem to answer with for an error of this service, of the model, or of FastAPI."""
    if isinstance(error, ProblemError):
        return error
    if isinstance(error, RequestValidationError):
        return ProblemError(422, _what_is_wrong(error.errors()))
    # Other errors are refusals of the model.
    if not isinstance(error, HTTPException):
        return ProblemError(422, str(error))
    said = {404: "there is nothing at this address.", 405: f"{request.method} is not allowed here."}
    detail = said.get(error.status_code, str(error.detail))
    return ProblemError(error.status_code, detail, error.headers)


def _what_is_wrong(errors: Sequence[Mapping[str, Any]]) -> str:
    """Describe the most detailed error of a request.

    A value that may have several types has an error for every type, with the name of the type in its path.
    """
    deepest = max(errors, key=lambda error: (len(error["loc"]), not error["type"].endswith("_type")))
    path = deepest["loc"]
    unknown = deepest["type"] == "extra_forbidden"
    words = {
        "extra_forbidden": "no field of this name is known",
        "missing": "must be given",
        "too_short": "must have at least one entry",
    }
    rule = words.get(deepest["type"], deepest["msg"].rstrip("."))
    if path[1:] == ("where",) and deepest["type"] == "dict_type":
        rule = 'must be an object such as {"price": {"most": 5}}, not SQL'
    if len(path) == 1:
        return "the body must be a JSON object."
    if path[1] in ("where", "boost") and len(path) > 3 and path[-1] in _TYPES:
        path = path[:-1]
        if deepest["type"].endswith("_type"):
            rule = _rule_of_values(path)
    elif path[-1] == "constrained-int" and not unknown:
        path = path[:-1]
        rule = "must be an id, an integer of 64 bits or a string"
        if any(error["loc"] == (*path, "Used") for error in errors):
            rule += ', or {"item": …, "value": …}'
    types = {part for part in path[3:-1] if part in _TYPES or str(part).startswith("list[")}
    shown = [
        *path[1:3],
        *(part for part in path[3:-1] if part not in types),
        *path[max(len(path) - 1, 3) :],
    ]
    value = None if unknown else deepest.get("input")
    # A number may have thousands of digits.
    is_shown = isinstance(value, str) or (isinstance(value, int | float) and abs(value) < 2**64)
    got = f"; got {shortened(json.dumps(value, ensure_ascii=False), 40)}" if is_shown else ""
    return f"{'.'.join(map(str, shown))}: {rule}{got}."


def _rule_of_values(path: Sequence[Any]) -> str:
    """Return what a value of a filter or of a boost must be. It may have several types."""
    if path[1] == "boost":
        return 'must be the name of a column, or a list such as [{"item": "tea", "value": 0.2}]'
    if path[-1] in ("least", "most", "above", "below"):
        return "must be a number, a date or a time"
    rule = "must be a text, a number, true or false"
    return f'{rule}, a list of these, or a condition such as {{"least": 10}}' if len(path) == 3 else rule
