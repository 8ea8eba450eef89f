"""Pages of a service, whose HTML is checked when it is read."""

from html.parser import HTMLParser
from typing import Any

import httpx

VOID = {"input", "link", "meta", "img", "rect", "line", "circle", "path"}


class Checked(HTMLParser):
    """A page whose tags are balanced, and which has no scripts, styles or handlers in it."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self._open: list[str] = []
        self.feed(html)
        assert not self._open
        ids = [given["id"] for _, given in self.tags if "id" in given]
        assert len(set(ids)) == len(ids)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.tags.append((tag, given))
        assert "style" not in given
        assert not [name for name in given if name.startswith("on")]
        assert tag != "style"
        assert tag != "script" or given.get("src")
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self._open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self._open and self._open[-1] == "script":
            assert not data.strip()
        self.text.append(data)

    @property
    def links(self) -> list[str]:
        return [str(given["href"]) for tag, given in self.tags if tag in ("a", "link") and "href" in given]


def get(client: httpx.Client, path: str, status: int = 200, **query: Any) -> Checked:
    found = client.get(path, params=query or None)
    assert found.status_code == status, found.text
    assert found.headers["content-type"] == "text/html; charset=utf-8"
    return Checked(found.text)
