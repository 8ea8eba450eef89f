"""Ask the service what nobody should ask: requests made from its OpenAPI description, right and wrong.

    python -m benchmarks.service_fuzz shop.mrf --requests 5000

No answer may be a 5xx or show a traceback or a path, and every error is a problem (RFC 9457). The tests send
a few hundred of the same requests.
"""

import argparse
import json
import re
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection, HTTPResponse, RemoteDisconnected
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote, urlsplit

import hypothesis.strategies as st
from hypothesis import HealthCheck, Phase, given, settings

ODD_TEXT = st.text(st.characters(exclude_categories=[]), max_size=30)  # surrogates, too
ODD_NUMBER = st.sampled_from([0, -1, 2**31, 2**63, 2**64, -(2**63), 10**30, 1e308, -0.0, 5e-324])
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | ODD_NUMBER | st.floats() | ODD_TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(ODD_TEXT, inner, max_size=3),
    max_leaves=8,
)
METHODS = ("GET", "POST", "PUT", "DELETE", "OPTIONS", "HEAD", "PATCH", "TRACE")
HEADERS = ("Authorization", "Content-Type", "Origin", "X-Request-Id", "Accept", "Cookie", "X-API-Key")


class Sent(NamedTuple):
    """A request."""

    method: str
    target: str
    headers: dict[str, str]
    body: bytes | None


def requests(api: dict[str, Any], ids: list[Any]) -> st.SearchStrategy[Sent]:
    """Make requests from an OpenAPI description, with some ids that the model knows."""
    operations = [
        (path, method, operation)
        for path, methods in api["paths"].items()
        for method, operation in methods.items()
    ]
    return st.sampled_from(operations).flatmap(lambda found: _request(api, ids, *found))


def _request(
    api: dict[str, Any], ids: list[Any], path: str, method: str, operation: dict[str, Any]
) -> st.SearchStrategy[Sent]:
    schemas = operation.get("parameters", [])
    by_name = {each["name"]: _values(each["schema"], api, ids) for each in schemas}
    right_query = st.fixed_dictionaries({}, optional=by_name)
    query = right_query | st.dictionaries(st.sampled_from([*by_name, "x"]) | ODD_TEXT, ANYTHING, max_size=4)
    body: st.SearchStrategy[bytes | None] = st.none() | st.binary(max_size=40)
    if "requestBody" in operation:
        schema = operation["requestBody"]["content"]["application/json"]["schema"]
        right = _values(schema, api, ids)
        wrong = st.tuples(right, ODD_TEXT | st.sampled_from(["k", "history", "user"]), ANYTHING).map(
            lambda t: {**t[0], t[1]: t[2]}
        )
        # Numbers that JSON does not have go as NaN and Infinity.
        text = st.one_of(right, right, right, wrong, ANYTHING).map(lambda value: json.dumps(value).encode())
        body = st.one_of(
            text, text, text, body, ODD_TEXT.map(lambda text: f"{{{text}".encode(errors="replace"))
        )

    def put_together(method: str, name: str, query: Any, headers: Any, body: bytes | None) -> Sent:
        target = path.replace("{name}", quote(name.encode(errors="replace"), safe=""))
        asked = "&".join(f"{_quoted(key)}={_quoted(value)}" for key, value in query.items())
        kept = {key: re.sub(r"[^\x20-\x7e]", "?", value).strip() for key, value in headers.items()}
        return Sent(method, f"{target}?{asked}" if asked else target, kept, body)

    usual = st.just({"Content-Type": "application/json"})
    return st.builds(
        put_together,
        st.sampled_from([method.upper()] * 60 + list(METHODS)),
        st.sampled_from(["shop", "none", "../../etc/passwd"]) | ODD_TEXT.filter(bool),
        query,
        st.one_of(*[usual] * 6, st.dictionaries(st.sampled_from(HEADERS), ODD_TEXT, max_size=3)),
        body,
    )


