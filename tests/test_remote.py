"""Tables by HTTP and from a cloud, from servers on this machine."""

import gzip
import re
import socket
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs

import polars as pl
import pytest

from mrfrec import read_interactions
from mrfrec.errors import DataError
from mrfrec.io import sources

pytestmark = pytest.mark.slow  # servers

TEXT = "user,item\n1,2\n3,4\n"


class Files(BaseHTTPRequestHandler):
    """Serve a folder as a web server does, with ranges, and as a bucket of S3, with lists."""

    folder: Path
    paths: list[str]

    def do_GET(self) -> None:
        path, _, query = self.path.partition("?")
        self.paths.append(self.path)
        file = self.folder / path.lstrip("/")
        if path.startswith("/bucket") and not self.headers.get("Authorization", "").startswith("AWS4"):
            self._answer(403, b"")
        elif "list-type=2" in query:
            prefix = parse_qs(query).get("prefix", [""])[0]
            root = self.folder / "bucket"
            keys = sorted(str(found.relative_to(root)) for found in root.rglob("*") if found.is_file())
            found = "".join(
                f"<Contents><Key>{key}</Key><Size>{(root / key).stat().st_size}</Size><ETag>e</ETag>"
                "<LastModified>2026-01-01T00:00:00.000Z</LastModified></Contents>"
                for key in keys
                if key.startswith(prefix)
            )
            listing = f"<ListBucketResult><Name>bucket</Name><IsTruncated>false</IsTruncated>{found}"
            self._answer(200, f"{listing}</ListBucketResult>".encode())
        elif not file.is_file():
            self._answer(404, b"")
        else:
            body, wanted = file.read_bytes(), re.match(r"bytes=(\d*)-(\d*)", self.headers.get("Range") or "")
            if wanted is None:
                self._answer(200, body)
                return
            first, last = wanted[1], wanted[2]
            start = int(first) if first else max(len(body) - int(last), 0)
            end = min(int(last or len(body)), len(body) - 1) if first else len(body) - 1
            self._answer(206, body[start : end + 1], f"bytes {start}-{end}/{len(body)}")

    def do_HEAD(self) -> None:
        self.do_GET()

    def _answer(self, status: int, body: bytes, part: str | None = None) -> None:
        self.send_response(status)
        extra = 5 if "truncated" in self.path else 0
        for name, value in (
            ("Content-Length", str(len(body) + extra)),
            ("Last-Modified", "Thu, 01 Jan 2026 00:00:00 GMT"),
            ("ETag", '"e"'),
            *((("Content-Range", part),) if part else ()),
        ):
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def web(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of a server of a few files, which is also where S3 is looked for."""
    for name in ("bucket/logs", "bucket/parts"):
        (tmp_path / name).mkdir(parents=True)
    frame = pl.DataFrame({"user": [1, 3], "item": [2, 4]})
    for place in (tmp_path, tmp_path / "bucket"):
        frame.write_parquet(place / "x.parquet")
        frame.write_ipc(place / "x.arrow")
        frame.write_ndjson(place / "x.jsonl")
        (place / "x.csv").write_text(TEXT)
        (place / "x.csv.gz").write_bytes(gzip.compress(TEXT.encode()))
    frame[:1].write_parquet(tmp_path / "bucket/parts/1.parquet")
    frame[1:].write_parquet(tmp_path / "bucket/parts/2.parquet")
    (tmp_path / "bucket/logs/1.csv").write_text("user,item\n1,2\n")
    (tmp_path / "bucket/logs/2.csv").write_text("item,user\n4,3\n")
    (tmp_path / "truncated.csv").write_text(TEXT)
    handler = type("Here", (Files,), {"folder": tmp_path, "paths": []})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}"
        for name, value in {
            "AWS_ENDPOINT_URL": address,
            "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": "hunter2",
            "AWS_REGION": "us-east-1",
            "AWS_ALLOW_HTTP": "true",
        }.items():
            monkeypatch.setenv(name, value)
        yield address
        server.shutdown()


@pytest.mark.parametrize("name", ["x.parquet", "x.arrow", "x.jsonl", "x.csv", "x.csv.gz"])
def test_file_is_read_by_http_and_from_s3(web: str, name: str) -> None:
    for url in (f"{web}/{name}", f"{web}/{name}?signature=hunter2", f"s3://bucket/{name}"):
        data = read_interactions(url)
        assert (list(data.users), list(data.items), len(data)) == ([1, 3], [2, 4], 2)


@pytest.mark.parametrize("pattern", ["logs/*.csv", "parts/*.parquet", "parts/[12].parquet"])
def test_pattern_finds_files_in_s3(web: str, pattern: str) -> None:
    data = read_interactions(f"s3://bucket/{pattern}")
    assert (list(data.users), list(data.items), len(data)) == ([1, 3], [2, 4], 2)


def test_urls_and_files_are_read_together(web: str, tmp_path: Path) -> None:
    (tmp_path / "more.csv").write_text("user,item\n5,6\n")
    data = read_interactions([f"{web}/x.csv", tmp_path / "more.csv", "s3://bucket/x.csv"], duplicates="sum")
    assert (list(data.users), len(data)) == ([1, 3, 5], 3)


def test_what_cannot_be_fetched_is_named_without_secrets(web: str) -> None:
    started = time.monotonic()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        closed = f"http://127.0.0.1:{free.getsockname()[1]}"
        for url, message in (
            (f"{web}/none.csv?signature=hunter2", r"none\.csv cannot be read: 404"),
            (f"{web}/none.parquet", "404"),
            (f"{closed}/x.csv?signature=hunter2", "refused"),
            (f"{closed.replace('//', '//me:hunter2@')}/x.csv", "a user and a password in the URL are not"),
            ("http://me:hunter2@127.0.0.1/x.csv", "a user and a password in the URL are not supported"),
            (f"{web}/truncated.csv", "5 bytes too early"),
            ("s3://bucket/none.parquet", "there is no such file"),
            ("s3://bucket/none.csv", "there is no such file"),
            ("s3://bucket/none/*.parquet", "no file matches"),
            ("s3://bucket/none/*.csv", "no file matches"),
            ("ftp://me:hunter2@host/x.csv", "ftp:// is not known"),
            ("mysql://me:hunter2@host/shop", "^mysql://host/shop: mysql:// is not known.*postgresql, sqlite"),
            ("postgresql+psycopg2://me:hunter2@host/shop", "psycopg2:// is not known"),
            (f"{web}/x", "cannot tell the format"),
        ):
            with pytest.raises(DataError, match=message) as caught:
                read_interactions(url)
            assert "hunter2" not in str(caught.value), url
    assert time.monotonic() - started < 60


def test_refused_key_is_named(web: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.setenv("AWS_SKIP_SIGNATURE", "true")
    with pytest.raises(DataError, match=r"s3://bucket/x\.parquet cannot be read: 403 Forbidden"):
        read_interactions("s3://bucket/x.parquet")


def test_server_that_does_not_answer_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "_SECONDS", 0.2)
    with (
        socket.create_server(("127.0.0.1", 0)) as silent,
        pytest.raises(DataError, match=r"x\.csv cannot be read: .*(?i:time)"),
    ):
        read_interactions(f"http://127.0.0.1:{silent.getsockname()[1]}/x.csv")
