"""The application, made of the commands that are called. Its texts become docs/reference/cli.md."""

from collections.abc import Container
from contextlib import suppress
from functools import cache
from importlib import import_module
from threading import Event
from typing import Annotated, Any

import typer

from mrfrec import __version__
from mrfrec.cli.derived import takes_options

_ABOUT = """Learn which items are used together, and recommend items.

Results go to stdout, everything else to stderr. Errors are one line, with exit code 2.

\b
Try:   mrfrec demo
Then:  mrfrec fit events.csv -o shop.mrf
       mrfrec recommend shop.mrf --history milk,bread
"""
# The commands in the order of the help, each with its module and the first sentence of its docstring. A list
# of commands imports none of the modules, which import the library.
COMMANDS = {
    "demo": ("demo", "Fit, compare, recommend and explain on built-in data."),
    "fit": ("fitting", "Fit a model to a table of users and items."),
    "update": ("fitting", "Add new events to a model, and fit it again."),
    "forget": ("fitting", "Remove users from a model, and fit it again without them."),
    "nightly": ("serving", "Read, fit, evaluate, and publish a model if it is good enough."),
    "recommend": ("recommending", "Recommend items for a history, or for training users."),
    "similar": ("recommending", "List the items with the largest weights for an item."),
    "explain": ("recommending", "Show how the items of a history add up to a score."),
    "serve": ("serving", "Serve models over HTTP: an API and a page."),
    "info": ("inspecting", "Describe a model file."),
    "evaluate": ("evaluating", "Evaluate how well a model predicts held-out items."),
    "compare": ("evaluating", "Evaluate several models on the same users, and compare them."),
    "tune": (
        "evaluating",
        "Find good parameters on validation users, or by time on a cut before the one of mrfrec evaluate.",
    ),
    "doctor": ("inspecting", "Check the machine and the installation."),
}


def run(arguments: list[str], stop: Event) -> None:
    """Run a command. Errors, a closed pipe and Ctrl-C, which sets `stop`, are left to the caller."""
    words = [argument for argument in arguments if not argument.startswith("-")]
    command = _command(words[0] if words else "")
    # --help raises Exit.
    with suppress(typer.Exit), command.make_context("mrfrec", arguments) as context:
        command.invoke(context)
    if stop.is_set():  # a library has swallowed the exception
        raise KeyboardInterrupt


@cache
def _command(called: str) -> Any:
    return typer.main.get_command(application((called,)))


def application(called: Container[str] = COMMANDS) -> typer.Typer:
    """Return the application. Commands that are not called have a sentence of help, and no options."""
    settings = {"help_option_names": ["-h", "--help"], "max_content_width": 100}
    app = typer.Typer(help=_ABOUT, add_completion=False, rich_markup_mode=None, context_settings=settings)
    app.callback(invoke_without_command=True)(takes_options(_about))
    for name, (module, sentence) in COMMANDS.items():
        if name in called:
            command = getattr(import_module(f"mrfrec.cli.{module}"), name)
            app.command(name)(takes_options(command))
        else:
            app.command(name, help=sentence)(lambda: None)
    return app


def _about(
    context: typer.Context,
    version: Annotated[bool, "Print the version and exit."] = False,
    debug: Annotated[bool, "Show the traceback of an error (any command)."] = False,
) -> None:
    if version:
        typer.echo(f"mrfrec {__version__}")
    elif context.invoked_subcommand is None:
        typer.echo(context.get_help())
