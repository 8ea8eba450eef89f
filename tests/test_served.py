"""The models of a service: chosen by name or by visitor, exchanged when their files are."""

import math
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from mrfrec import MRF, ModelFileError, ParameterError
from mrfrec.service.served import ServedModels

from conftest import random_matrix


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


def test_model_is_chosen_by_name_then_by_visitor_then_by_default(files: dict[str, Path]) -> None:
    models = ServedModels(files, default="b", split={"a": 1, "b": 3})
    found = models.choose("a", "anybody")
    assert found is not None
    assert (found.served.name, found.why) == ("a", "request")
    found = models.choose(None, None)
    assert found is not None
    assert (found.served.name, found.why) == ("b", "default")
    assert models.choose("c", None) is None
    chosen = [models.choose(None, visitor) for visitor in range(4000)]
    assert {choice.why for choice in chosen if choice} == {"split"}
    share = np.mean([choice.served.name == "a" for choice in chosen if choice])
    assert abs(share - 0.25) < 0.03
    assert models.choose(None, "\ud800") is not None
    again = ServedModels(files, split={"a": 1, "b": 3})
    assert [choice.served.name for choice in (again.choose(None, v) for v in range(4000)) if choice] == [
        choice.served.name for choice in chosen if choice
    ]
    one, other = models.choose(None, 7), models.choose(None, "7")  # JSON may hold either
    assert one is not None
    assert other is not None
    assert one.served.name == other.served.name


def test_replaced_file_answers_and_a_damaged_one_does_not(
    files: dict[str, Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "m.mrf"
    replace_by(path, files["a"])
    models = ServedModels({"m": path})
    first = models.get("m")
    models.follow()
    assert models.get("m") is first
    replace_by(path, files["b"])
    models.follow()
    second = models.get("m")
    assert second.fingerprint != first.fingerprint
    content = bytearray(files["a"].read_bytes())
    content[-5] ^= 255
    path.with_name("bad").write_bytes(content)
    replace_by(path, path.with_name("bad"))
    models.follow()
    assert models.get("m") is second
    assert "model m stays as it is" in caplog.text
    with pytest.raises(ModelFileError, match="damaged"):
        models.reload("m")
    caplog.clear()
    models.follow()  # is not tried again until it is replaced
    assert not caplog.text
    path.unlink()
    models.follow()
    assert models.get("m") is second
    replace_by(path, files["a"])
    models.follow()
    third = models.get("m")
    assert third.fingerprint == first.fingerprint
    assert first.model.answer(history=[1]).rows == third.model.answer(history=[1]).rows  # still answers


def test_bad_shelves_are_refused(files: dict[str, Path], tmp_path: Path) -> None:
    with pytest.raises(ParameterError, match="models must be at least one"):
        ServedModels({})
    with pytest.raises(ParameterError, match="default must be one of a, b"):
        ServedModels(files, default="c")
    with pytest.raises(ParameterError, match="split must be shares above 0, and at most 1,000,000, of a, b"):
        ServedModels(files, split={"a": 0.5, "c": 0.5})
    with pytest.raises(ParameterError, match="split must be shares above 0"):
        ServedModels(files, split={"a": 0.0})
    for share in (math.inf, math.nan, 1e308):
        with pytest.raises(ParameterError, match="split must be shares above 0"):
            ServedModels(files, split={"a": share, "b": 1.0})
    with pytest.raises(ModelFileError, match="there is no model file"):
        ServedModels({"a": tmp_path / "none.mrf"})


def test_a_file_that_may_be_read_again_is_opened(
    files: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "m.mrf"
    path.write_bytes(files["a"].read_bytes())
    models = ServedModels({"m": path})
    replace_by(path, files["b"])
    opens = Path.open

    def refuses(self: Path, *given: Any) -> Any:
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "open", refuses)
    with pytest.raises(ModelFileError, match="could not be read: Permission denied"):
        models.reload("m")
    monkeypatch.setattr(Path, "open", opens)
    assert models.changed() == []
    path.chmod(0o640)
    assert models.changed() == ["m"]


def test_file_that_is_gone_is_said_once(
    files: dict[str, Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "m.mrf"
    replace_by(path, files["a"])
    models = ServedModels({"m": path})
    failures: list[str] = []
    models.on_failure = failures.append
    path.unlink()
    for _ in range(3):
        models.follow()
    assert failures == ["m"]
    assert caplog.text.count("its file is gone") == 1
    replace_by(path, files["b"])
    models.follow()
    assert len(failures) == 1
