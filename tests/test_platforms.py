"""Where the library runs, and where it came from.

The first test runs it without what only Unix has: it removes the functions that Windows lacks, and refuses,
as Windows does, to replace or remove a file that this process has open. That is no test on Windows.
"""

import json
import os
import subprocess
import sys
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from types import SimpleNamespace

import pytest

from mrfrec.checks import how_to_install, missing_extra

AS_ON_WINDOWS = """
import asyncio, concurrent.futures, ctypes, errno, fcntl, mmap, multiprocessing.connection, os, pathlib
import signal, sqlite3, subprocess, sys, tempfile, types
import narwhals, numba, numpy, polars, pydantic, rich.console, rich.progress, safetensors, scipy.sparse.linalg
import threadpoolctl, typer, rapidfuzz.process, typer.main

def locking(descriptor, mode, count):
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise PermissionError(errno.EACCES, "another process has locked it") from None

def is_open(path):
    used = {os.path.realpath(f"/proc/self/fd/{name}") for name in os.listdir("/proc/self/fd")}
    with open("/proc/self/maps") as maps:
        used |= {line.split(maxsplit=5)[5].strip() for line in maps if line.count("/")}
    return os.path.realpath(path) in used

def guarded(function):
    def refuse(*paths, **options):
        for path in paths:
            if is_open(path):
                raise PermissionError(errno.EACCES, "another program uses the file", str(path))
        return function(*paths, **options)
    return refuse

os.replace, os.unlink = guarded(os.replace), guarded(os.unlink)
sys.modules["msvcrt"] = types.SimpleNamespace(locking=locking, LK_NBLCK=2)
sys.modules["fcntl"] = sys.modules["resource"] = sys.modules["uvloop"] = None
for module, names in {
    os: "getuid geteuid fchmod chown fork register_at_fork sched_getaffinity sysconf posix_fallocate "
    "O_DIRECTORY memfd_create fchown getgid",
    mmap: "MAP_PRIVATE PROT_READ PROT_WRITE MAP_NORESERVE",
    signal: "SIGHUP SIGUSR1 pthread_sigmask",
}.items():
    for name in names.split():
        if hasattr(module, name):
            delattr(module, name)
no_library = ctypes.CDLL
def library(name, *rest, **options):
    if name is None:
        raise TypeError("argument of type 'NoneType' is not iterable")
    return no_library(name, *rest, **options)
ctypes.CDLL = library
read_text = pathlib.Path.read_text
def no_proc(path, *rest, **options):
    if str(path).startswith("/proc"):
        raise FileNotFoundError(errno.ENOENT, "no such file", str(path))
    return read_text(path, *rest, **options)
pathlib.Path.read_text = no_proc
sys.platform = "win32"
"""
WORK = """
import io, logging
import mrfrec
from mrfrec import nightly

pathlib.Path("events.csv").write_text(
    "user,item\\n" + "".join(f"u{u},i{i}\\n" for u in range(40) for i in range(30) if (u * i + u) % 7 < 3)
)
data = mrfrec.read_interactions(io.BytesIO(pathlib.Path("events.csv").read_bytes()), input_format="csv")
assert data.fingerprint == mrfrec.read_interactions("events.csv").fingerprint
model = mrfrec.MRF(sparsity=0.1, measure=False).fit(data)
model.save("shop.mrf", include_histories=True)
with mrfrec.locked("shop.mrf"):
    events = io.StringIO("user,item\\nu1,new\\nu2,new\\n")
    changed = mrfrec.load("shop.mrf").update(events, input_format="csv")
    changed.save("shop.mrf", include_histories=True)
    lock = os.open(".shop.mrf.lock", os.O_RDWR)
    try:
        import msvcrt
        msvcrt.locking(lock, 2, 1)
        raise SystemExit("not locked")
    except PermissionError:
        os.close(lock)
assert len(mrfrec.load("shop.mrf").recommend("u1", k=3)) == 3
model.recommend_to("recommendations.parquet", k=3)
job = '[source]\\ndata = "events.csv"\\n[model]\\nmeasure = false\\n[guard]\\nmax_drop = 0.9\\n'
pathlib.Path("shop.toml").write_text(job + '[publish]\\nmodel = "nightly.mrf"\\n')
for _ in range(2):
    assert nightly.run("shop.toml", accept=True)["status"] == "published"
left = sorted(path.name for path in pathlib.Path().iterdir() if path.name.endswith(".unfinished"))
assert not left, left
try:
    mrfrec.service.serve("shop.mrf")
except mrfrec.ServiceError as error:
    assert "WSL" in str(error)
else:
    raise SystemExit("it serves")
sys.argv = ["mrfrec", "recommend", "shop.mrf", "--history", "i1,i2", "-k", "3"]
from mrfrec.cli import main
main()
"""


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="asks Linux which files are open")
def test_all_but_the_service_works_without_what_only_unix_has(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", AS_ON_WINDOWS + WORK],
        cwd=tmp_path, capture_output=True, text=True, timeout=600, check=False,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert "rank" in done.stdout
    assert not [path for path in tmp_path.iterdir() if path.name.startswith("mrfrec-")]


@pytest.mark.parametrize(
    ("origin", "command"),
    [
        (None, 'pip install "mrfrec[sql]"'),  # of an index
        ({"dir_info": {"editable": True}}, 'pip install -e "{}[sql]"'),
        ({"dir_info": {}}, 'pip install "{}[sql]"'),
        ({"archive_info": {}}, 'pip install "{}[sql]"'),  # a wheel
        ({"url": "file:///gone/since", "dir_info": {}}, 'pip install ".[sql]" in a clone of mrfrec'),
        ({"url": "https://example.com/mrfrec", "vcs_info": {}}, 'pip install ".[sql]" in a clone of mrfrec'),
        ("nothing", 'pip install ".[sql]" in a clone of mrfrec'),  # on the path, not installed
    ],
)
def test_what_is_missing_is_installed_from_where_the_package_came(
    origin: object, command: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    place = tmp_path / "a clone"
    place.mkdir()

    def distribution(name: str) -> SimpleNamespace:
        if not isinstance(origin, dict | None):
            raise PackageNotFoundError(name)
        text = None if origin is None else json.dumps({"url": place.as_uri(), **origin})
        return SimpleNamespace(read_text=lambda file: {"direct_url.json": text}[file])

    monkeypatch.setattr("importlib.metadata.distribution", distribution)
    assert how_to_install("sql") == command.format(place)
    assert str(missing_extra("it needs this", "sql")) == f"it needs this: {command.format(place)}."
