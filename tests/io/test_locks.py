"""Processes that rewrite one model file: none loses what another has written."""

import logging
import os
import signal
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from threading import Event

import polars as pl
import pytest

import mrfrec
from mrfrec import BusyError, ModelFileError, ParameterError
from mrfrec.cli.app import run as run_command
from mrfrec.models import Popularity

ROWS = "user,item\n" + "".join(f"u{user},{item}\n" for user in range(30) for item in (user % 3, 5, user % 7))
JOB = '[source]\ndata = "b.csv"\nmode = "update"\nbatch = "{date}"\n[publish]\nmodel = "m.mrf"\n'
MORE = pl.DataFrame({"user": ["new", "new"], "item": [1, 2]})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a model, two batches, a user to forget and a nightly job."""
    (tmp_path / "events.csv").write_text(ROWS)
    for batch in ("a", "b"):
        (tmp_path / f"{batch}.csv").write_text(f"user,item\n{batch},1\n{batch},2\n")
    (tmp_path / "gone.txt").write_text("u7\n")
    (tmp_path / "job.toml").write_text(JOB)
    Popularity().fit(tmp_path / "events.csv").save(tmp_path / "m.mrf", include_histories=True)
    return tmp_path


@pytest.mark.slow
@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("update m.mrf a.csv", "update m.mrf b.csv"),
        ("forget m.mrf --users gone.txt", "update m.mrf b.csv"),
        ("forget m.mrf --users gone.txt", "nightly job.toml --accept"),
    ],
)
def test_commands_that_rewrite_a_file_at_once_wait_for_each_other(
    folder: Path, first: str, second: str
) -> None:
    with ExitStack() as stack:
        with mrfrec.locked(folder / "m.mrf"):  # until both are there
            commands = [[sys.executable, "-m", "mrfrec", *each.split()] for each in (first, second)]
            running = [
                stack.enter_context(subprocess.Popen(command, cwd=folder, stderr=subprocess.PIPE, text=True))
                for command in commands
            ]
            for process in running:
                stack.callback(process.kill)
                assert process.stderr is not None
                assert any(line.startswith("mrfrec: waiting up to 600 s for") for line in process.stderr)
        said = [process.communicate(timeout=120)[1] for process in running]
        assert [process.returncode for process in running] == [0, 0], said
    users = set(mrfrec.load(folder / "m.mrf").users_ or ())
    assert "b" in users
    assert "a" in users if first.startswith("update") else "u7" not in users


def test_a_killed_process_frees_its_lock(folder: Path) -> None:
    code = f"""
import time, mrfrec
with mrfrec.locked({str(folder / "m.mrf")!r}):
    print("locked", flush=True)
    time.sleep(60)
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "locked\n"
        with pytest.raises(BusyError), mrfrec.locked(folder / "m.mrf", wait=0):
            pass
        process.send_signal(signal.SIGKILL)
    with mrfrec.locked(folder / "m.mrf", wait=0):
        pass


