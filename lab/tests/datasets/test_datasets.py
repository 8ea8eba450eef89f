"""Data sets from files in their original forms: what is read, kept, split, verified, and refused."""

import hashlib
import re
import tarfile
import threading
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from mrfrec import Interactions
from mrfrec.errors import DataError, ParameterError
from mrfrec.evaluation import strong_generalisation
from mrfrec_lab import datasets
from mrfrec_lab.__main__ import main
from mrfrec_lab.datasets.originals import read_original
from mrfrec_lab.datasets.registry import DATA_SETS, DataSet, SplitFile

import naive_evaluation as naive

Row = tuple[Any, Any, float, int]  # user, item, value, seconds since 1970
Small = Callable[..., DataSet]

DAY = 86_400
TITLES = {
    1: "Toy Story (1995)",
    2: "American President, The (1995)",
    3: "Amélie (Fabuleux destin d'Amélie Poulain, Le) (2001)",
    4: "Doctor Who :: The Movie::Part 2 (1996)",
    5: 'Called "Five" (2005)',
}
NETFLIX_TITLES = "".join(f"{movie},1999,{title}\n" for movie, title in TITLES.items()).encode("latin-1")
MOVIELENS = ("ml-100k", "ml-1m", "ml-10m", "ml-20m")  # one of each form


# ── files as they are published ───────────────────────────────────────────────────────────────────


def ratings(seed: int = 0, users: int = 60, items: int = 40, *, halves: bool = False) -> list[Row]:
    """Pairs in no order whatever, each once."""
    rng = np.random.default_rng(seed)
    used = np.argwhere(rng.random((users, items)) < 0.1 + 0.9 * rng.beta(1, 2, items))
    rng.shuffle(used)
    values = rng.integers(1, 11, len(used)) / 2 if halves else rng.integers(1, 6, len(used)) * 1.0
    times = rng.integers(12_000, 13_000, len(used)) * DAY
    return [
        (int(3 * user + 1), int(item + 1), float(value), int(time))
        for (user, item), value, time in zip(used, values, times, strict=True)
    ]


def write_movielens(name: str, rows: list[Row], folder: Path) -> Path:
    """The folder that the archive of this name unpacks to."""
    home = folder / {"ml-10m": "ml-10M100K"}.get(name, name)
    home.mkdir()
    titles = {item: TITLES.get(item, f"Movie {item}") for item in range(1, 41)}
    if name == "ml-100k":
        lines = [f"{user}\t{item}\t{value:g}\t{time}\n" for user, item, value, time in rows]
        named = [f"{i}|{title}|01-Jan-1995||http://us.imdb.com|0|1\n" for i, title in titles.items()]
        (home / "u.data").write_text("".join(lines))
        (home / "u.item").write_bytes("".join(named).encode("latin-1"))
    elif name in ("ml-1m", "ml-10m"):
        lines = [f"{user}::{item}::{value:g}::{time}\n" for user, item, value, time in rows]
        named = [f"{i}::{title}::Comedy|Drama\n" for i, title in titles.items()]
        (home / "ratings.dat").write_text("".join(lines))
        (home / "movies.dat").write_bytes("".join(named).encode("latin-1" if name == "ml-1m" else "utf-8"))
    else:
        lines = [f"{user},{item},{value:.1f},{time}\n" for user, item, value, time in rows]
        named = [f'{i},"{title.replace(chr(34), chr(34) * 2)}",Comedy\n' for i, title in titles.items()]
        (home / "ratings.csv").write_text("userId,movieId,rating,timestamp\n" + "".join(lines))
        (home / "movies.csv").write_text("movieId,title,genres\n" + "".join(named), encoding="utf-8")
        (home / "tags.csv").write_text("userId,movieId,tag,timestamp\n1,1,nice,1\n")
    return home


def write_triplets(rows: list[tuple[str, str, int]], path: Path) -> Path:
    path.write_text("".join(f"{user}\t{song}\t{plays}\n" for user, song, plays in rows))
    return path


def netflix_texts(rows: list[Row]) -> dict[int, str]:
    """A text for each movie: its number, then its rows."""
    texts = {movie: f"{movie}:\n" for movie in range(1, 41)}
    for user, movie, value, time in rows:
        texts[movie] += f"{user},{value:g},{np.datetime64(time, 's').astype('M8[D]')}\n"
    return texts


