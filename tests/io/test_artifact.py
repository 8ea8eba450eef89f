"""Model files: whole or refused, written at once or not at all, read as little as is needed."""

import json
import os
import pickle
import resource
import socket
import stat
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import scipy.sparse as sp
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.numpy import save_file

import mrfrec
from mrfrec import MRF, DataError, Interactions, ModelFileError, MrfrecWarning, ParameterError
from mrfrec.io import artifact
from mrfrec.io.artifact import describe, open_file, write_file
from mrfrec.io.atomic import check_writable, writing

from matrices import random_matrix

Models = dict[str, MRF]  # by kind
Originals = dict[Any, bytes]  # by kind, and whether there are histories
Answers = dict[Any, list[Any]]  # of the models in these files
Arrays = dict[str, npt.NDArray[Any]]

USERS, ITEMS = 60, 30
TITLES = [None, "", "Amélie", "映画, 2", "a\nb", "🎬 three", *(f"Title {i}" for i in range(6, ITEMS))]


def data(*, text: bool, real: bool, titles: bool) -> Interactions:
    """Ids that do not ascend, as integers or strings."""
    X = random_matrix(4, USERS, ITEMS, real=real)
    rng = np.random.default_rng(5)
    users, items = (rng.permutation(np.arange(n) * 7 - 50).tolist() for n in (USERS, ITEMS))
    if text:
        users, items = [f"ü{u}" for u in users], [f"i{i}" for i in items]
    return Interactions(sp.csr_array(X), users, items, TITLES if titles else None)


KINDS: dict[str, tuple[Callable[[], MRF], Callable[[], Interactions]]] = {
    "dense": (lambda: MRF.paper(l2=2.0), lambda: data(text=True, real=False, titles=True)),
    "sparse": (lambda: MRF.paper(l2=2.0, sparsity=0.4), lambda: data(text=False, real=True, titles=False)),
    "dense, offset": (
        lambda: MRF.paper(l2=2.0, offset=True, dtype="float64"),
        lambda: data(text=False, real=True, titles=True),
    ),
    "sparse, r": (
        lambda: MRF.paper(l2=2.0, sparsity=0.2, r=0.5, dtype="float64"),
        lambda: data(text=True, real=False, titles=False),
    ),
}
FILES = [(kind, histories) for kind in KINDS for histories in (False, True)]


@pytest.fixture(scope="module")
def fitted() -> Models:
    return {kind: model().fit(interactions()) for kind, (model, interactions) in KINDS.items()}