@pytest.mark.parametrize(
    "command",
    ["update m.mrf a.csv", "forget m.mrf --users gone.txt", "update m.mrf --items a.csv"],
)
def test_a_command_that_has_waited_long_enough_says_so_and_changes_nothing(
    folder: Path, command: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.chdir(folder)
    caplog.set_level(logging.INFO, "mrfrec")
    before = Path("m.mrf").read_bytes()
    Path("link.mrf").symlink_to("m.mrf")
    with (
        mrfrec.locked("link.mrf"),
        pytest.raises(BusyError, match=r"rewriting m\.mrf, and has not ended within 0\.2 s.*--wait"),
    ):
        run_command([*command.split(), "--wait", "0.2"], Event())
    assert caplog.text.count("waiting up to 0.2 s for m.mrf, which another process is rewriting") == 1
    assert Path("m.mrf").read_bytes() == before


def test_forget_removes_the_copies_of_a_killed_run(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    names = (".m.mrf.nightly", ".m.mrf.earlier", "..m.mrf.nightly.0123abcd.unfinished")
    for name in names:
        (folder / name).write_bytes((folder / "m.mrf").read_bytes())
    run_command(["forget", "m.mrf", "--users", "gone.txt", "-o", "other.mrf"], Event())
    assert all((folder / name).exists() for name in names)
    (folder / "link.mrf").symlink_to("m.mrf")
    run_command(["forget", "link.mrf", "--users", "gone.txt"], Event())
    assert not any((folder / name).exists() for name in names)
    assert "removed .m.mrf.nightly, which a killed" in capsys.readouterr().err.replace(
        f"{folder.resolve()}/", ""
    )


def test_a_new_file_needs_no_lock_and_a_misspelt_name_gets_none(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    with mrfrec.locked("m.mrf"):
        run_command(["update", "m.mrf", "a.csv", "-o", "new.mrf", "--wait", "0"], Event())
    with pytest.raises(ModelFileError, match=r"there is no model file n\.mrf"):
        run_command(["update", "n.mrf", "a.csv"], Event())
    assert [path.name for path in folder.glob(".*")] == [".m.mrf.lock"]


def test_a_lock_that_cannot_be_taken_is_refused_by_name() -> None:
    with (
        pytest.raises(ModelFileError, match=r"/proc/self/\.m\.mrf\.lock, the lock .* cannot be taken: "),
        mrfrec.locked("/proc/self/m.mrf"),
    ):
        pass
    for wrong in (-1, "long", float("inf")):
        with pytest.raises(ParameterError, match="wait must be"), mrfrec.locked("m.mrf", wait=wrong):  # type: ignore[arg-type]
            pass


# ── a file that changed since it was loaded ───────────────────────────────────────────────────────


def test_a_file_that_changed_since_it_was_loaded_is_not_replaced(folder: Path) -> None:
    path = folder / "m.mrf"
    one, two = mrfrec.load(path), mrfrec.load(path)
    one.update(MORE).save(path, include_histories=True)
    kept = path.read_bytes()
    with pytest.raises(ModelFileError, match=r"m\.mrf was replaced, .*replace_changed=True"):
        two.forget("u7").save(path, include_histories=True)
    assert path.read_bytes() == kept
    assert sorted(file.name for file in folder.glob("*m.mrf*")) == ["m.mrf"]
    two.save(folder / "other.mrf", include_histories=True)
    with pytest.raises(ModelFileError):  # saved elsewhere meanwhile, it still knows what it was loaded from
        two.save(path, include_histories=True)
    one.save(path, include_histories=True)  # its own file
    two.save(path, include_histories=True, replace_changed=True)
    assert "u7" not in set(mrfrec.load(path).users_ or ())
    two.save(path, include_histories=True)


@pytest.mark.parametrize("change", ["touch", "copy", "remove"])
def test_a_file_of_the_same_content_or_none_is_written(folder: Path, change: str) -> None:
    path = folder / "m.mrf"
    model, content = mrfrec.load(path), path.read_bytes()
    path.unlink()
    if change != "remove":
        path.write_bytes(content)
    if change == "touch":
        path.touch()
    model.save(path, include_histories=True)
    assert path.read_bytes() == content


def test_a_file_that_is_no_model_any_more_is_not_replaced(folder: Path) -> None:
    model = mrfrec.load(folder / "m.mrf")
    (folder / "m.mrf").write_text("the notes of somebody")
    with pytest.raises(ModelFileError, match="was replaced"):
        model.save(folder / "m.mrf")
    assert (folder / "m.mrf").read_text() == "the notes of somebody"


def test_links_and_relative_names_are_known_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = Popularity().fit(folder / "a.csv")
    other.save(folder / "v2.mrf")
    (folder / "current").symlink_to("m.mrf")
    monkeypatch.chdir(folder)
    model = mrfrec.load("current")
    (folder / "current").unlink()
    (folder / "current").symlink_to("v2.mrf")
    monkeypatch.chdir("/")
    with pytest.raises(ModelFileError, match="was replaced"):  # the link leads elsewhere
        model.save(folder / "current")
    other.save(folder / "m.mrf")
    with pytest.raises(ModelFileError, match="was replaced"):  # by its own name
        model.save(folder / "m.mrf")


def test_the_hash_is_that_of_the_file_that_holds_the_model(folder: Path) -> None:
    model = mrfrec.load(folder / "m.mrf")
    loaded = model.fitted_.file_hash
    assert loaded
    assert model.update(MORE).fitted_.file_hash == ""
    model.save(folder / "m.mrf", include_histories=True)
    assert model.fitted_.file_hash == mrfrec.load(folder / "m.mrf").fitted_.file_hash != loaded
    assert model.forget("u7").fitted_.file_hash == ""
    fitted = Popularity().fit(folder / "events.csv")
    assert fitted.fitted_.file_hash == ""
    fitted.save(folder / "new.mrf")
    assert fitted.fitted_.file_hash == mrfrec.load(folder / "new.mrf").fitted_.file_hash


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_root_leaves_a_model_to_its_owner(folder: Path) -> None:
    os.chown(folder / "m.mrf", 65534, 65534)
    mrfrec.load(folder / "m.mrf").update(MORE).save(folder / "m.mrf", include_histories=True)
    found = (folder / "m.mrf").stat()
    assert (found.st_uid, found.st_gid, found.st_mode & 0o777) == (65534, 65534, 0o600)