def write_netflix(rows: list[Row], folder: Path) -> Path:
    """Unpacked: download/movie_titles.txt and download/training_set/mv_….txt."""
    (folder / "download" / "training_set").mkdir(parents=True)
    (folder / "download" / "movie_titles.txt").write_bytes(NETFLIX_TITLES)
    for movie, text in netflix_texts(rows).items():
        (folder / "download" / "training_set" / f"mv_{movie:07}.txt").write_text(text)
    return folder


def write_kaggle(rows: list[Row], folder: Path) -> Path:
    folder.mkdir()
    texts = list(netflix_texts(rows).values())
    for part in range(4):
        (folder / f"combined_data_{part + 1}.txt").write_text("".join(texts[10 * part : 10 * part + 10]))
    (folder / "movie_titles.csv").write_bytes(NETFLIX_TITLES)
    return folder


def zipped(folder: Path, path: Path, *, inside: str = "") -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in sorted(folder.rglob("*"), reverse=True):
            archive.write(file, inside + str(file.relative_to(folder)))
    return path


def tarred(folder: Path, path: Path) -> Path:
    with tarfile.open(path, "w:gz" if path.suffix == ".gz" else "w") as archive:
        for file in sorted(folder.rglob("*")):
            archive.add(file, str(file.relative_to(folder.parent)), recursive=False)
    return path


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> Small:
    """A data set with other facts, so that a small one passes for it."""

    def change(name: str, **facts: Any) -> DataSet:
        changed = replace(DATA_SETS[name], **({"rows": None, "heldout": 10} | facts))
        monkeypatch.setitem(DATA_SETS, name, changed)
        return changed

    return change


def pairs(data: Interactions) -> list[tuple[Any, Any]]:
    users, items = list(data.users), list(data.items)
    return [(users[u], items[i]) for u, i in zip(*data.matrix.tocoo().coords, strict=True)]


def titles_of(events: Interactions) -> dict[Any, str]:
    assert events.titles is not None
    return dict(zip(events.items, events.titles, strict=True))


def assert_reads(data_set: DataSet, source: Path, kept: list[Row]) -> None:
    """Pairs with their times, numbers as ids, and titles."""
    kept = sorted(kept)
    events = read_original(data_set, source)
    assert pairs(events) == [(user, item) for user, item, _, _ in kept], source
    assert events.times is not None
    assert events.times.tolist() == [time * 1_000_000 for *_, time in kept]
    assert (events.users.is_text, events.items.is_text) == (False, False)
    found = titles_of(events)
    assert {item: found[item] for item in TITLES} == TITLES, source


# ── reading ───────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", MOVIELENS)
@pytest.mark.parametrize("form", ["folder", "archive", "file"])
def test_movielens_is_read_in_its_order_above_the_threshold_with_titles(
    name: str, form: str, tmp_path: Path, small: Small
) -> None:
    rows = ratings(halves=name not in ("ml-100k", "ml-1m"))
    home = write_movielens(name, rows, tmp_path)
    source = {"folder": tmp_path, "file": home / small(name).ratings[0]}.get(form)
    if source is None:
        source = zipped(home, tmp_path / f"{name}.zip", inside=f"{home.name}/")
    assert_reads(small(name), source, [row for row in rows if row[2] > 3.5])


def test_strings_stay_strings_and_sort_as_such(tmp_path: Path, small: Small) -> None:
    rows = [("u9", "S2", 1), ("u10", "S10", 4), ("u9", "S10", 2), ("u2", "S2", 7)]
    path = write_triplets(rows, tmp_path / "train_triplets.txt")
    for source in (path, tmp_path, zipped(tmp_path, tmp_path.parent / f"{tmp_path.name}.txt.zip")):
        events = read_original(small("msd"), source)
        assert list(events.users) == ["u10", "u2", "u9"]
        assert list(events.items) == ["S10", "S2"]
        assert pairs(events) == sorted((user, song) for user, song, _ in rows)
        assert events.times is None


