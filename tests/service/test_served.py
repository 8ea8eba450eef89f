"""The models of a service: chosen by name or by visitor, exchanged when their files are."""

import errno
import fcntl
import math
import os
import shutil
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from asking import rows_for
from mrfrec import MRF, ModelFileError, ParameterError
from mrfrec.service import served
from mrfrec.service.problems import ProblemError
from mrfrec.service.served import ServedModels

from matrices import random_matrix


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("models")
    X = sp.csr_array(random_matrix(5).astype(np.float32))
    for name, l2 in {"a": 1.0, "b": 50.0}.items():
        MRF(l2=l2, threads=1).fit(X).save(folder / f"{name}.mrf")
    return {name: folder / f"{name}.mrf" for name in ("a", "b")}


def replace_by(target: Path, source: Path) -> None:
    new = target.with_name("new")
    new.write_bytes(source.read_bytes())
    os.replace(new, target)  # noqa: PTH105


@pytest.fixture
def path(files: dict[str, Path], tmp_path: Path) -> Path:
    """A file that tests replace."""
    replace_by(tmp_path / "m.mrf", files["a"])
    return tmp_path / "m.mrf"


def test_model_is_chosen_by_name_then_by_visitor_then_by_default(files: dict[str, Path]) -> None:
    models = ServedModels(files, default="b", split={"a": 1, "b": 3})

    def chosen(name: str | None, visitor: Any, models: ServedModels = models) -> tuple[str, str]:
        choice = models.choose(name, visitor)
        return choice.served.name, choice.why

    assert chosen("a", "anybody") == ("a", "request")
    assert chosen(None, None) == ("b", "default")
    with pytest.raises(ProblemError, match="there is no model 'c'"):
        models.choose("c")
    found = [chosen(None, visitor) for visitor in range(4000)]
    assert {why for _, why in found} == {"split"}
    assert abs(np.mean([name == "a" for name, _ in found]) - 0.25) < 0.03
    again = ServedModels(files, split={"a": 1, "b": 3})
    assert [chosen(None, visitor, again) for visitor in range(4000)] == found
    assert chosen(None, 7) == chosen(None, "7")  # JSON may hold either
    assert chosen(None, "\ud800")


def test_salt_makes_other_groups_of_the_same_shares(files: dict[str, Path]) -> None:
    def group(salt: str) -> list[bool]:
        models = ServedModels(files, split={"a": 0.5, "b": 0.5}, salt=salt)
        return [models.choose(None, visitor).served.name == "a" for visitor in range(2000)]

    plain, one, two = map(np.array, map(group, ("", "prices", "pictures")))
    for groups in (plain, one, two):
        assert 900 < groups.sum() < 1100
    for other in (plain, two):
        assert 900 < (one == other).sum() < 1100  # as often as by chance
    assert (one == group("prices")).all()


