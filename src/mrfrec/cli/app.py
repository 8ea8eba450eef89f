"""The application and the commands that use models. docs/cli.md is generated from the texts here."""

import logging
from contextlib import suppress
from functools import cache
from pathlib import Path
from threading import Event
from typing import Annotated, Literal

import typer
from typer import Option

from mrfrec import __version__
from mrfrec.cli.evaluating import compare, evaluate, tune
from mrfrec.cli.fitting import fit
from mrfrec.cli.nightly import nightly
from mrfrec.cli.options import ModelFile, new_app
from mrfrec.cli.paper import paper_app
from mrfrec.cli.recommending import Model, explain, recommend, similar
from mrfrec.cli.serving import key, serve
from mrfrec.cli.updating import add_items, forget, update

_ABOUT = """Learn which items are used together, and recommend items.

Results go to stdout, everything else to stderr. Errors are one line, with exit code 2.

\b
Try:   mrfrec demo
Then:  mrfrec fit events.csv -o shop.mrf
       mrfrec recommend shop.mrf --history milk,bread
"""
app = new_app(None, _ABOUT)
_command_of = cache(typer.main.get_command)  # 30 ms each time


def run(arguments: list[str], stop: Event) -> None:
    """Run a command. Errors, a closed pipe and Ctrl-C, which sets `stop`, are left to the caller."""
    command = _command_of(app)
    # --help raises Exit.
    with suppress(typer.Exit), command.make_context("mrfrec", arguments, obj=stop) as context:
        command.invoke(context)


@app.callback(invoke_without_command=True)
def _about(
    context: typer.Context,
    version: Annotated[bool, Option("--version", help="Print the version and exit.")] = False,
    debug: Annotated[bool, Option("--debug", help="Show the traceback of an error (any command).")] = False,
) -> None:
    if version:
        typer.echo(f"mrfrec {__version__}")
    elif context.invoked_subcommand is None:
        typer.echo(context.get_help())


@app.command()
def demo(output: ModelFile = Path("debian.mrf")) -> None:
    """Fit, compare, recommend and explain on built-in data.

    Users are the source packages of Debian 12, items the packages they are built with. Takes half a
    minute of one core, and about ten seconds more the first time, to compile. Ends with commands to try next.

    \b
    Examples:
      mrfrec demo
      mrfrec demo -o /tmp/debian.mrf
    """
    from mrfrec.cli.demo import run as run_demo

    logging.getLogger("mrfrec").setLevel(logging.WARNING)
    run_demo(output)


for command in (fit, update, add_items, forget, nightly, recommend, similar, explain, serve, key):
    app.command()(command)


@app.command()
def info(
    model: Model,
    form: Annotated[
        Literal["table", "json"], Option("--format", help="A table for people, or JSON for programs.")
    ] = "table",
) -> None:
    """Describe a model file.

    Shows its training data, parameters, arrays and size, and whether it holds the users' histories.

    \b
    Examples:
      mrfrec info shop.mrf
      mrfrec info shop.mrf --format json
    """
    from mrfrec.cli.show import show_facts
    from mrfrec.io.artifact import describe

    show_facts(describe(model), str(model), form)


for command in (evaluate, compare, tune):
    app.command()(command)
app.add_typer(paper_app)


@app.command("compile")
def compile_kernels(
    dtype: Annotated[
        Literal["float32", "float64", "both"], Option(help="Precision of the fits to compile for.")
    ] = "float32",
) -> None:
    """Compile the kernels ahead of the first fit.

    Saves a container the seconds of compiling. The machine code is stored in lib/mrfrec of the Python
    environment if that is writable, otherwise in ~/.cache/mrfrec; fits find it there, also on a read-only
    file system. The code is specific to this processor model; another one compiles again.

    \b
    Examples:
      mrfrec compile
      mrfrec compile --dtype both
    """
    from mrfrec.models.compiling import compile_ahead

    logging.getLogger("mrfrec").setLevel(logging.WARNING)
    typer.echo(str(compile_ahead(dtypes=("float32", "float64") if dtype == "both" else (dtype,))))


@app.command()
def doctor() -> None:
    """Check the machine and the installation.

    Shows versions, cores, memory, BLAS and the cache of compiled code, and compares two small fits with plain
    numpy. Include the output in bug reports.

    \b
    Examples:
      mrfrec doctor
    """
    from mrfrec.cli.doctor import print_findings

    logging.getLogger("mrfrec").setLevel(logging.WARNING)
    print_findings()