def test_netflix_is_the_same_in_all_its_forms(tmp_path: Path, small: Small) -> None:
    rows = ratings(seed=5)
    folder = write_netflix(rows, tmp_path / "unpacked")
    download = folder / "download"
    inner = tmp_path / "inner" / "download"
    inner.mkdir(parents=True)
    tarred(download / "training_set", inner / "training_set.tar")
    (inner / "movie_titles.txt").write_bytes(NETFLIX_TITLES)
    kaggle = write_kaggle(rows, tmp_path / "kaggle")
    sources = [
        folder,
        download,
        download / "training_set",
        tarred(inner, tmp_path / "nf_prize_dataset.tar.gz"),
        kaggle,
        zipped(kaggle, tmp_path / "archive.zip"),
    ]
    # By movie; the sort is stable, and so leaves the rows of a movie as they were.
    kept = [row for row in sorted(rows, key=lambda row: int(row[1])) if row[2] >= 4]
    for source in sources:
        assert_reads(small("netflix"), source, kept)


# ── what cannot be read ───────────────────────────────────────────────────────────────────────────


def refused(data_set: DataSet, source: Path) -> str:
    with pytest.raises(DataError) as error:
        read_original(data_set, source)
    return str(error.value)


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("ml-20m", "7,3,5.0"),
        ("ml-20m", "7,3,5.0,11,12"),
        ("ml-20m", "7,three,5.0,11"),
        ("ml-20m", "7,3,nan,11"),
        ("ml-1m", "7::3::5"),
        ("ml-100k", "7 3 5 11"),
        ("netflix", "7,5"),
        ("netflix", "7,5,2005-13-01"),
        ("netflix", "seven:"),
        ("msd", "\tb\t3"),
    ],
)
def test_bad_line_is_refused_with_its_file(name: str, line: str, tmp_path: Path, small: Small) -> None:
    if name == "netflix":
        path = write_kaggle(ratings(), tmp_path / "kaggle") / "combined_data_2.txt"
    elif name == "msd":
        path = write_triplets([("a", "b", 1)] * 30, tmp_path / "train_triplets.txt")
    else:
        path = write_movielens(name, ratings(), tmp_path) / small(name).ratings[0]
    lines = path.read_text().split("\n")
    lines.insert(20, line)
    path.write_text("\n".join(lines))
    assert refused(small(name), path.parent if name == "netflix" else path).startswith(str(path))


@pytest.mark.parametrize(
    ("name", "file", "text", "where"),
    [
        ("ml-1m", "movies.dat", "1::A::B\n2\n", ", line 2: "),
        ("ml-100k", "u.item", "1|A|\n\n", ", line 2: "),
        ("ml-10m", "movies.dat", "1::Amélie::Drama\n", " is not text in utf-8"),
    ],
)
def test_titles_that_cannot_be_understood_are_refused(
    name: str, file: str, text: str, where: str, tmp_path: Path, small: Small
) -> None:
    home = write_movielens(name, ratings(), tmp_path)
    (home / file).write_bytes(text.encode("latin-1"))
    assert refused(small(name), home).startswith(f"{home / file}{where}")


def test_wrong_folder_says_what_was_looked_for_and_where(tmp_path: Path, small: Small) -> None:
    message = refused(DATA_SETS["ml-10m"], tmp_path)
    assert f"not in {tmp_path}: no ratings.dat in it." in message
    assert "python -m mrfrec_lab datasets prepare ml-10m --from PATH" in message
    assert "mv_*.txt or combined_data_*.txt" in refused(DATA_SETS["netflix"], tmp_path)
    assert f"there is no file or folder {tmp_path / 'x'}." in refused(DATA_SETS["msd"], tmp_path / "x")
    home = write_movielens("ml-25m", rows := ratings(), tmp_path)  # another data set of the same form
    said = f"{home} has {len(rows):,} rows, but MovieLens 20M has 20,000,263: it is another"
    assert refused(DATA_SETS["ml-20m"], home).startswith(said)
    write_movielens("ml-20m", rows, tmp_path)  # a second file of ratings
    assert "hold ratings: pass one of them" in refused(small("ml-20m"), tmp_path)
    archive = zipped(tmp_path, tmp_path.parent / f"{tmp_path.name}.zip")
    assert "several files" in refused(small("ml-20m"), archive)