def test_replaced_file_answers_and_a_damaged_one_does_not(
    files: dict[str, Path], path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    models = ServedModels({"m": path})
    failures: list[str] = []
    models.on_failure = failures.append
    first = models.choose("m").served
    models.follow()
    assert models.choose("m").served is first
    replace_by(path, files["b"])
    models.follow()
    second = models.choose("m").served
    assert second.file_hash != first.file_hash
    content = bytearray(files["a"].read_bytes())
    content[-5] ^= 255
    path.with_name("bad").write_bytes(content)
    replace_by(path, path.with_name("bad"))
    models.follow()
    assert models.choose("m").served is second
    assert "model m stays as it is" in caplog.text
    with pytest.raises(ModelFileError, match="damaged"):
        models.reload("m")
    assert failures == ["m", "m"]
    caplog.clear()
    models.follow()  # is not tried again until it is replaced
    assert not caplog.text
    path.unlink()
    for _ in range(3):
        models.follow()
    assert models.choose("m").served is second
    assert caplog.text.count("its file is gone") == 1
    assert failures == ["m", "m", "m"]
    replace_by(path, files["a"])
    models.follow()
    third = models.choose("m").served
    assert third.file_hash == first.file_hash
    assert len(failures) == 3
    assert rows_for(first.model, history=[1]) == rows_for(third.model, history=[1])  # still answers


SHARES = "split must be shares above 0, and at most 1,000,000, of a, b"


@pytest.mark.parametrize(
    ("given", "words"),
    [
        *(({"split": {"a": share}}, SHARES) for share in (0.0, math.inf, math.nan, 1e308)),
        ({"split": {"a": 0.5, "c": 0.5}}, SHARES),
        ({"default": "c"}, "default must be one of a, b"),
        ({"paths": {}}, "models must be at least one"),
        ({"paths": {"a b": Path()}}, "the name of a model must be up to 64 letters"),
    ],
)
def test_bad_shelves_are_refused(files: dict[str, Path], given: dict[str, Any], words: str) -> None:
    with pytest.raises(ParameterError, match=words):
        ServedModels(**{"paths": files, **given})


def test_a_file_that_may_be_read_again_is_opened(
    files: dict[str, Path], path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    models = ServedModels({"m": path})
    replace_by(path, files["b"])

    def refuses(self: Path, *given: Any) -> Any:
        raise PermissionError(13, "Permission denied", str(self))

    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", refuses)
        with pytest.raises(ModelFileError, match="could not be read: Permission denied"):
            models.reload("m")
    assert models.changed() == []
    path.chmod(0o640)
    assert models.changed() == ["m"]


def test_hard_link_to_a_served_file_does_not_open_it_again(path: Path) -> None:
    models = ServedModels({"m": path})
    os.link(path, path.with_name("kept.mrf"))
    assert models.changed() == []


@pytest.mark.parametrize("content", ["other", "nonsense"])
def test_file_changed_in_place_changes_no_answer_and_is_told(
    content: str, files: dict[str, Path], path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    models = ServedModels({"m": path})
    before = models.choose("m").served
    answers = rows_for(before.model, history=[1, 2], k=20)
    new = files["b"].read_bytes()
    new = new if content == "other" else new[:-1] + bytes([new[-1] ^ 255])
    path.write_bytes(new)
    assert rows_for(before.model, history=[1, 2], k=20) == answers
    assert models.changed() == ["m"]
    assert models.stale == {"m": "changed in place"}
    models.follow()
    assert "its file was changed in place" in caplog.text
    after = models.choose("m").served
    assert (after.file_hash != before.file_hash) is (content == "other")
    assert models.stale == ({} if content == "other" else {"m": "changed in place"})
    assert rows_for(before.model, history=[1, 2], k=20) == answers


def test_reload_that_failed_for_a_passing_reason_is_tried_again_with_growing_pauses(
    files: dict[str, Path], path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    models = ServedModels({"m": path})
    first = models.choose("m").served
    now, tries, opened = 0.0, [], Path.open
    monkeypatch.setattr(time, "monotonic", lambda: now)

    def refuses(self: Path, *given: Any) -> Any:
        if self == path:
            tries.append(now)
            raise OSError(errno.EMFILE, "Too many open files", str(self))
        return opened(self, *given)

    replace_by(path, files["b"])
    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", refuses)
        while now < 1500:
            models.follow()
            now += 2
    pauses = np.diff(tries)
    assert list(pauses) == [2, 4, 8, 16, 32, 64, 128, 256, 300, 300, 300]
    assert models.choose("m").served is first
    assert models.stale == {"m": "cannot be opened"}
    now += 300
    models.follow()
    assert models.choose("m").served.file_hash != first.file_hash
    assert not models.stale


def test_folder_of_copies_that_was_tidied_away_is_made_again(files: dict[str, Path], path: Path) -> None:
    models = ServedModels({"m": path}, copies=path.parent / "copies")
    shutil.rmtree(path.parent / "copies")
    replace_by(path, files["b"])
    before = models.choose("m").served.file_hash
    models.follow()
    assert models.choose("m").served.file_hash != before


def test_folder_of_copies_that_is_locked_or_open_to_others_makes_a_model_stale_until_it_is_not(
    files: dict[str, Path], path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = path.parent / "copies"
    models = ServedModels({"m": path}, copies=folder)
    before = models.choose("m").served.file_hash
    monkeypatch.setattr(served, "_LONGEST_WAIT", 0.05)
    monkeypatch.setattr(served, "_FIRST_PAUSE", 0.0)
    replace_by(path, files["b"])
    descriptor = os.open(folder, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    models.follow()
    assert models.stale == {"m": "another process locks the folder of copies"}
    os.close(descriptor)
    folder.chmod(0o777)
    models.follow()
    assert models.stale.keys() == models._due.keys() == {"m"}
    folder.chmod(0o700)
    models.follow()
    assert not models.stale
    assert models.choose("m").served.file_hash != before