@pytest.fixture(scope="module")
def originals(fitted: Models, tmp_path_factory: pytest.TempPathFactory) -> Originals:
    """The bytes of each kind of file."""
    path = tmp_path_factory.mktemp("originals") / "model.mrf"
    found = {}
    for kind, histories in FILES:
        fitted[kind].save(path, include_histories=histories)
        found[kind, histories] = path.read_bytes()
    return found


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where a model may be written to."""
    return tmp_path / "model.mrf"


def everything(model: Any) -> list[Any]:
    """All a model can be asked, as values that can be compared."""
    own = random_matrix(6, 20, len(model.items_))
    names = list(model.items_)
    weights = model.weights_.toarray() if sp.issparse(model.weights_) else np.asarray(model.weights_)
    histories = {f"h{u}": [names[i] for i in np.flatnonzero(row)] for u, row in enumerate(own)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", MrfrecWarning)  # fewer than k, for those with long histories
        asked = [model.recommend(history=histories, k=8, explain=2)]
        if model.users_ is not None:
            asked += [model.recommend(k=6), model.recommend(list(model.users_)[:3], k=3, exclude=names[:4])]
            asked += [model.explain(names[9], user=model.users_[0])]
        asked += [model.similar_items(names, k=5)]
    return [
        weights.tobytes(),
        [frame.rows() for frame in asked],
        model.explain(names[3], history=names[4:12]).rows(),
        [array.tobytes() for array in (model.mean_, model.scale_, model.popularity_)],
        (names, list(model.titles_ or []), list(model.users_ or [])),
        (repr(model), model.threshold_, model.n_blocks_, model.plan_.kind, model.plan_.reason),
        model.top_k(sp.csr_array(own), 4)[1].tobytes(),
    ]


def folder_of(path: Path) -> list[str]:
    return sorted(entry.name for entry in path.iterdir())


# ── there and back ────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("kind", KINDS)
def test_a_loaded_model_answers_as_the_one_that_was_saved(fitted: Models, kind: str, path: Path) -> None:
    fitted[kind].save(path, include_histories=True)
    assert everything(mrfrec.load(path)) == everything(fitted[kind])
    assert folder_of(path.parent) == ["model.mrf"]


@pytest.mark.parametrize(
    "path", [Path("model.mrf"), "~/model.mrf", "~nobody-of-that-name.mrf", "x" * 255, "🎬" * 63, "-rf"]
)
def test_paths_may_be_texts_or_paths_and_have_any_name(
    fitted: Models, path: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    fitted["dense"].save(path)
    assert folder_of(tmp_path) == [str(path).removeprefix("~/")]
    assert list(mrfrec.load(path).items_) == list(fitted["dense"].items_)
    assert describe(path)["model"] == "MRF"


@pytest.mark.parametrize("file", FILES, ids=str)
def test_a_loaded_model_saves_the_same_bytes(originals: Originals, file: Any, path: Path) -> None:
    path.write_bytes(originals[file])
    mrfrec.load(path).save(path, include_histories=file[1])  # over the file it is reading from
    assert path.read_bytes() == originals[file]


def test_histories_are_in_the_file_only_where_asked_for(
    fitted: Models, originals: Originals, path: Path
) -> None:
    fitted["dense"].save(path)
    model = mrfrec.load(path)
    assert model.users_ is None
    names = describe(path)["arrays"]
    assert not [name for name in names if name.startswith(("users", "histories"))]
    assert "ü13".encode() in originals["dense", True]
    assert "ü13".encode() not in originals["dense", False]
    for ask in (
        lambda: model.recommend(k=2),
        lambda: model.save(path.parent / "other.mrf", include_histories=True),
        lambda: model.update(data(text=True, real=False, titles=True)),
    ):
        with pytest.raises(DataError, match="saved without"):
            ask()
    assert folder_of(path.parent) == ["model.mrf"]


def test_the_facts_tell_where_a_model_comes_from(fitted: Models, path: Path) -> None:
    fitted["sparse"].save(path, include_histories=True)
    facts = describe(path)
    own = data(text=False, real=True, titles=False)
    assert facts["data"] == {
        "users": USERS, "items": ITEMS, "pairs": len(own), "binary": False, "fingerprint": own.fingerprint,
        "mean_value": pytest.approx(float(np.abs(own.matrix.data).mean())),
    }  # fmt: skip
    assert (facts["parameters"]["sparsity"], facts["model"], facts["histories"]) == (0.4, "MRF", True)
    assert facts["written_by"] == mrfrec.__version__
    assert facts["file"] == {"format_version": 3, "bytes": path.stat().st_size}
    assert facts["arrays"]["popularity"] == f"int64 [{ITEMS}]"


@pytest.mark.parametrize("file", [("dense", False), ("sparse", True)], ids=str)
def test_the_library_of_the_format_reads_the_file(
    fitted: Models, originals: Originals, file: Any, path: Path
) -> None:
    path.write_bytes(originals[file])
    _, stored = open_file(path)
    with safe_open(path, framework="np") as opened:
        assert opened.metadata()["format"] == "mrfrec"
        assert sorted(opened.keys()) == sorted(stored)
        for name in stored:
            theirs, ours = opened.get_tensor(name), stored[name].read()
            assert (theirs.dtype, theirs.shape) == (ours.dtype, ours.shape)
            assert theirs.tobytes() == ours.tobytes()
            assert ours.flags.aligned


@pytest.mark.parametrize("file", [("dense", False), ("sparse", True)], ids=str)
def test_a_loaded_model_is_pickled_once(
    originals: Originals, expected: Answers, file: Any, path: Path
) -> None:
    path.write_bytes(originals[file])
    model = mrfrec.load(path)
    _, arrays = open_file(path)
    size = sum(stored.array.nbytes for stored in arrays.values())
    content = pickle.dumps(model)
    assert len(content) < size + 8_000  # names and parameters
    path.unlink()
    assert everything(pickle.loads(content)) == expected[file]
    assert len(pickle.dumps(model)) < size + 40_000  # with what answering has built


def header_length(content: bytes) -> int:
    return int.from_bytes(content[:8], "little")


# ── what is not a whole model is refused ──────────────────────────────────────────────────────────


def result_of(path: Path) -> list[Any] | None:
    """What a file gives; None if it is refused by name. Anything else that comes out fails the test."""
    try:
        return everything(mrfrec.load(path))
    except ModelFileError as error:
        if str(path) not in str(error):
            raise
        return None


@pytest.fixture(scope="module")
def expected(originals: Originals, tmp_path_factory: pytest.TempPathFactory) -> Answers:
    path = tmp_path_factory.mktemp("expected") / "model.mrf"
    found = {}
    for file, content in originals.items():
        path.write_bytes(content)
        found[file] = everything(mrfrec.load(path))
    return found


def test_every_length_but_the_whole_is_refused(originals: Originals, path: Path) -> None:
    content = originals["dense", False]
    for length in [*range(20), *range(20, len(content), 97), len(content) - 1]:
        path.write_bytes(content[:length])
        with pytest.raises(ModelFileError, match="not a model of mrfrec, or not a whole one"):
            mrfrec.load(path)


edits = st.lists(
    st.tuples(
        st.sampled_from(["put", "zero", "insert", "repeat", "swap", "delete", "cut"]),
        # Half of the places are within the header, the smaller part with the greater effect.
        st.one_of(st.floats(0, 1), st.integers(0, 2000)),
        st.binary(min_size=1, max_size=40),
    ),
    min_size=1,
    max_size=4,
)


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(file=st.sampled_from(FILES), changes=edits)
def test_any_edits_are_refused_or_make_no_difference(
    originals: Originals,
    expected: Answers,
    path: Path,
    file: Any,
    changes: list[tuple[str, float | int, bytes]],
) -> None:
    content = originals[file]
    for kind, where, piece in changes:
        place = where if isinstance(where, int) else int(where * len(content))
        before, there, after = content[:place], content[place:][: len(piece)], content[place + len(piece) :]
        content = {
            "put": before + piece + after,
            "zero": before + bytes(len(there)) + after,
            "insert": before + piece + there + after,
            "repeat": before + there + there + after,
            "swap": after + there + before,
            "delete": before + after,
            "cut": before,
        }[kind]
    path.write_bytes(content)
    found = result_of(path)
    assert found is None or found == expected[file]


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=st.binary(max_size=200), length=st.integers(0, 200), begin=st.sampled_from([None, b"", b"{"]))
def test_bytes_of_any_kind_are_refused(path: Path, content: bytes, length: int, begin: bytes | None) -> None:
    head = b"" if begin is None else length.to_bytes(8, "little") + begin
    path.write_bytes(head + content)
    with pytest.raises(ModelFileError):
        mrfrec.load(path)


def test_foreign_files_are_refused_by_what_they_are(tmp_path: Path) -> None:
    def refuse(name: str, message: str) -> None:
        with pytest.raises(ModelFileError, match=message):
            mrfrec.load(tmp_path / name)

    refuse("missing.mrf", r"there is no model file .*missing\.mrf\.$")
    refuse("missing/model.mrf", "there is no model file")
    refuse("long" * 100, "could not be read: File name too long|there is no model file")
    refuse("", "is a folder")
    for name, content in {"empty": b"", "zeros": bytes(5000), "table.csv": b"user,item\n1,2\n" * 9}.items():
        (tmp_path / name).write_bytes(content)
        refuse(name, "is not a model of mrfrec, or not a whole one")
    save_file({"a": np.arange(3)}, tmp_path / "theirs.safetensors", {"format": "pt"})
    refuse("theirs.safetensors", "is a safetensors file, but not a model of mrfrec")
    os.mkfifo(tmp_path / "pipe.mrf")  # reading it would wait for ever
    refuse("pipe.mrf", "no model file")
    (tmp_path / "nowhere.mrf").symlink_to(tmp_path / "gone.mrf")
    refuse("nowhere.mrf", "no model file")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "s.mrf"))
        refuse("s.mrf", "no model file")


@pytest.mark.parametrize("version", [2, 4, "3x"])
def test_files_of_another_format_are_refused_by_its_number(
    version: Any, fitted: Models, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(artifact, "FORMAT_VERSION", version)
    fitted["dense"].save(path)
    monkeypatch.undo()
    message = rf"by another version of mrfrec, in the format {version}, where .* 3: fit the model again\.$"
    for read in (mrfrec.load, describe):
        with pytest.raises(ModelFileError, match=message):
            read(path)


# ── rightly hashed, and still not a model ──────────────────────────────────────────────────────────


Change = Callable[[Arrays, dict[str, Any]], object]


def rewrite(content: bytes, path: Path, change: Change) -> None:
    """Other arrays or facts in a file whose checksums and file hash are right."""
    path.write_bytes(content)
    facts, stored = open_file(path)
    arrays = {name: each.read().copy() for name, each in stored.items()}
    change(arrays, facts)
    write_file(path, arrays, facts)


def put(name: str, place: int, value: float) -> Change:
    return lambda arrays, _: arrays[name].__setitem__(place, value)


def replaced(name: str, new: Callable[[Any], npt.NDArray[Any]]) -> Change:
    return lambda arrays, _: arrays.update({name: new(arrays[name])})


def shorten(name: str) -> Change:
    return replaced(name, lambda array: np.ascontiguousarray(array[:-1]))


FORGERIES: dict[str, dict[str, Change]] = {"sparse": {
    "an item beyond the last": put("weights.items", 5, ITEMS),
    "an item before the first": put("weights.items", -1, -1),
    "an item of a history beyond the last": put("histories.items", 5, 2**31 - 1),
    "rows that end before the arrays": put("weights.ptr", -1, 1),
    "rows that begin late": put("weights.ptr", 0, 3),
    "rows that go backwards": put("weights.ptr", 4, 0),
    "a user too few": shorten("users.ids"),
    "a weight too few": shorten("weights.values"),
    "an order beyond the last": put("items.order", 0, ITEMS),
    "positions that are no integers": replaced("weights.items", lambda array: array.astype("f4")),
    "no weights": lambda arrays, _: arrays.pop("weights.values"),
    "no ids": lambda arrays, _: arrays.pop("items.ids"),
    "a mean too few": shorten("mean"),
    "more users of an item than users": put("popularity", 3, USERS + 1),
    "an item twice": put("items.ids", 3, 6),
    "a user who is not where the order says": put("users.ids", 3, 10**9),
}, "dense": {
    "a row of weights too few": shorten("weights"),
    "a title too few": shorten("titles.ptr"),
    "titles that reach too far": put("titles.ptr", -1, 10**9),
    "a text that ends before it begins": put("items.ptr", 7, 1),
    "a negative scale": put("scale", 2, -1),
}}  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "forgery"), [(kind, forgery) for kind in FORGERIES for forgery in FORGERIES[kind]]
)
def test_a_model_whose_parts_do_not_go_together_is_refused(
    originals: Originals, kind: str, forgery: str, path: Path
) -> None:
    rewrite(originals[kind, True], path, FORGERIES[kind][forgery])
    assert result_of(path) is None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": "GPT"}, r"holds a 'GPT'.*call mrfrec\.register"),
        ({"parameters": {"l2": -1.0}}, "l2 must be"),
        ({"parameters": {"unheard_of": 1}}, "unheard_of"),
        ({"parameters": {"threads": 1}}, "threads"),
        ({"data": {}}, "lacks a part of a model"),
        ({"state": {}}, "lacks a part of a model"),
        ({"histories": "yes"}, "does not know: 'histories'"),
        ({"plan": {"kind": "sparse"}}, "does not know"),
        ({"plan": {"l2": None}}, "does not know"),
        ({"plan": {"l2": 10**400}}, "does not know"),
        ({"plan": {"sparsity": "x"}}, "does not know"),
    ],
)
def test_facts_that_are_not_those_of_a_model_are_refused(
    originals: Originals, changes: dict[str, Any], message: str, path: Path
) -> None:
    def change(arrays: Arrays, facts: dict[str, Any]) -> None:
        facts["state"]["plan"].update(changes.pop("plan", {}))
        facts.update(changes)

    rewrite(originals["dense", False], path, change)
    with pytest.raises(ModelFileError, match=message):
        mrfrec.load(path)


def reseal(content: bytes, path: Path, change: Callable[[dict[str, str]], object]) -> None:
    """A file with other metadata and a file hash that fits."""
    length = header_length(content)
    header = json.loads(content[8 : 8 + length])
    change(header["__metadata__"])
    header["__metadata__"]["file_hash"] = artifact._file_hash(header["__metadata__"])
    encoded = json.dumps(header).encode()
    path.write_bytes(len(encoded).to_bytes(8, "little") + encoded + content[8 + length :])


def forge_json(value: Any, rng: np.random.Generator) -> Any:
    """Return a JSON value of which one part, anywhere, is replaced or removed."""
    if isinstance(value, dict | list) and value and rng.random() < 0.9:
        keys = list(value) if isinstance(value, dict) else range(len(value))
        key = keys[int(rng.integers(len(keys)))]
        if rng.random() < 0.1:
            del value[key]
        else:
            value[key] = forge_json(value[key], rng)
        return value
    replacements = [None, True, -1, 7, 0.5, 2**70, "x", "\ud800", [], {}, [[1]], {"0": 1}]
    return replacements[int(rng.integers(len(replacements)))]


def forge_array(array: npt.NDArray[Any], rng: np.random.Generator) -> npt.NDArray[Any]:
    """Return an array that does not go with the others, or holds what it must not."""
    kinds = ["<f4", "<f8", "<i4", "<i8", "|u1", "<u4", "<u8"]
    extremes = (-1, 0x80, 255) if array.dtype == np.uint8 else (-1, 2**31 - 1, np.nan, np.inf, -1e300)
    change = int(rng.integers(4))
    with np.errstate(all="ignore"):
        if change == 0:
            return array.reshape(*array.shape, 1)
        if change == 1:
            return array.astype(rng.choice(kinds))
        if change == 2:
            return array[: len(array) // 2]
        array.flat[int(rng.integers(array.size))] = np.array(rng.choice(extremes), "f8").astype(array.dtype)
        return array


@pytest.mark.parametrize("file", [("dense", True), ("sparse", True)], ids=str)
def test_a_forged_file_is_refused_by_name_or_answers(
    originals: Originals, file: Any, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(artifact, "_check_arrays", lambda *_: None)
    rng = np.random.default_rng(11)
    refused = 0

    def forge_arrays(arrays: Arrays, _: object) -> None:
        name = sorted(arrays)[int(rng.integers(len(arrays)))]
        array = arrays.pop(name)
        if rng.random() < 0.8:
            arrays[name] = forge_array(array, rng)

    def forge_metadata(metadata: dict[str, str]) -> None:
        part = ("facts", "tensors", "block")[int(rng.integers(3))]
        forged = json.dumps(forge_json(json.loads(metadata[part]), rng))
        metadata[part] = str(rng.choice(["{", "[" * 100_000, *[forged] * 9]))
        if rng.random() < 0.1:
            del metadata[part]

    for _ in range(160):
        if rng.random() < 0.5:
            rewrite(originals[file], path, forge_arrays)
        else:
            reseal(originals[file], path, forge_metadata)
        with suppress(DataError):  # the id of a user was changed, and is not where the order says
            refused += result_of(path) is None
    assert 80 < refused < 160  # some forgeries are models, such as one with another popularity


def test_weights_that_are_not_finite_are_neither_read_nor_written(
    fitted: Models, originals: Originals, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(artifact, "_check_arrays", lambda *_: None)
        rewrite(originals["sparse", False], path, put("weights.values", -1, np.nan))
    model = mrfrec.load(path)
    with pytest.raises(ModelFileError, match=r"'weights\.values' holds numbers that are not finite"):
        model.recommend(history=list(model.items_), k=2, exclude_seen=False)
    with pytest.raises(ModelFileError, match=r"'weights\.values' holds numbers that are not finite"):
        rewrite(originals["sparse", False], path, put("weights.values", 3, np.inf))
    with pytest.raises(ModelFileError, match="'a' has the type bool, which a file cannot hold"):
        write_file(path, {"a": np.ones(2, np.bool_)}, {})


# ── only what is needed is read ───────────────────────────────────────────────────────────────────


def all_refuse(part: str, *asks: Callable[[], object]) -> None:
    for ask in asks:
        for _ in range(2):  # and every time
            with pytest.raises(ModelFileError, match=f"{part!r} is not what was written"):
                ask()


@pytest.fixture
def many_blocks(monkeypatch: pytest.MonkeyPatch, fitted: Models, tmp_path: Path) -> Path:
    """A dense and a sparse model of many blocks each."""
    monkeypatch.setattr(artifact, "_BLOCK", 128)
    for kind in ("dense", "sparse"):
        fitted[kind].save(tmp_path / f"{kind}.mrf", include_histories=True)
    monkeypatch.undo()  # the size is in the file
    return tmp_path


def place_of(path: Path, name: str) -> tuple[int, int]:
    content = path.read_bytes()
    header = json.loads(content[8 : 8 + header_length(content)])
    start, stop = header[name]["data_offsets"]
    return 8 + header_length(content) + start, 8 + header_length(content) + stop


def spoil(path: Path, place: int) -> None:
    with path.open("r+b") as file:
        file.seek(place)
        byte = file.read(1)
        file.seek(place)
        file.write(bytes([byte[0] ^ 0x10]))


def test_a_damaged_row_of_a_dense_model_disturbs_only_those_who_need_it(many_blocks: Path) -> None:
    path = many_blocks / "dense.mrf"
    whole: Any = mrfrec.load(path)
    names = list(whole.items_)
    wanted = whole.recommend(history=names[:3], k=5).rows()
    similar = whole.similar_items(names[2], k=3).rows()
    spoil(path, place_of(path, "weights")[1] - 1)  # in the row of the last item
    model: Any = mrfrec.load(path)
    assert model.recommend(history=names[:3], k=5).rows() == wanted
    assert model.similar_items(names[2], k=3).rows() == similar
    all_refuse(
        "weights",
        lambda: model.recommend(history=[names[-1]], k=5),
        lambda: model.similar_items(names[-1]),
        lambda: model.explain(names[0], history=names),
        lambda: model.recommend(k=2),
        lambda: model.weights_,
        lambda: model.save(many_blocks / "copy.mrf"),
        lambda: model.recommend_to(many_blocks / "all.parquet"),
    )
    assert folder_of(many_blocks) == ["dense.mrf", "sparse.mrf"]


@pytest.mark.parametrize("part", ["histories.items", "histories.values", "histories.ptr", "users.ids"])
def test_a_damaged_history_disturbs_only_its_owner_and_damaged_users_only_users(
    many_blocks: Path, part: str
) -> None:
    path = many_blocks / "sparse.mrf"
    model = mrfrec.load(path)
    assert model.users_ is not None
    users = list(model.users_)
    wanted = model.recommend(users[0], k=3).rows()
    spoil(path, place_of(path, part)[1] - 1)
    model = mrfrec.load(path)
    if part in ("histories.items", "histories.values"):
        assert model.recommend(users[0], k=3).rows() == wanted
    assert len(model.recommend(history=list(model.items_)[:2], k=3)) == 3
    all_refuse(
        part,
        lambda: model.recommend(users[-1], k=3),
        lambda: model.recommend(k=3),
        lambda: model.explain(model.items_[0], user=users[-1]),
        lambda: model.save(path, include_histories=True),
    )
    model.save(path)  # the damaged part is not in this one
    assert mrfrec.load(path).users_ is None


def resident() -> int:
    """Bytes of mapped files this process has looked at."""
    lines = [line.split() for line in Path("/proc/self/status").read_text().splitlines()]
    return sum(int(line[1]) * 1024 for line in lines if line[0] in ("RssFile:", "RssShmem:"))


def test_opening_a_large_model_and_one_answer_read_little_of_it(originals: Originals, tmp_path: Path) -> None:
    m = 4096

    def enlarge(arrays: Arrays, facts: dict[str, Any]) -> None:
        for name in ("mean", "scale", "shift", "popularity"):
            arrays[name] = np.resize(arrays[name], m)
        arrays["weights"] = np.full((m, m), 0.5, np.float32)
        facts["data"]["items"] = m
        arrays["items.ids"] = np.arange(m)
        for name in ("items.data", "items.ptr", "items.order", "titles.data", "titles.ptr"):
            arrays.pop(name)

    path = tmp_path / "large.mrf"
    rewrite(originals["dense", False], path, enlarge)
    size = path.stat().st_size
    assert size > 64 << 20
    everything_loaded = mrfrec.load(path).recommend(history=[1], k=2)  # and what is loaded on first use
    before = resident()
    start = time.process_time()
    model: Any = mrfrec.load(path)
    seconds = time.process_time() - start
    opened = resident() - before
    assert model.recommend(history=[1], k=2).equals(everything_loaded)
    answered = resident() - before
    assert model.weights_.shape == (m, m)
    read = resident() - before
    assert opened < 2 << 20 < answered + (2 << 20) < 8 << 20
    assert read > size // 2
    assert seconds < 0.5


# ── a file that is replaced ───────────────────────────────────────────────────────────────────────


def test_a_file_replaced_or_removed_while_open_does_not_disturb_the_model(
    fitted: Models, expected: Answers, path: Path
) -> None:
    fitted["dense"].save(path, include_histories=True)
    model = mrfrec.load(path)
    fitted["sparse"].save(path)
    assert everything(model) == expected["dense", True]
    other = mrfrec.load(path)
    path.unlink()
    assert everything(other) == expected["sparse", False]


# ── written at once or not at all ─────────────────────────────────────────────────────────────────


def write_half(path: Path, error: type[BaseException]) -> None:
    with writing(path) as unfinished:
        unfinished.write_text("half")
        raise error


def test_an_error_while_writing_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "old").write_text("old")
    for error in (ValueError, KeyboardInterrupt, SystemExit):
        for name in ("old", "new"):
            with pytest.raises(error):
                write_half(tmp_path / name, error)
    assert folder_of(tmp_path) == ["old"]
    assert (tmp_path / "old").read_text() == "old"


def test_a_disk_that_fills_up_leaves_the_old_file_and_nothing_else(
    fitted: Models, originals: Originals, path: Path
) -> None:
    fitted["dense"].save(path)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    for limit in (0, 100, 2000, 5000):
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limits[1]))
        try:
            with pytest.raises(ModelFileError) as caught:
                fitted["sparse"].save(path)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        said = f"{path} could not be written: File too large. What was there before is untouched."
        assert str(caught.value) == said
    assert path.read_bytes() == originals["dense", False]
    assert folder_of(path.parent) == ["model.mrf"]


WRITE_HALF = """
import sys, time
from mrfrec.io.atomic import writing
with writing(sys.argv[1]) as unfinished:
    unfinished.write_text("half")
    print("half", flush=True)
    time.sleep(600)
