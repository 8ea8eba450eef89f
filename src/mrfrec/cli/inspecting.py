"""The commands info, doctor and demo. Their texts become docs/reference/cli.md."""

import logging
import platform
import re
import shlex
import shutil
import sys
import time
import warnings
from collections.abc import Iterator
from importlib import import_module
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any, Literal

import numpy as np
import scipy.sparse as sp
import typer
from pydantic import Field

from mrfrec import __version__, datasets
from mrfrec.checks import counted, in_words
from mrfrec.cli import written
from mrfrec.cli.options import ModelFile
from mrfrec.cli.show import print_table, progress_bar, show_facts
from mrfrec.core.engine import human_bytes, part_of
from mrfrec.engines.devices import devices
from mrfrec.engines.local import blas_libraries
from mrfrec.engines.machine import available_memory, usable_threads
from mrfrec.errors import DataError
from mrfrec.evaluation.protocol import fit_and_evaluate
from mrfrec.evaluation.results import means_text
from mrfrec.evaluation.splits import strong_generalisation
from mrfrec.io.artifact import describe
from mrfrec.io.atomic import check_writable, expanded
from mrfrec.models import Popularity
from mrfrec.models.mrf.model import MRF
from mrfrec.models.recommender import Recommender
from mrfrec.models.registry import kind_named, load, model_class
from mrfrec.options import USUAL, Options, Shell
from mrfrec.shown import parameter_text

_NOT_FOR_USERS = ("dev", "docs", "tools")  # extras


Finding = tuple[str, str, str]  # a name, its value, and advice if something is wrong


class InfoOptions(ModelFile):
    """How much to tell."""

    all: Annotated[bool, USUAL] = Field(False, description="Show all that the file holds.")
    form: Annotated[Literal["table", "json"], Shell("--format", usual=True)] = Field(
        "table", description="A table for people, or JSON, with everything, for programs."
    )


class DoctorOptions(Options):
    """What to check."""

    compile: Annotated[Literal["float32", "float64", "both"] | None, USUAL] = Field(
        None,
        description="Only compile the kernels, for fits in this precision, and print the folder that keeps "
        "them.",
    )


def info(own: InfoOptions) -> None:
    """Describe a model file.

    Shows its data, its parameters and its size, whether it has the users' histories, its features and the
    columns of its item table. --all also shows its arrays and everything else that the file says.

    \b
    Examples:
      mrfrec info shop.mrf
      mrfrec info shop.mrf --all
      mrfrec info shop.mrf --format json
    """
    facts = describe(own.model)
    if "features" in facts:
        opened = load(own.model)
        assert opened.catalogue.features is not None
        new = int((opened.popularity_ == 0).sum())
        facts["features"] = {
            "count": len(opened.catalogue.features.names),
            "new_items": new,
            **facts["features"],
        }
    if "table" in facts:
        facts["table"] = {each["name"]: each["type"] for each in facts["table"]}
    if not own.all and own.form == "table":
        has_measured = (facts.get("state") or {}).get("measured") is not None
        facts = _brief(facts, str(load(own.model).measured_) if has_measured else "")
    show_facts(facts, str(own.model), own.form)


def _brief(facts: dict[str, Any], measured: str) -> dict[str, Any]:
    """Return what people ask about a model first, one line each; nothing for what it does not have."""
    data, origin = facts["data"], facts.get("origin") or {}
    state = facts.get("state") or {}
    plan = state.get("plan") or {}
    usual = model_class(facts["model"]).defaults() if kind_named(facts["model"]) else {}
    parameters = {name: x for name, x in facts["parameters"].items() if usual.get(name) != x}
    batches = origin.get("batches") or []
    table = facts.get("table") or {}
    features = facts.get("features") or {}
    lines = {
        "model": facts["model"],
        "data": ", ".join(counted(data[name], name[:-1]) for name in ("users", "items", "pairs")),
        "values": "every pair counts 1" if data.get("binary") else "pairs have values",
        "ids": in_words(f"{what}: {origin[what]}" for what in ("users", "items") if what in origin),
        "read with": _listed(origin.get("rules") or {}),
        "batches": f"{len(batches)}, the last {batches[-1]}" if batches else "",
        "parameters": _listed(parameters) or "all defaults",
        "form": f"{plan['kind']}: {plan['reason']}" if "kind" in plan and "reason" in plan else "",
        "fitted with": _listed(state.get("values") or {}),
        "measured": measured,
        "histories": "yes" if facts.get("histories") else "no: without --user, --all and mrfrec update",
        "features": f"{features['count']:,}, and {counted(features['new_items'], 'new item')}"
        if features
        else "",
        "item table": ", ".join(f"{name} ({kind})" for name, kind in table.items()),
        "fingerprint": data.get("fingerprint", ""),
        "file": f"{human_bytes(facts['file']['bytes'])}, written by mrfrec {facts.get('written_by', '?')}",
    }
    return {name: line for name, line in lines.items() if line}


def _listed(values: dict[str, Any]) -> str:
    return ", ".join(f"{name}={parameter_text(name, x)}" for name, x in values.items())


