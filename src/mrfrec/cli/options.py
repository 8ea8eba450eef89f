"""Options that several commands share, and the class of all commands."""

import inspect
from collections.abc import Callable
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, get_type_hints

import typer
from typer import Option
from typer.core import TyperCommand

from mrfrec.cli.derived import Derived, Machine
from mrfrec.errors import ParameterError

_GROUPS = ("Arguments", "Data", "Model", "Machine", "Output")
# Options whose parameters have another name in Python.
_OPTIONS = {
    "path": "--output", "target": "--vae-cf", "models": "--model", "names": "--data", "rs": "--r",
    "sparsities": "--sparsity", "source": "--from", "origins": "--cors", "shown": "--shown",
}  # fmt: skip


def new_app(name: str | None, about: str) -> typer.Typer:
    """Create an application or a group of commands with plain-text help."""
    settings = {"help_option_names": ["-h", "--help"], "max_content_width": 100}
    return typer.Typer(
        name=name, help=about, callback=_show_help, invoke_without_command=True, add_completion=False,
        rich_markup_mode=None, context_settings=settings,
    )  # fmt: skip


def _show_help(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


class Command(TyperCommand):
    """A command whose errors name options, and whose help groups the options if they are many."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command; an error about a parameter names the option that was typed."""
        try:
            return super().invoke(ctx)
        except ParameterError as error:
            options = {
                p.name: (p.secondary_opts if ctx.params.get(p.name) is False else p.opts)[-1:]
                for p in self.params
                if ctx.params.get(p.name) is not None or getattr(p, "rich_help_panel", None)
            }
            option, *_ = options.get(error.name) or [_OPTIONS.get(error.name, error.name)]
            raise error.named(option) from error

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the arguments, then one section for each group of options."""
        groups: dict[str, list[tuple[str, str]]] = {title: [] for title in _GROUPS}
        for parameter in self.get_params(ctx):
            title = getattr(parameter, "rich_help_panel", None) or "Data"
            title = "Output" if parameter.name == "help" else title
            title = "Arguments" if parameter.param_type_name == "argument" else title
            if (record := parameter.get_help_record(ctx)) is not None:
                groups[title].append(record)
        if not groups["Model"]:
            super().format_options(ctx, formatter)
            return
        for title, records in groups.items():
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)


def takes_options(command: Callable[..., None]) -> Callable[..., None]:
    """Replace parameters of a command that hold several options by these options.

    Such a parameter is a dataclass, whose fields are options, or derived from the library.
    """
    hints = get_type_hints(command, include_extras=True)
    parameters = []
    for each in inspect.signature(command).parameters.values():
        parameters += _options_in(each.name, hints[each.name], each.default)

    def typed(**given: Any) -> None:
        command(**{name: _taken(name, hint, given) for name, hint in hints.items() if name != "return"})

    typed.__name__, typed.__doc__ = command.__name__, command.__doc__
    typed.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    typed.__annotations__ = {p.name: p.annotation for p in parameters}
    return typed


def _options_in(name: str, hint: Any, default: Any) -> list[inspect.Parameter]:
    if derived := _derived(hint):
        return derived.options()
    if is_dataclass(hint):
        types = get_type_hints(hint, include_extras=True)
        return [p for each in fields(hint) for p in _options_in(each.name, types[each.name], each.default)]
    default = inspect.Parameter.empty if default is MISSING else default
    return [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=hint)]


def _taken(name: str, hint: Any, given: dict[str, Any]) -> Any:
    if derived := _derived(hint):
        return derived.take(given)
    if is_dataclass(hint):
        types = get_type_hints(hint, include_extras=True)
        made: Any = hint
        return made(**{each.name: _taken(each.name, types[each.name], given) for each in fields(hint)})
    return given.pop(name)


def _derived(hint: Any) -> Derived | None:
    return next((each for each in getattr(hint, "__metadata__", ()) if isinstance(each, Derived)), None)


model_option = partial(Option, rich_help_panel="Model")
machine_option = partial(Option, rich_help_panel="Machine")
output_option = partial(Option, rich_help_panel="Output")

MEASURED_MODEL = (
    "A model, 'SLIM' or 'SLIM: l1=1, l2=50'; parameters of an MRF, 'l2=6, sparsity=0.005' (sparsity=dense "
    "for all weights); or a .json file from mrfrec tune. May start with a name for the table: "
    "'small: sparsity=0.001', 'other: model=SLIM, l1=9'."
)
MeasuredModel = Annotated[list[str] | None, model_option(metavar="MODEL", help=MEASURED_MODEL)]
MeasuredModels = Annotated[list[str], model_option(metavar="MODEL", help=MEASURED_MODEL + " Twice or more.")]
TieRule = Annotated[
    Literal["index", "popularity"],
    output_option(
        help="Order of items with equal scores: the more popular first, as recommend does, or by index."
    ),
]
ReportFormat = Annotated[
    Literal["table", "json", "markdown"] | None,
    output_option(
        "--format", help="Format of the results.", show_default="by the name of the output file, or a table"
    ),
]
ReportFile = Annotated[
    Path | None,
    output_option("-o", "--output", metavar="FILE", help="A .json, .md or .txt file.", show_default="stdout"),
]
ModelFile = Annotated[Path, output_option("-o", "--output", metavar="FILE", help="The model file to write.")]
Plot = Annotated[Path | None, output_option(metavar="FILE", help="Draw the results, as PNG and SVG.")]
PerUser = Annotated[
    Path | None, output_option(metavar="FILE", help="Write each test user's metrics, as CSV.")
]
Cluster = Annotated[
    str | None,
    machine_option(
        metavar="ADDRESS",
        help="Use a Dask cluster: tcp://host:8786, or local:4 for four processes started here.",
    ),
]
Folder = Annotated[
    Path | None,
    Option(
        "--folder",
        metavar="FOLDER",
        help="Folder of prepared data sets.",
        show_default="~/.cache/mrfrec/datasets",
    ),
]


@dataclass(frozen=True, kw_only=True)
class Measuring:
    """How models are measured and where the results go, as typed."""

    metrics: Annotated[
        str | None,
        output_option(
            metavar="NAMES",
            help="ndcg, recall, recall_all, precision, hit, mrr, map, coverage, popularity, tail; each with "
            "@k.",
            show_default="ndcg@100,recall@20,recall@50",
        ),
    ] = None
    ties: TieRule = "popularity"
    form: ReportFormat = None
    output: ReportFile = None
    machine: Machine = field(default_factory=dict)