@pytest.mark.parametrize("share", [0.01, 0.5])
def test_truncated_archives_are_refused(share: float, tmp_path: Path, small: Small) -> None:
    rows = ratings()
    (tmp_path / "in").mkdir()
    folder = write_netflix(rows, tmp_path / "unpacked") / "download"
    home = write_movielens("ml-20m", rows, tmp_path / "in")
    for name, archive in (
        ("ml-20m", zipped(home, tmp_path / "ml-20m.zip")),
        ("netflix", tarred(folder, tmp_path / "nf_prize_dataset.tar.gz")),
    ):
        archive.write_bytes(archive.read_bytes()[: int(share * archive.stat().st_size)])
        assert refused(small(name), archive).startswith(f"{archive} is damaged")


# ── preparing ─────────────────────────────────────────────────────────────────────────────────────


def listing(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_prepared_set_is_what_was_read_and_filtered(tmp_path: Path, small: Small) -> None:
    rows = ratings(halves=True)
    home = write_movielens("ml-20m", rows, tmp_path)
    told: list[tuple[str, int, int]] = []
    kept = tmp_path / "new" / "folder"
    data_set = small("ml-20m", rows=len(rows), min_items=3, min_users=5)
    path = datasets.prepare("ml-20m", home, kept, progress=lambda *step: told.append(step))
    assert path == kept / "ml-20m.parquet"
    assert listing(kept) == ["ml-20m.items.parquet", "ml-20m.parquet"]
    assert told[-1] == ("reading", len(rows), len(rows))
    expected = read_original(data_set, home).filtered(min_users=5, min_items=3)
    assert len(expected) < sum(row[2] > 3.5 for row in rows)
    table = pl.read_parquet(path)
    assert table.columns == ["user", "item", "time"]
    assert table.select("user", "item").rows() == pairs(expected)
    data = datasets.load("ml-20m", kept)
    assert pairs(data) == pairs(expected)
    assert titles_of(data) == titles_of(expected)
    assert np.array_equal(data.times, expected.times)  # type: ignore[arg-type]
    split, same = datasets.split("ml-20m", kept), strong_generalisation(expected, 10, min_items=3)
    assert (split.test.targets != same.test.targets).nnz == 0
    assert (split.training.matrix != same.training.matrix).nnz == 0


def test_failure_leaves_nothing_and_what_was_there_before(tmp_path: Path, small: Small) -> None:
    home = write_movielens("ml-20m", ratings(), tmp_path)
    kept = tmp_path / "kept"
    small("ml-20m", rows=1)
    with pytest.raises(DataError, match="has 1: it is another"):
        datasets.prepare("ml-20m", home, kept)
    assert listing(kept) == []
    small("ml-20m")
    before = datasets.prepare("ml-20m", home, kept).read_bytes()
    with (home / "ratings.csv").open("a") as file:
        file.write("broken\n")
    with pytest.raises(DataError, match=r"ratings\.csv, row"):
        datasets.prepare("ml-20m", home, kept)
    small("ml-20m", min_items=1000)
    with pytest.raises(DataError, match="no interactions are left"):
        datasets.prepare("ml-20m", write_movielens("ml-32m", ratings(), tmp_path), kept)
    assert listing(kept) == ["ml-20m.items.parquet", "ml-20m.parquet"]
    assert (kept / "ml-20m.parquet").read_bytes() == before


# ── names ─────────────────────────────────────────────────────────────────────────────────────────


def test_unknown_name_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ParameterError, match=r"^name must be one of ml-100k"):
        datasets.load("ML-20M")
    with pytest.raises(ParameterError, match=r"^name must be one of"):
        datasets.load(["ml-20m"])  # type: ignore[arg-type]


def test_set_that_is_not_prepared_says_what_to_do(tmp_path: Path) -> None:
    for function in (datasets.load, datasets.verify):
        with pytest.raises(DataError) as error:
            function("ml-20m", tmp_path)
        assert f"python -m mrfrec_lab datasets prepare ml-20m --from PATH --folder {tmp_path}" in str(
            error.value
        )
    with pytest.raises(DataError, match=r"Get nf_prize_dataset.tar.gz, or Kaggle's zip, by way of https://"):
        datasets.load("netflix", tmp_path)


# ── downloading ───────────────────────────────────────────────────────────────────────────────────


