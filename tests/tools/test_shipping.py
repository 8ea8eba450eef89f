"""The files beside the code, for images, workflows and packages: their commands exist, and they agree.

No image is built or started here.
"""

import json
import os
import re
import shlex
import shutil
import subprocess
import tomllib
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement

import mrfrec
from mrfrec.nightly import read_job, run
from mrfrec.service.monitoring import ROUTES

from pages import ROOT, Typed, check, commands_in
from queries import execute, fetch

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
DOCKERFILE = (ROOT / "Dockerfile").read_text().replace("\\\n", " ")
JOB = ROOT / "deploy" / "shop.toml"
UNITS = ROOT / "deploy" / "systemd"
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


def parsed(path: str | Path) -> Any:
    return yaml.safe_load((ROOT / path).read_text())


def instructions(name: str) -> list[str]:
    return re.findall(rf"^{name} (.*)", DOCKERFILE, flags=re.MULTILINE)


def typed(*words: str) -> Typed:
    return Typed(("mrfrec", *words), whole=True)


# ── the image and compose.yaml ────────────────────────────────────────────────────────────────────


def test_image_is_built_from_what_docker_may_see_and_runs_as_nobody_special() -> None:
    ignored = (ROOT / ".dockerignore").read_text().split("\n")
    sent = [line[1:] for line in ignored if line.startswith("!")]
    assert "*" in ignored
    copied = [word for line in instructions("COPY") if "--from" not in line for word in line.split()[:-1]]
    assert set(copied) == {*sent[:3], "constraints.tx[t]", "src"}
    assert fnmatch("constraints.txt", "constraints.tx[t]")
    assert "constraints.txt" in sent
    assert PROJECT["readme"] in copied  # without it there is no wheel
    assert [*PROJECT["license-files"]] == [word for word in copied if word == "LICENSE"]
    assert [name for name in sent if not (ROOT / name).exists()] in ([], ["constraints.txt"])
    (user,) = instructions("USER")
    assert int(user.partition(":")[0]) > 0
    (health,) = re.findall(r"127\.0\.0\.1:8000(/\w+)", DOCKERFILE)
    assert health in ROUTES


def test_image_has_the_extras_and_commands_that_exist() -> None:
    (extras,) = re.findall(r'"\.\[(.+?)\]"', DOCKERFILE)
    assert set(extras.split(",")) <= PROJECT["optional-dependencies"].keys()
    assert json.loads(instructions("ENTRYPOINT")[0]) == ["mrfrec"]
    (default,) = instructions("CMD")
    check(typed(*json.loads(default)))
    (compiled,) = re.findall(r"^RUN /opt/mrfrec/bin/mrfrec (.*)", DOCKERFILE, flags=re.MULTILINE)
    check(typed(*compiled.split()))
    for version in re.findall(r"FROM python:(\S+)-slim", DOCKERFILE):
        assert f"Programming Language :: Python :: {version}" in PROJECT["classifiers"]


def test_commands_and_files_of_compose_exist() -> None:
    services = parsed("compose.yaml")["services"]
    assert services.keys() == {"database", "nightly", "service"}
    for name in ("nightly", "service"):
        check(typed(*services[name]["command"]))
        assert services[name]["image"] == f"mrfrec:{mrfrec.__version__}"
    mounted = [text.split(":") for service in services.values() for text in service["volumes"]]
    for source, *_ in mounted:
        assert (
            (ROOT / source).exists()
            if source.startswith(".")
            else source in parsed("compose.yaml")["volumes"]
        )
    assert (
        f"./{JOB.relative_to(ROOT)}:{services['nightly']['command'][1]}:ro" in services["nightly"]["volumes"]
    )
    assert "models:/models:ro" in services["service"]["volumes"]
    # The port of the service is for a proxy on the same machine.
    assert [port.partition(":")[0] for port in services["service"]["ports"]] == ["127.0.0.1"]


def test_no_password_is_in_a_file_that_git_or_the_image_has() -> None:
    config = parsed("compose.yaml")
    names = set(config["secrets"])
    for secret in config["secrets"].values():
        assert secret.keys() == {"file"}
        assert Path(secret["file"]).parts[0] == "secrets"
    assert "/secrets/" in (ROOT / ".gitignore").read_text().split()
    for service in config["services"].values():
        assert set(service["secrets"]) <= names
        words = json.dumps([service.get("environment"), service.get("command")])
        assert {*re.findall(r"/run/secrets/(\w+)", words)} == set(service["secrets"])
        for key, value in (service.get("environment") or {}).items():
            assert "PASS" not in key or value.startswith("/run/secrets/"), key


