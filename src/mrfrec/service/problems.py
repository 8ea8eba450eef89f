"""Errors of the API: one shape for all, application/problem+json (RFC 9457)."""

import json
from collections.abc import Mapping
from functools import lru_cache
from http import HTTPStatus

from starlette.responses import Response

NO_ROOM = "too many requests at once; try again."
NOT_A_MANAGER = (
    "a key with the role manage is needed, as Bearer or X-API-Key; without keys, a request from this host "
    "that is not sent by a page of another site."
)
UNEXPECTED = "something went wrong here; the log of the service has more."


_MOST = 400  # characters of a reason, which may repeat what was sent


class ProblemError(Exception):
    """Ends a request with a status and a reason."""

    def __init__(self, status: int, detail: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(detail)
        self.status, self.detail, self.headers = status, detail, dict(headers or {})

    def response(self) -> Response:
        """Return the response to send."""
        return problem_response(self.status, self.detail, self.headers)


def problem_response(status: int, detail: str, headers: Mapping[str, str] | None = None) -> Response:
    """Return a response that says what is wrong."""
    return Response(problem_body(status, detail), status, dict(headers or {}), "application/problem+json")


@lru_cache(64)  # the same few in a flood of requests
def problem_body(status: int, detail: str) -> bytes:
    """Return the JSON that says what is wrong."""
    detail = detail if len(detail) <= _MOST else f"{detail[: _MOST - 1]}…"
    content = {"type": "about:blank", "title": HTTPStatus(status).phrase, "status": status, "detail": detail}
    return json.dumps(content, ensure_ascii=False).encode(errors="replace")