def doctor(own: DoctorOptions) -> None:
    """Check the machine and the installation.

    Shows versions, cores, memory, BLAS and the cache of compiled code, and compares two small fits with plain
    numpy. Include the output in bug reports.

    --compile saves a container the seconds of compiling before its first fit. The machine code is stored in
    lib/mrfrec of the Python environment if that is writable, otherwise in ~/.cache/mrfrec; fits find it
    there, also on a read-only file system. The code is specific to this processor model; another one
    compiles again.

    \b
    Examples:
      mrfrec doctor
      mrfrec doctor --compile float32
      mrfrec doctor --compile both
    """
    logging.getLogger("mrfrec").setLevel(logging.WARNING)
    if own.compile is not None:
        from mrfrec.models.compiling import compile_ahead

        typer.echo(
            str(compile_ahead(dtypes=("float32", "float64") if own.compile == "both" else (own.compile,)))
        )
        return
    findings = list(examine())
    print_table([(name, value, advice or "ok") for name, value, advice in findings], ["", "", ""])
    if any(advice for *_, advice in findings):
        raise DataError("something needs attention: see the last column.")


def examine() -> Iterator[Finding]:
    """Yield everything that a bug report should contain."""
    yield "mrfrec", f"{__version__} in {Path(__file__).parents[1]}", ""
    yield "python", f"{sys.version.split()[0]} ({platform.platform()})", ""
    for name, extra in _libraries().items():
        yield _library(name, extra)
    for name, model, free, total in devices():
        yield f"GPU {name}", f"{model}, {human_bytes(free)} of {human_bytes(total)} free", ""
    if not devices():
        yield "GPU", "none that PyTorch can use; everything runs on the CPU", ""
    yield "cores", str(usable_threads()), ""
    memory = available_memory()
    low = "less than 1 GB is free: fits will be refused early" if memory < 1_000_000_000 else ""
    yield "memory", f"{human_bytes(memory)} free", low
    for library in blas_libraries():
        yield "BLAS", library, ""
    tested = _self_test()  # compiles what has not been compiled
    yield _machine_code()
    yield tested


def _libraries() -> dict[str, str]:
    """Return the libraries that mrfrec uses, each with the extra that installs it, "" if it is needed."""
    found = {}
    for line in requires("mrfrec") or ():
        name = re.match(r"[\w.-]+", line)
        extra = re.search(r"extra == .(\w+)", line)
        if name and not (extra and extra[1] in _NOT_FOR_USERS):
            found[name[0].replace("-", "_")] = extra[1] if extra else ""
    return found


def _library(name: str, extra: str) -> Finding:
    try:
        found = version(name)
    except PackageNotFoundError:
        said = f"not installed (the extra {extra})" if extra else "not installed"
        return name, said, "" if extra else "needed: install mrfrec again"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import_module(name)
    except Exception as error:  # a broken installation may raise anything
        return name, found, f"cannot be imported: {' '.join(str(error).split())}"
    return name, found, ""


def _machine_code() -> Finding:
    from mrfrec.core.kernels.compile import cache_folders, can_write

    used = [folder for folder in cache_folders() if any(folder.rglob("*.nbi"))]
    used = used or list(filter(can_write, cache_folders()))[:1]
    advice = "no folder for it can be written: new processes compile anew. See mrfrec doctor --help"
    kept = [f"{len(list(folder.rglob('*.nbi')))} functions in {folder}" for folder in used]
    return "compiled code", ", ".join(kept) or "not kept", "" if used else advice


def _self_test() -> Finding:
    """Compare a small dense and a small sparse fit with plain numpy."""
    start = time.perf_counter()
    # The number of users is prime: no covariance is exactly zero, so the sparse fit keeps them all.
    X = (np.random.default_rng(0).random((199, 30)) < 0.3).astype(np.float64)
    S = (X - X.mean(axis=0)).T @ (X - X.mean(axis=0))
    C = np.linalg.inv(S + np.eye(30))
    expected = -C / np.diag(C)
    np.fill_diagonal(expected, 0.0)
    worst = 0.0
    for parameters in ({"sparsity": None}, {"sparsity": 1.0}):
        model = MRF.paper(l2=1.0, alpha=0.0, dtype="float64", **parameters).fit(sp.csr_array(X))
        B = model.weights_.toarray() if model.is_sparse else model.weights_
        worst = max(worst, float(np.abs(B - expected).max()))
    seconds = time.perf_counter() - start
    advice = "" if worst < 1e-9 else "wrong: please report this with all of the above"
    return "self-test", f"dense and sparse fit within {worst:.0e} of numpy, {seconds:.1f} s", advice


# ── a tour on built-in data ───────────────────────────────────────────────────────────────────────

_HISTORY = ("python3-numpy", "python3-scipy", "cython3")
_NEW = ("python3-sparse", "sparse multidimensional arrays for numpy (Python 3)")
_KNOWN = "libgtk-3-dev"
_HELD_OUT = 2000
_METRICS = ("ndcg@100", "recall@20")
_DENSE, _SPARSE = "MRF, dense", "MRF, 2 % of the weights"


