"""Tables from a cloud, which is a server on this machine."""

import gzip
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs

import polars as pl
import pytest

from mrfrec import read_interactions
from mrfrec.errors import DataError

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
            start = int(wanted[1]) if wanted[1] else max(len(body) - int(wanted[2]), 0)
            end = min(int(wanted[2] or len(body)), len(body) - 1) if wanted[1] else len(body) - 1
            self._answer(206, body[start : end + 1], f"bytes {start}-{end}/{len(body)}")

    def do_HEAD(self) -> None:
        self.do_GET()

    def _answer(self, status: int, body: bytes, part: str | None = None) -> None:
        self.send_response(status)
        for name, value in (
            ("Content-Length", str(len(body))),
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
    place = tmp_path / "bucket"
    frame.write_parquet(place / "x.parquet")
    frame.write_ipc(place / "x.arrow")
    (place / "x.csv").write_text(TEXT)
    (place / "x.csv.gz").write_bytes(gzip.compress(TEXT.encode()))
    frame[:1].write_parquet(tmp_path / "bucket/parts/1.parquet")
    frame[1:].write_parquet(tmp_path / "bucket/parts/2.parquet")
    (tmp_path / "bucket/logs/1.csv").write_text("user,item\n1,2\n")
    (tmp_path / "bucket/logs/2.csv").write_text("item,user\n4,3\n")
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


@pytest.mark.parametrize("name", ["x.parquet", "x.arrow", "x.csv.gz", "logs/*.csv", "parts/[12].parquet"])
def test_files_are_read_from_s3_by_name_or_pattern(web: str, name: str) -> None:
    data = read_interactions(f"s3://bucket/{name}")
    assert (list(data.users), list(data.items), len(data)) == ([1, 3], [2, 4], 2)


def test_urls_and_files_are_read_together(web: str, tmp_path: Path) -> None:
    (tmp_path / "more.csv").write_text("user,item\n5,6\n")
    data = read_interactions([tmp_path / "more.csv", "s3://bucket/x.csv"])
    assert (list(data.users), len(data)) == ([1, 3, 5], 3)


def test_what_cannot_be_fetched_is_named_without_secrets(web: str) -> None:
    for url, message in (
        ("s3://bucket/none.parquet", "there is no such file"),
        ("s3://bucket/none.csv", "there is no such file"),
        ("s3://bucket/none/*.parquet", "there is no such file"),
        ("https://me:hunter2@host/x.csv?signature=hunter2", "https:// is not known.* Save a file here first"),
        ("mysql://me:hunter2@host/shop", "^mysql://host/shop: mysql:// is not known.*postgresql, sqlite"),
        ("s3://bucket/x", "cannot tell the format"),
    ):
        with pytest.raises(DataError, match=message) as caught:
            read_interactions(url)
        assert "hunter2" not in str(caught.value), url


def test_refused_key_is_named(web: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.setenv("AWS_SKIP_SIGNATURE", "true")
    with pytest.raises(DataError, match=r"s3://bucket/x\.parquet cannot be read: 403 Forbidden"):
        read_interactions("s3://bucket/x.parquet")