class Files(SimpleHTTPRequestHandler):
    """Answers with half of a file if the query says so, and then breaks off."""

    def copyfile(self, source: Any, outputfile: Any) -> None:
        content = source.read()
        outputfile.write(content[: len(content) // 2] if self.path.endswith("?half") else content)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        pass


@pytest.fixture
def published(tmp_path: Path) -> Iterator[tuple[str, str]]:
    """The URL of an archive of "ml-1m", and its MD5."""
    archive = zipped(write_movielens("ml-1m", ratings(), tmp_path), tmp_path / "ml-1m.zip", inside="ml-1m/")
    handler = partial(Files, directory=str(tmp_path))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,)).start()
        md5 = hashlib.md5(archive.read_bytes()).hexdigest()
        yield f"http://127.0.0.1:{server.server_port}/ml-1m.zip", md5
        server.shutdown()


def test_archive_is_downloaded_checked_and_kept(
    tmp_path: Path, small: Small, published: tuple[str, str]
) -> None:
    url, md5 = published
    small("ml-1m", url=url, md5=md5)
    kept = tmp_path / "kept"
    path = datasets.prepare("ml-1m", folder=kept)
    assert listing(kept) == ["ml-1m.items.parquet", "ml-1m.parquet", "ml-1m.zip"]
    # Neither what is prepared nor what is downloaded is fetched again.
    small("ml-1m", url="http://127.0.0.1:9/ml-1m.zip", md5=md5)
    before = path.stat().st_mtime_ns
    assert datasets.prepare("ml-1m", folder=kept) == path
    assert path.stat().st_mtime_ns == before
    path.unlink()
    assert datasets.prepare("ml-1m", folder=kept).is_file()


def test_download_that_fails_or_breaks_off_says_what_to_do(
    tmp_path: Path, small: Small, published: tuple[str, str]
) -> None:
    url, md5 = published
    for wrong, reason in (
        (f"{url}?half", "bytes too early|IncompleteRead"),
        (f"{url}.zip", "HTTP Error 404: File not found"),
        ("http://127.0.0.1:9/ml-1m.zip", "refused"),
    ):
        small("ml-1m", url=wrong, md5=md5)
        with pytest.raises(DataError, match=reason) as error:
            datasets.prepare("ml-1m", folder=tmp_path / "kept")
        assert "python -m mrfrec_lab datasets prepare ml-1m --from PATH" in str(error.value)
        assert listing(tmp_path / "kept") == []
    small("ml-1m", url=url, md5="0" * 32)
    with pytest.raises(DataError, match=rf"is not the published file: its MD5 should be {'0' * 32}"):
        datasets.prepare("ml-1m", folder=tmp_path / "kept")


def test_netflix_is_not_downloaded_but_taken_from_the_folder(tmp_path: Path, small: Small) -> None:
    with pytest.raises(DataError, match="cannot be downloaded"):
        datasets.prepare("netflix", folder=tmp_path)
    small("netflix")
    folder = write_netflix(ratings(), tmp_path / "unpacked")
    tarred(folder / "download", tmp_path / "nf_prize_dataset.tar.gz")
    assert datasets.prepare("netflix", folder=tmp_path).is_file()


# ── the split as vae_cf writes it ─────────────────────────────────────────────────────────────────


def notebook(
    rows: list[tuple[Any, Any]], heldout: int, min_users: int = 0, min_items: int = 5
) -> dict[str, bytes]:
    """The files that the notebook of Liang et al. writes."""
    found = naive.strong_rows(naive.filtered(sorted(rows), min_users, min_items), heldout)
    items = list(dict.fromkeys(item for _, item in found["training"]))
    user_number, item_number = ({x: place for place, x in enumerate(ids)} for ids in (found["users"], items))
    files = {"unique_sid.txt": "".join(f"{item}\n" for item in items)}
    for part in ("training", "validation shown", "validation targets", "test shown", "test targets"):
        lines = [f"{user_number[user]},{item_number[item]}\n" for user, item in found[part]]
        name = part.replace(" shown", "_tr").replace(" targets", "_te").replace("training", "train")
        files[f"{name}.csv"] = "".join(["uid,sid\n", *lines])
    return {name: text.encode() for name, text in files.items()}