def test_job_of_compose_is_valid_and_publishes_where_the_service_looks(tmp_path: Path) -> None:
    (tmp_path / "shop.toml").write_text(JOB.read_text().replace("/models/", f"{tmp_path}/"))
    assert read_job(tmp_path / "shop.toml").source.data == ["postgresql://shop@database/shop"]
    published = tomllib.loads(JOB.read_text())["publish"]["model"]
    services = parsed("compose.yaml")["services"]
    assert published in services["service"]["command"]
    assert "models:/models" in services["nightly"]["volumes"]
    assert "password" not in JOB.read_text().lower()


@pytest.fixture
def as_shop(postgres: str) -> Iterator[str]:
    """The URL of a database with the tables of compose.yaml and some events, as the user of the job."""
    for name in ("events.sql", "grants.sql"):
        execute(postgres, *(ROOT / "deploy" / name).read_text().strip().removesuffix(";").split(";\n"))
    execute(
        postgres,
        "create table customers (name text)",
        "insert into events (user_id, sku) select u, 'sku' || i "
        "from generate_series(1, 60) u, generate_series(1, 90) i "
        "where abs(hashtext(u || '-' || i)) % 10 < 3",
    )
    yield postgres.replace("//postgres:@", "//shop:@")
    execute(postgres, "drop owned by shop", "drop role shop")


@pytest.mark.slow
def test_job_of_compose_runs_with_its_grants(as_shop: str, tmp_path: Path) -> None:
    text = JOB.read_text().replace("postgresql://shop@database/shop", as_shop).replace("/models/", "")
    (tmp_path / "shop.toml").write_text(text)
    assert run(tmp_path / "shop.toml")["status"] == "published"
    assert run(tmp_path / "shop.toml")["status"] == "published"  # over what is there
    assert fetch(as_shop.replace("//shop", "//postgres"), "select count(*) from recs") == [(60 * 20,)]


def test_user_of_the_job_may_do_no_more_than_it_must(as_shop: str) -> None:
    forbidden = (
        "select * from recs", "update recs set rank = 1", "truncate recs", "drop table recs",
        "insert into events (user_id, sku) values (1, 'a')", "delete from events",
        "update events set sku = 'a'", "select * from customers", "create table mine (a int)",
        "create role other", "alter role shop createdb",
        "create schema mine", "copy events to program 'cat'", "select pg_read_file('/etc/passwd')",
    )  # fmt: skip
    for statement in forbidden:
        with pytest.raises(Exception, match=r"permission denied|must be owner"):
            execute(as_shop, statement)
    execute(as_shop, "select * from events", "delete from recs", "create temporary table t (a int)")


def test_step_that_pins_images_names_all_of_them(tmp_path: Path) -> None:
    """It can be repeated."""
    page = (ROOT / "docs" / "how-to" / "containers.md").read_text()
    (step,) = re.findall(r"```sh\n(for image in .*?)```", page, flags=re.DOTALL)
    names = ("Dockerfile", "compose.yaml")
    for name in names:
        shutil.copy(ROOT / name, tmp_path)
    docker = tmp_path / "docker"
    docker.write_text('#!/bin/sh\ntest "$1" = pull || echo "${5%%:*}@sha256:$DIGEST"\n')
    docker.chmod(0o755)
    for digest in ("0a" * 32, "1b" * 32):
        environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "DIGEST": digest}
        subprocess.run(["sh", "-euc", step], cwd=tmp_path, env=environment, check=True)
        text = "".join((tmp_path / name).read_text() for name in names)
        images = re.findall(r"^FROM (\S+)|^ +image: (?!mrfrec)(\S+)", text, flags=re.MULTILINE)
        assert len(images) == 3
        assert all(re.fullmatch(rf"\w+:\S+@sha256:{digest}", "".join(image)) for image in images)


def test_libraries_of_production_have_upper_bounds() -> None:
    extras = PROJECT["optional-dependencies"]
    for line in [*PROJECT["dependencies"], *(x for name in ("serve", "sql") for x in extras[name])]:
        assert {one.operator for one in Requirement(line).specifier} == {">=", "<"}, line


# ── systemd ───────────────────────────────────────────────────────────────────────────────────────


def settings_of(name: str) -> dict[str, str]:
    """The last value of each setting of a unit, with what the units mrfrec- share."""
    shared = (UNITS / "mrfrec-.service.d" / "common.conf").read_text()
    text = (shared if name.startswith("mrfrec-") else "") + (UNITS / name).read_text()
    return dict(re.findall(r"^(\w+)=(.*)", text, flags=re.MULTILINE))