def _values(schema: dict[str, Any], api: dict[str, Any], ids: list[Any]) -> st.SearchStrategy[Any]:
    """Make values that a schema allows, or nearly."""
    if "$ref" in schema:
        return _values(api["components"]["schemas"][schema["$ref"].rpartition("/")[2]], api, ids)
    if "anyOf" in schema:
        return st.one_of([_values(each, api, ids) for each in schema["anyOf"]])
    kind = schema.get("type")
    if kind == "object":
        fields = {name: _values(each, api, ids) for name, each in schema.get("properties", {}).items()}
        needed = {name: fields.pop(name) for name in schema.get("required", ()) if name in fields}
        return st.fixed_dictionaries(needed, optional=fields)
    if kind == "array":
        return st.lists(_values(schema["items"], api, ids), max_size=6)
    if kind == "integer":
        return st.integers(schema.get("minimum", -5), schema.get("maximum", 60)) | ODD_NUMBER
    if kind == "number":
        return st.floats(schema.get("minimum"), schema.get("maximum"), allow_nan=False) | ODD_NUMBER
    if kind == "boolean":
        return st.booleans()
    return st.none() if kind == "null" else st.sampled_from(ids) | ODD_TEXT


def _quoted(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return quote(text.encode(errors="surrogatepass"), safe="")


class Asker:
    """Sends requests over one connection, and looks at the answers."""

    def __init__(self, url: str, secrets: tuple[str, ...] = ()) -> None:
        self._connection = HTTPConnection(urlsplit(url).netloc, timeout=30)
        self._secrets = ("Traceback", 'File "', "site-packages", *secrets)
        self.statuses: Counter[int] = Counter()

    def get(self, path: str) -> Any:
        self._connection.request("GET", path)
        return json.loads(self._connection.getresponse().read())

    def send(self, asked: Sent) -> None:
        """Send a request; raises an `AssertionError` if the answer is not one that is allowed."""
        try:
            answer = self._answer(asked)
        except (RemoteDisconnected, ConnectionResetError):  # idle for too long: a new one must be answered
            self._connection.close()
            answer = self._answer(asked)
        text = answer.read().decode()
        self.statuses[answer.status] += 1
        assert answer.status < 500, (asked, answer.status, text)
        assert not any(each in text for each in self._secrets), (asked, text)
        assert answer.headers["x-content-type-options"] == "nosniff"
        if answer.status >= 400 and asked.method != "HEAD":
            assert answer.headers["content-type"] == "application/problem+json", (asked, text)
            problem = json.loads(text)
            assert problem["status"] == answer.status
            assert problem["detail"]

    def _answer(self, asked: Sent) -> HTTPResponse:
        self._connection.request(asked.method, asked.target, asked.body, asked.headers)
        return self._connection.getresponse()

    def close(self) -> None:
        self._connection.close()


@contextmanager
def asking(url: str, secrets: tuple[str, ...] = ()) -> Iterator[Asker]:
    asker = Asker(url, secrets)
    try:
        yield asker
    finally:
        asker.close()


def fuzz(url: str, ids: list[Any], count: int, secrets: tuple[str, ...] = ()) -> Counter[int]:
    """Send `count` requests, the same ones every time; returns how many had which status."""
    with asking(url, secrets) as asker:

        @settings(
            max_examples=count,
            deadline=None,
            database=None,
            derandomize=True,
            phases=[Phase.generate, Phase.shrink],
            suppress_health_check=list(HealthCheck),
        )
        @given(requests(asker.get("/v1/openapi.json"), ids))
        def send(asked: Sent) -> None:
            asker.send(asked)

        send()
        return asker.statuses


def main() -> None:
    import sys

    sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
    import mrfrec
    from mrfrec.service import ServiceSettings, create_app

    from servers import serving

    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--requests", type=int, default=5000)
    given = parser.parse_args()
    ids = mrfrec.load(given.model).items_[:20]
    with serving(create_app(given.model, settings=ServiceSettings(poll=0))) as url:
        start = time.perf_counter()
        statuses = fuzz(url, list(ids), given.requests, (str(given.model.parent.resolve()),))
        seconds = time.perf_counter() - start
    print(f"{sum(statuses.values()):,} requests in {seconds:.0f} s, no 5xx, no traceback:")
    for status, count in sorted(statuses.items()):
        print(f"  {status}: {count:,}")


if __name__ == "__main__":
    main()
