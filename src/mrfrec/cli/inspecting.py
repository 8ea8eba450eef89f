"""The commands info and doctor. Their texts become docs/reference/cli.md."""

import logging
import platform
import re
import sys
import time
import warnings
from collections.abc import Iterator
from importlib import import_module
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import scipy.sparse as sp
import typer

from mrfrec import __version__
from mrfrec.cli.options import Model
from mrfrec.cli.show import print_table, show_facts
from mrfrec.core.engine import human_bytes
from mrfrec.engines.devices import devices
from mrfrec.engines.local import blas_libraries
from mrfrec.engines.machine import available_memory, usable_threads
from mrfrec.errors import DataError
from mrfrec.io.artifact import describe
from mrfrec.models.mrf.model import MRF
from mrfrec.models.registry import load

_NOT_FOR_USERS = ("dev", "docs", "tools")  # extras


Finding = tuple[str, str, str]  # a name, its value, and advice if something is wrong


def info(
    model: Model,
    form: Annotated[Literal["table", "json"], "A table for people, or JSON for programs."] = "table",
) -> None:
    """Describe a model file.

    Shows its training data, parameters, arrays and size, whether it holds the users' histories, and how many
    features of items and new items, which nobody has used, it knows; and the columns of its table of items.

    \b
    Examples:
      mrfrec info shop.mrf
      mrfrec info shop.mrf --format json
    """
    facts = describe(model)
    if "features" in facts:
        opened = load(model)
        assert opened.catalogue.features is not None
        new = int((opened.popularity_ == 0).sum())
        facts["features"] = {
            "count": len(opened.catalogue.features.names),
            "new_items": new,
            **facts["features"],
        }
    if "table" in facts:
        facts["table"] = {each["name"]: each["type"] for each in facts["table"]}
    show_facts(facts, str(model), form)


def doctor(
    compile: Annotated[  # noqa: A002
        Literal["float32", "float64", "both"] | None,
        "Only compile the kernels, for fits in this precision, and print the folder that keeps them.",
    ] = None,
) -> None:
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
    if compile is not None:
        from mrfrec.models.compiling import compile_ahead

        typer.echo(str(compile_ahead(dtypes=("float32", "float64") if compile == "both" else (compile,))))
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
    tested = _self_test()  # which compiles what was not
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
