"""Errors of the API: one shape for all, application/problem+json (RFC 9457)."""

import json
from collections.abc import Mapping
from http import HTTPStatus

from starlette.responses import Response

from mrfrec.checks import shortened

_MOST = 400  # characters of a reason, which may repeat what was sent
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
    """Return the refusal of a request for which there is no room now."""
    return ProblemError(503, detail, {"Retry-After": "1"})