def test_failures_of_units_are_told_and_a_stuck_service_is_ended() -> None:
    service, job = settings_of("mrfrec-serve@.service"), settings_of("mrfrec-nightly.service")
    assert (service["Type"], service["Restart"]) == ("notify", "on-failure")
    assert int(service["WatchdogSec"]) > 0
    for unit in (service, job):
        assert (UNITS / unit["OnFailure"].replace("%n", "")).exists()
    assert "OnFailure" not in settings_of("failed-mail@.service")  # it would mail its own failure


def test_service_and_job_are_two_users_and_only_the_job_can_write_models() -> None:
    service, job = settings_of("mrfrec-serve@.service"), settings_of("mrfrec-nightly.service")
    assert service["User"] != job["User"]
    assert service["Group"] == job["Group"] != "root"
    assert "ReadWritePaths" not in service
    assert service["CacheDirectory"] == "%p"  # of one user each
    containers = parsed("compose.yaml")["services"]
    (usual,) = instructions("USER")
    user, group = containers["service"]["user"].split(":")
    assert group == usual.split(":")[1]
    assert user not in usual.split(":")
    assert "user" not in containers["nightly"]


# ── workflows and hooks ───────────────────────────────────────────────────────────────────────────


def steps(path: Path) -> Iterator[dict[str, Any]]:
    for job in parsed(path)["jobs"].values():
        yield from job["steps"]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_commands_of_the_workflows_exist(path: Path) -> None:
    lines = [step["run"] for step in steps(path) if "run" in step]
    assert lines or path.stem == "publish"
    for line in lines:
        first, *rest = shlex.split(line)
        if first in ("make", "mrfrec"):
            (command,) = commands_in(f"```sh\n{line}\n```")
            check(command)
        elif first == "python":
            assert rest[:2] in (["-m", "pip"], ["-m", "pytest"])
            assert all((ROOT / word).is_dir() for word in rest if word.startswith("tests/"))
            for extra in re.findall(r"\.\[(.+?)\]", line):
                assert set(extra.split(",")) <= PROJECT["optional-dependencies"].keys()
        else:
            assert first == "grep"


def test_workflows_run_every_python_that_is_claimed_and_may_do_nothing_else() -> None:
    config = parsed(".github/workflows/tests.yml")
    claimed = {kind.rpartition(" ")[2] for kind in PROJECT["classifiers"] if ":: Python :: 3." in kind}
    for name in ("linux", "elsewhere"):
        assert claimed < set(config["jobs"][name]["strategy"]["matrix"]["python"])
    assert config["jobs"]["elsewhere"]["continue-on-error"] is True
    for path in WORKFLOWS:
        assert parsed(path)["permissions"] == {"contents": "read"}
        for step in steps(path):
            assert ("uses" in step) != ("run" in step)
            assert re.fullmatch(r"[\w./-]+@\S+", step.get("uses", "a@b"))
    release = parsed(".github/workflows/release.yml")
    assert release["jobs"]["publish"]["permissions"] == {"id-token": "write"}
    assert "secrets." not in "".join(path.read_text() for path in WORKFLOWS)


def test_hook_does_what_make_lint_does_without_the_network() -> None:
    (repository,) = parsed(".pre-commit-config.yaml")["repos"]
    (hook,) = repository["hooks"]
    assert (repository["repo"], hook["language"], hook["pass_filenames"]) == ("local", "system", False)
    (command,) = commands_in(f"```sh\n{hook['entry']}\n```")
    check(command)


# ── what others are told ──────────────────────────────────────────────────────────────────────────


def test_citation_and_recipe_are_of_this_version_and_license() -> None:
    citation, recipe = parsed("CITATION.cff"), parsed("recipe/recipe.yaml")
    assert citation["version"] == recipe["context"]["version"] == mrfrec.__version__
    assert citation["license"] == recipe["about"]["license"] == PROJECT["license"]
    assert [author["name"] for author in citation["authors"]] == [one["name"] for one in PROJECT["authors"]]


def test_recipe_needs_what_the_package_needs() -> None:
    recipe = parsed("recipe/recipe.yaml")["requirements"]
    build = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"]
    python = f"python{PROJECT['requires-python']}"

    def pairs(lines: list[str]) -> set[tuple[str, str]]:
        return {(one.name, str(one.specifier)) for one in map(Requirement, lines)}

    assert pairs(recipe["run"]) == pairs([*PROJECT["dependencies"], python])
    assert pairs(recipe["host"]) == pairs([*build, python, "pip"])


@pytest.mark.parametrize(
    "path", sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("[!c]*.yml")), ids=lambda p: p.stem
)
def test_issue_forms_ask_something(path: Path) -> None:
    form = parsed(path)
    asked = [part["id"] for part in form["body"] if part["type"] != "markdown"]
    assert len(asked) == len(set(asked)) >= 2
    for command in commands_in(path.read_text()):
        check(command)
