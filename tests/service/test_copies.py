"""The service's own copies of model files: shared by content, kept while they are used, never left behind."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from mrfrec import DataError, ParameterError
from mrfrec.service import served
from mrfrec.service.served import copied, folder_of_copies


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return folder_of_copies(tmp_path / "copies")


def test_copies_are_shared_by_content_and_removed_by_the_last_who_used_them(folder: Path) -> None:
    one, same, other = (folder.parent / name for name in ("one.mrf", "same.mrf", "other.mrf"))
    for path, content in ((one, b"one"), (same, b"one"), (other, b"other")):
        path.write_bytes(content)
    first, second, third = (copied(path, folder) for path in (one, same, other))
    assert (first.path, len({*folder.iterdir()})) == (second.path, 2)
    one.write_bytes(b"new")
    assert (first.path.read_bytes(), third.path.read_bytes()) == (b"one", b"other")
    assert first.path.stat().st_mode & 0o777 == 0o600  # it may have histories
    third.release()
    first.release()
    assert [*folder.iterdir()] == [second.path]
    second.release()
    assert not [*folder.iterdir()]


def test_start_removes_what_killed_processes_left_and_nothing_else(folder: Path) -> None:
    left = [folder / f"{'0' * 32}.copy", folder / "unfinished-ab_1.copy"]
    others = [folder / "shop.mrf", folder / "my.copy"]
    for path in (*left, *others):
        path.write_bytes(b"something")
    used = copied(others[0], folder)
    assert folder_of_copies(folder) == folder
    assert {*folder.iterdir()} == {*others, used.path}
    used.release()


def test_copy_that_goes_while_somebody_waits_for_it_is_made_again(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = folder.parent / "shop.mrf"
    path.write_bytes(b"one")
    first = copied(path, folder)
    flock, calls = fcntl.flock, []

    def waits(descriptor: int, how: int) -> None:
        calls.append(how)
        if len(calls) == 2:  # after the folder, the copy
            first.release()
        flock(descriptor, how)

    monkeypatch.setattr(fcntl, "flock", waits)
    second = copied(path, folder)
    assert calls[:2] == [fcntl.LOCK_EX | fcntl.LOCK_NB, fcntl.LOCK_SH | fcntl.LOCK_NB]
    assert second.path.read_bytes() == b"one"
    second.release()


def test_file_is_read_without_the_lock_and_a_copy_made_meanwhile_is_shared(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = folder.parent / "shop.mrf"
    path.write_bytes(b"one")
    hashed, copies = served._hash, list[served.OwnCopy]()

    def slow(source: Any, target: Any = None) -> str:
        digest = hashed(source, target)
        if target is not None and not copies:
            monkeypatch.setattr(served, "_hash", hashed)
            copies.append(copied(path, folder_of_copies(folder)))  # as another process would
        return digest

    monkeypatch.setattr(served, "_hash", slow)
    copies.append(copied(path, folder))
    assert {copy.path for copy in copies} == {*folder.iterdir()}
    for copy in copies:
        assert copy.path.read_bytes() == b"one"
        copy.release()
    assert not [*folder.iterdir()]


def test_wait_for_the_lock_of_the_folder_ends(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = folder.parent / "shop.mrf"
    path.write_bytes(b"one")
    monkeypatch.setattr(served, "_LONGEST_WAIT", 0.1)
    with _locked(folder):
        with pytest.raises(TimeoutError, match=r"another process has locked it for 0\.1 s"):
            copied(path, folder)
        with pytest.raises(DataError, match="cannot hold copies of models: another process has locked it"):
            folder_of_copies(folder)
    copied(path, folder).release()
    assert not [*folder.iterdir()]


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def test_folder_that_others_could_write_to_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    with pytest.raises(ParameterError, match="copies must be a folder that belongs to the user"):
        folder_of_copies(tmp_path / "open")
    for name in ("file", "missing/copies"):
        with pytest.raises(DataError, match="cannot hold copies of models"):
            folder_of_copies(tmp_path / name)