def read_folder(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_vae_cf_files_are_the_notebooks_for_strings(tmp_path: Path, small: Small) -> None:
    rng = np.random.default_rng(8)
    rows = [
        (f"u{user}", f"S{song}é", int(rng.integers(1, 9))) for user, song, _, _ in ratings(seed=8, users=130)
    ]
    source = write_triplets(rows, tmp_path / "train_triplets.txt")
    small("msd", heldout=25, min_users=20, min_items=6)
    datasets.prepare("msd", source, tmp_path / "kept")
    datasets.write_vae_cf("msd", tmp_path / "sg", tmp_path / "kept")
    expected = notebook([row[:2] for row in rows], 25, min_users=20, min_items=6)
    assert read_folder(tmp_path / "sg") == expected
    assert len(expected["unique_sid.txt"].split()) < len({song for _, song, _ in rows})


# ── verifying ─────────────────────────────────────────────────────────────────────────────────────


def known_facts(rows: list[Row], heldout: int) -> dict[str, Any]:
    """Of a small data set, as its publisher would have them."""
    liked = [row[:2] for row in rows if row[2] > 3.5]
    kept, files = naive.filtered(liked, min_items=5), notebook(liked, heldout)
    split = {name: SplitFile(hashlib.md5(content).hexdigest()) for name, content in files.items()}
    split["test_te.csv"] = replace(split["test_te.csv"], rows=files["test_te.csv"].count(b"\n") - 1)
    return {
        "heldout": heldout,
        "events": len(kept),
        "users": len({user for user, _ in kept}),
        "items": len({item for _, item in kept}),
        "training_items": files["unique_sid.txt"].count(b"\n"),
        "split": split,
    }


def test_verify_names_what_differs(tmp_path: Path, small: Small) -> None:
    rows = ratings(seed=3, users=150)
    facts = known_facts(rows, 30)
    split = facts["split"] | {"train.csv": SplitFile("0" * 32, 7)}
    small("ml-20m", **(facts | {"events": 5, "training_items": 1, "split": split}))
    datasets.prepare("ml-20m", write_movielens("ml-20m", rows, tmp_path), tmp_path)
    wrong = [check for check in datasets.verify("ml-20m", tmp_path) if not check.ok]
    assert [(check.what, check.expected) for check in wrong] == [
        ("events", 5),
        ("items of the training users", 1),
        ("rows of train.csv", 7),
        ("MD5 of train.csv", "0" * 32),
    ]
    assert wrong[0].found == facts["events"]


def test_verify_sees_rows_that_preparing_would_not_have_kept(tmp_path: Path) -> None:
    table = pl.DataFrame(
        {"user": [1, 1, 2], "item": [1, 1, 1], "time": [1_600_000_003, 1_600_000_104, 1_600_000_205]}
    )
    table.write_parquet(tmp_path / "ml-20m.parquet")
    found = {check.what: check.found for check in datasets.verify("ml-20m", tmp_path)}
    assert found["users with fewer than 5 items"] == 2
    assert found["MD5 of test_te.csv"] is None  # no such split can be made
    assert not any(check.ok for check in datasets.verify("ml-20m", tmp_path))


# ── the command line ──────────────────────────────────────────────────────────────────────────────


def command(*arguments: object) -> None:
    main(["datasets", *map(str, arguments)])


def test_commands_prepare_list_and_verify(
    tmp_path: Path, small: Small, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = ratings(seed=3, users=150)
    small("ml-20m", **known_facts(rows, 30))
    home = write_movielens("ml-20m", rows, tmp_path)
    kept, files = tmp_path / "kept", tmp_path / "sg"
    command("prepare", "ml-20m", "--from", home, "--folder", kept, "--vae-cf", files)
    assert f"ml-20m is prepared: {kept / 'ml-20m.parquet'}\n" in capsys.readouterr().out
    assert read_folder(files) == notebook([row[:2] for row in rows if row[2] > 3.5], 30)
    command("prepare", "ml-20m", "--folder", kept)  # is prepared
    command("list", "--folder", kept)
    table = capsys.readouterr().out
    assert re.search(r"^ml-20m +MovieLens 20M +\d", table, re.MULTILINE)
    assert re.search(r"^netflix +Netflix Prize +not prepared$", table, re.MULTILINE)
    command("verify", "ml-20m", "--folder", kept)
    table = capsys.readouterr().out
    assert "DIFFERS" not in table
    assert table.count("\n") == 2 + 3 + 6 + 1
    small("ml-20m", **known_facts(rows, 30), rows=5)
    with pytest.raises(SystemExit, match="is not prepared"):
        command("verify", "ml-20m", "--folder", tmp_path / "elsewhere")
