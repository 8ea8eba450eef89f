"""The service's own copies of model files: shared by content, kept while they are used, never left behind."""

import fcntl
from pathlib import Path

import pytest

from mrfrec import DataError, ParameterError
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
    left = [folder / f"{'0' * 32}.copy", folder / "unfinished.copy"]
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
    assert calls[:2] == [fcntl.LOCK_EX, fcntl.LOCK_SH]
    assert second.path.read_bytes() == b"one"
    second.release()


def test_folder_that_others_could_write_to_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    with pytest.raises(ParameterError, match="copies must be a folder that belongs to the user"):
        folder_of_copies(tmp_path / "open")
    for name in ("file", "missing/copies"):
        with pytest.raises(DataError, match="cannot hold copies of models"):
            folder_of_copies(tmp_path / name)