"""


def test_a_killed_writer_leaves_the_old_file_and_the_next_one_tidies_up(
    fitted: Models, originals: Originals, path: Path
) -> None:
    fitted["dense"].save(path)
    command = [sys.executable, "-c", WRITE_HALF, str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == b"half\n"
        writer.kill()
    assert path.read_bytes() == originals["dense", False]
    assert len(folder_of(path.parent)) == 2
    fitted["sparse"].save(path)
    assert path.read_bytes() == originals["sparse", False]
    assert folder_of(path.parent) == ["model.mrf"]


def test_what_another_writer_is_at_is_left_alone(path: Path) -> None:
    abandoned = path.parent / ".model.mrf.0123abcd.unfinished"
    abandoned.write_text("left by somebody")
    (path.parent / ".other.mrf.0123abcd.unfinished").write_text("of another file")
    (path.parent / ".model.mrf.kept").write_text("of somebody else")
    with writing(path) as one, writing(path) as two:
        assert one != two
        assert not abandoned.exists()
        one.write_text("one")
        two.write_text("two")
        check_writable(path)
        assert one.read_text() == "one"
    assert path.read_text() == "one"  # the last to finish
    assert folder_of(path.parent) == [".model.mrf.kept", ".other.mrf.0123abcd.unfinished", "model.mrf"]


def test_many_writers_at_once_leave_one_whole_file(fitted: Models, originals: Originals, path: Path) -> None:

    def write(kind: str) -> None:
        for _ in range(10):
            fitted[kind].save(path, replace_changed=True)
            mrfrec.load(path)

    with ThreadPoolExecutor(len(KINDS)) as threads:
        list(threads.map(write, KINDS))
    assert path.read_bytes() in [originals[kind, False] for kind in KINDS]
    assert folder_of(path.parent) == ["model.mrf"]


@pytest.fixture
def umask() -> Iterator[Callable[[int], int]]:
    old = os.umask(0o022)
    yield os.umask
    os.umask(old)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_new_file_has_the_mode_of_new_files_and_an_old_one_keeps_its_own(
    fitted: Models, umask: Callable[[int], int], path: Path
) -> None:
    for mask, new in ((0o022, 0o644), (0o077, 0o600), (0o002, 0o664)):
        umask(mask)
        fitted["dense"].save(path)
        assert mode(path) == new
        path.unlink()
    fitted["dense"].save(path)
    for old in (0o600, 0o640, 0o666):
        path.chmod(old)
        fitted["sparse"].save(path)
        assert mode(path) == old


def test_histories_are_for_their_owner_unless_another_mode_is_asked_for(
    fitted: Models, umask: Callable[[int], int], path: Path
) -> None:
    model = fitted["dense"]
    umask(0o022)
    model.save(path)
    assert mode(path) == 0o644
    model.save(path, include_histories=True)  # the first histories in this file
    assert mode(path) == 0o600
    path.chmod(0o640)
    model.save(path, include_histories=True)
    assert mode(path) == 0o640
    model.save(path, include_histories=True, mode=0o660)
    assert mode(path) == 0o660
    path.unlink()
    model.save(path, include_histories=True)
    assert mode(path) == 0o600
    for wrong in (640, 0o400, -1, True, "0640"):
        with pytest.raises(ParameterError, match="mode must be from 0o600 to 0o777"):
            model.save(path, mode=wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("asked", [None, 0o640])
def test_a_file_for_its_owner_is_not_for_others_while_it_is_written(
    umask: Callable[[int], int], path: Path, asked: int | None
) -> None:
    path.write_text("old")
    path.chmod(0o640)
    with writing(path, mode=asked) as unfinished:
        assert mode(unfinished) == 0o600
    assert mode(path) == 0o640


def test_saving_through_a_link_keeps_the_link(fitted: Models, tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    link = tmp_path / "model.mrf"
    link.symlink_to(Path("store") / "v1.mrf")
    fitted["dense"].save(link)  # leads nowhere yet
    fitted["sparse"].save(link)
    assert link.is_symlink()
    assert describe(link) == describe(tmp_path / "store" / "v1.mrf")
    assert describe(link)["state"]["plan"]["kind"] == "sparse"
    assert folder_of(tmp_path / "store") == ["v1.mrf"]


def test_places_where_no_file_can_be_are_refused(fitted: Models, tmp_path: Path) -> None:
    model: Any = fitted["dense"]
    (tmp_path / "circle").symlink_to(tmp_path / "circle")
    for place, error, message in (
        ("missing/model.mrf", ParameterError, "in a folder that exists"),
        ("", ParameterError, r"the name of a file.*Something else has that name"),
        ("circle", ParameterError, "The link leads nowhere"),
        ("long" * 100, ModelFileError, "could not be written: File name too long"),
        ("/proc/self/model.mrf", ModelFileError, r"/proc/self/model\.mrf could not be written"),
    ):
        with pytest.raises(error, match=message):
            model.save(tmp_path / place)
    for use in (model.save, mrfrec.load, describe):
        with pytest.raises(ParameterError, match=r"^path must be the name of a file; got ''\.$"):
            use("")
    with pytest.raises(ParameterError, match="include_histories must be True or False"):
        model.save(tmp_path / "model.mrf", include_histories=1)
    assert folder_of(tmp_path) == ["circle"]


def test_notes_are_kept_and_change_nothing_else(fitted: Models, path: Path) -> None:
    model, notes = fitted["dense"], {"ndcg@20": 0.25, "who": "nightly"}
    model.save(path, notes=notes)
    loaded = mrfrec.load(path)
    assert (loaded.notes_, model.notes_) == (notes, {})
    assert loaded.fit(sp.csr_array(random_matrix(4))).notes_ == {}
    with pytest.raises(ParameterError, match="notes must be a mapping"):
        model.save(path, notes="text")  # type: ignore[arg-type]
    with pytest.raises(ModelFileError, match="JSON"):
        model.save(path, notes={"x": object()})