class DemoOptions(Options):
    """What the tour leaves."""

    output: Annotated[Path | None, Shell("-o --output", usual=True)] = Field(
        None, description="Also fit the model to all the data, and write it to this file."
    )


def demo(own: DemoOptions) -> None:
    """Fit, compare, recommend and explain on built-in data.

    Users are the source packages of Debian 12, items the packages they are built with. Takes half a
    minute of one core, much of it to compile, which is done once. Ends with commands to try next.

    \b
    Examples:
      mrfrec demo
      mrfrec demo -o /tmp/debian.mrf
    """
    logging.getLogger("mrfrec").setLevel(logging.WARNING)
    output = own.output
    if output is not None:
        check_writable(output)
    data, features = datasets.load("debian"), datasets.item_features("debian")
    typer.echo(
        f"Debian 12: {data.n_users:,} source packages (the users) and the {data.n_items:,} "
        f"packages they are built with (the items),\n{len(data):,} pairs.\n"
    )
    split = strong_generalisation(data, _HELD_OUT).with_features(features)
    typer.echo(
        f"For {_HELD_OUT:,} packages that the models were not trained on, how well is a fifth of their "
        "build dependencies\npredicted from the rest?"
    )
    # Titles serve to know the new item alone: with a weight to measure, a fit would take longer.
    model, sparse = (MRF(sparsity=sparsity, feature_weight=0) for sparsity in (None, 0.02))
    with progress_bar() as progress:

        def evaluated(model: Recommender, name: str, start: float, stop: float, **kept: Any) -> Any:
            part = part_of(progress, start, stop, f"{name}: ")
            return fit_and_evaluate(model, split, _METRICS, name=name, progress=part, **kept)

        found = [evaluated(Popularity(), "most popular", 0, 0.01), evaluated(model, _DENSE, 0.01, 0.9)]
        # Measuring takes most of a fit, and what suits one suits the other.
        found.append(evaluated(sparse, _SPARSE, 0.9, 1, measured=model.measured_))
    rows = [[*means_text(each), f"{each.seconds['training']:.2f} s"] for each in found]
    print_table(rows, ["", "nDCG@100", "Recall@20", "training"])
    if model.measured_ is not None:
        typer.echo(
            f"\nIn {found[1].seconds['measure']:.2f} s of its training the dense model chose parameters, "
            f"which the sparse one shares:\n{model.measured_}."
        )
    if output is not None:
        data = datasets.load("debian")
        with progress_bar() as progress:
            model.fit(data, progress=progress, measured=model.measured_, item_features=features)

    typer.echo(f"\nA package is built with {', '.join(_HISTORY)}. What else will it need?")
    best = model.recommend(history=_HISTORY, k=8, explain=3)
    names = ["rank", "item", "title", "score", "because"]
    print_table(best.select(names).rows(), [*names[:-1], "because of"])

    typer.echo(f"\nWhich packages are similar to {_KNOWN}?")
    similar = model.similar_items(_KNOWN, k=3)
    print_table(similar.rows(), similar.columns)

    item, title = _NEW
    with TemporaryDirectory() as folder:
        table = Path(folder) / "new.csv"
        table.write_text(f"item,title\n{item},{title}\n", encoding="utf-8")
        model.add_items(table)
    typer.echo(f"\nA new package that nobody has used, {item}, {title}: would it be recommended?")
    best = model.recommend(history=_HISTORY, k=1, explain=3, allow=[item])
    print_table(best.select(names).rows(), [*names[:-1], "because of"])

    _show_what_to_try_next(model, output)


def _show_what_to_try_next(model: MRF, output: Path | None) -> None:
    """Write the model to the file, if there is one, and list commands for it, or else one that writes it."""
    if output is None:
        typer.echo("\nDone. Fit a model to all the packages, and try it:\n")
        file = "debian.mrf"
        typer.echo(f"  {_program()} fit debian -o {file} --histories")
    else:
        model.save(output, include_histories=True)
        typer.echo(f"\nDone: {written(output)}, fitted to all the packages. Try next:\n")
        file = shlex.quote(str(expanded(output)))
    for command in (
        f"recommend {file} --history {','.join(_HISTORY)} --explain",
        f"recommend {file} --user gimp -k 5 --novelty 0.5",
        f"recommend {file} --all -k 20 -o recommendations.parquet",
        f"similar {file} {_KNOWN}",
        f"explain {file} --history {','.join(_HISTORY)} --item python3-matplotlib",
        f"info {file}",
        "fit YOUR_TABLE.csv -o your.mrf",
    ):
        typer.echo(f"  {_program()} {command}")
    typer.echo(
        f"\nOr look at it in a browser: open http://127.0.0.1:8000 after\n\n  {_program()} serve {file}"
    )


def _program() -> str:
    """Return the command to type: `mrfrec` if there is one on the path, otherwise the path of this one."""
    return "mrfrec" if shutil.which("mrfrec") else shlex.quote(sys.argv[0])
