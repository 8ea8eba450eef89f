"""The application, made of the commands that are called. Its texts become docs/reference/cli.md."""

from collections.abc import Container
from contextlib import suppress
from functools import cache
from importlib import import_module
from threading import Event
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from mrfrec import __version__

_ABOUT = """Learn which items are used together, and recommend items.

Results go to stdout, everything else to stderr. Errors are one line, with exit code 2.

\b
Try:   mrfrec demo
Then:  mrfrec fit events.csv -o shop.mrf
       mrfrec recommend shop.mrf --history milk,bread
"""
# The commands by group, each with its module and the first sentence of its docstring. A list of commands
# imports none of the modules, which import the library.
GROUPS = {
    "Learn": {
        "fit": ("fitting", "Fit a model to a table of users and items."),
        "update": ("fitting", "Add new events to a model, and fit it again."),
        "forget": ("fitting", "Remove users from a model, and fit it again without them."),
        "tune": ("evaluating", "Find good parameters on validation users."),
    },
    "Ask": {
        "recommend": ("recommending", "Recommend items for a history, or for training users."),
        "similar": ("recommending", "List the items with the largest weights for an item."),
        "explain": ("recommending", "Show how the items of a history add up to a score."),
        "serve": ("serving", "Serve models over HTTP: an API and a page."),
    },
    "Judge": {
        "evaluate": ("evaluating", "Evaluate how well a model predicts held-out items."),
        "compare": ("evaluating", "Evaluate several models on the same users, and compare them."),
    },
    "Operate": {
        "nightly": ("serving", "Read, fit, evaluate, and publish a model if it is good enough."),
        "info": ("inspecting", "Describe a model file."),
        "doctor": ("inspecting", "Check the machine and the installation."),
        "demo": ("inspecting", "Fit, compare, recommend and explain on built-in data."),
    },
}
COMMANDS = {name: command for group in GROUPS.values() for name, command in group.items()}
_EXAMPLES = 3
"""How many examples --help shows; --help-all shows all of them."""


class _Command(TyperCommand):
    """A command whose help has the usual options by group; --help-all shows all of them, and says more."""

    shows_all = False

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        words = args[: args.index("--")] if "--" in args else args
        if "--help-all" in words:
            self.shows_all = True
            typer.echo(ctx.get_help())
            raise typer.Exit
        return super().parse_args(ctx, args)

    def format_help_text(self, ctx: Any, formatter: Any) -> None:
        whole = self.help or ""
        if not self.shows_all:
            summary = whole.partition("\n\n")[0]
            examples = whole.partition("\b\nExamples:\n")[2].splitlines()[:_EXAMPLES]
            whole = "\n".join([summary, "", "\b", "Examples:", *examples] if examples else [summary])
        formatter.write_paragraph()
        with formatter.indentation():
            formatter.write_text(whole)

    def format_options(self, ctx: Any, formatter: Any) -> None:
        groups: dict[str, list[tuple[str, str]]] = {}
        rare = 0
        for parameter in self.get_params(ctx):
            is_argument = parameter.param_type_name == "argument"
            group = "Arguments" if is_argument else getattr(parameter, "rich_help_panel", None) or ""
            if group.endswith("+") and not self.shows_all:
                rare += 1
            elif (record := parameter.get_help_record(ctx)) is not None:
                groups.setdefault(group.removesuffix("+") or "Help", []).append(record)
        if rare:
            groups["Help"].append(("--help-all", f"Show {rare} more options, and more about the command."))
        for name, records in groups.items():
            with formatter.section(name):
                formatter.write_dl(records)


class _Group(TyperGroup):
    """The commands by group."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        for group, commands in GROUPS.items():
            with formatter.section(group):
                formatter.write_dl([(name, sentence) for name, (_, sentence) in commands.items()])


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
    app = typer.Typer(
        cls=_Group, help=_ABOUT, add_completion=False, rich_markup_mode=None, context_settings=settings
    )
    app.callback(invoke_without_command=True)(_about)
    for name, (module, sentence) in COMMANDS.items():
        if name in called:
            from mrfrec.cli.derived import takes_options

            command = getattr(import_module(f"mrfrec.cli.{module}"), name)
            app.command(name, cls=_Command)(takes_options(command))
        else:
            app.command(name, help=sentence)(lambda: None)
    return app


def _about(
    context: typer.Context,
    version: bool = typer.Option(False, "--version", help="Print the version and exit."),
    debug: bool = typer.Option(False, "--debug", help="Show the traceback of an error (any command)."),
) -> None:
    if version:
        typer.echo(f"mrfrec {__version__}")
    elif context.invoked_subcommand is None:
        typer.echo(context.get_help())
