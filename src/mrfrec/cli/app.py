"""The application and the commands that use models. Their texts become docs/reference/cli.md."""

import logging
from contextlib import suppress
from functools import cache
from threading import Event
from typing import Annotated, Literal

import typer

from mrfrec import __version__
from mrfrec.cli.demo import demo
from mrfrec.cli.derived import takes_options
from mrfrec.cli.doctor import doctor
from mrfrec.cli.evaluating import compare, evaluate, split, tune
from mrfrec.cli.fitting import add_items, fit, forget, items, update
from mrfrec.cli.options import Model, add_commands, new_app
from mrfrec.cli.recommending import explain, recommend, similar
from mrfrec.cli.serving import key, nightly, serve

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
    with suppress(typer.Exit), command.make_context("mrfrec", arguments) as context:
        command.invoke(context)
    if stop.is_set():  # a library has swallowed the exception
        raise KeyboardInterrupt


@app.callback(invoke_without_command=True)
@takes_options
def _about(
    context: typer.Context,
    version: Annotated[bool, "Print the version and exit."] = False,
    debug: Annotated[bool, "Show the traceback of an error (any command)."] = False,
) -> None:
    if version:
        typer.echo(f"mrfrec {__version__}")
    elif context.invoked_subcommand is None:
        typer.echo(context.get_help())


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
    from mrfrec.cli.show import show_facts
    from mrfrec.io.artifact import describe
    from mrfrec.models.registry import load

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
        facts["table"] = {each["name"]: each["kind"] for each in facts["table"]}
    show_facts(facts, str(model), form)


def compile_kernels(
    dtype: Annotated[
        Literal["float32", "float64", "both"], "Precision of the fits to compile for."
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


add_commands(
    app, demo, fit, update, add_items, items, forget, nightly, recommend, similar, explain, serve, key, info
)
add_commands(app, evaluate, compare, tune, split)
app.command("compile")(takes_options(compile_kernels))
add_commands(app, doctor)
