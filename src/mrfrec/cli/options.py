"""Options that several commands share, and the class of all commands."""

import inspect
from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, get_type_hints

import typer
from typer import Option
from typer.core import TyperCommand

from mrfrec.errors import ParameterError

# Parameters of commands by group; the others are about the data.
_GROUPS = {
    "Model": "model params l2 alpha sparsity threshold max_neighbors r l2_flat dropout user_weight center "
    "mean_constraint offset novelty rank rank_weight dtype method vary trials dense sparse ranks",
    "Machine": "threads memory_limit device cluster shared_path checkpoint minutes max_seconds",
    "Output": "output table best histories metrics metric ties form per_user plot study help",
}
_GROUP_OF = {name: title for title, names in _GROUPS.items() for name in names.split()}
# Options whose parameters have another name in Python.
_OPTIONS = {
    "path": "--output", "user": "--user-column", "item": "--item-column", "value": "--value-column",
    "title": "--title-column", "time": "--time-column", "event": "--event-column", "target": "--vae-cf",
    "models": "--model", "names": "--data", "rs": "--r", "sparsities": "--sparsity", "source": "--from",
    "origins": "--cors",
}  # fmt: skip

_KEYWORD = inspect.Parameter.KEYWORD_ONLY


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
            typed = {p.name: p.opts[-1] for p in self.params if ctx.params.get(p.name) is not None}
            raise error.named({**typed, **_OPTIONS}.get(error.name, error.name)) from error

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the arguments, then one section for each group of options."""
        options = [parameter for parameter in self.params if parameter.param_type_name == "option"]
        if not any(_GROUP_OF.get(str(option.name)) == "Model" for option in options):
            super().format_options(ctx, formatter)
            return
        groups: dict[str, list[tuple[str, str]]] = {title: [] for title in ("Arguments", "Data", *_GROUPS)}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None:
                title = _GROUP_OF.get(str(parameter.name), "Data")
                title = "Arguments" if parameter.param_type_name == "argument" else title
                default = _model_default(parameter) if title == "Model" else ""
                groups[title].append((record[0], record[1] + default))
        for title, records in groups.items():
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)


def _model_default(parameter: Any) -> str:
    """Return the default that an option left out has in the model class, as help shows it."""
    from mrfrec.models.mrf import MRF

    default = MRF.defaults().get(parameter.name)
    if parameter.default is not None or default is None or isinstance(parameter.show_default, str):
        return ""
    if isinstance(default, bool):
        default = parameter.name if default else None
    return "" if default is None else f"  [default: {default}]"


def takes_options(command: Callable[..., None]) -> Callable[..., None]:
    """Replace each parameter of a command that is a dataclass of options by these options."""
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, Any] = {name: hint for name, hint in hints.items() if is_dataclass(hint)}
    parameters = []
    for parameter in inspect.signature(command).parameters.values():
        group = groups.get(parameter.name)
        if group is None:
            parameters.append(parameter.replace(kind=_KEYWORD, annotation=hints[parameter.name]))
            continue
        types = get_type_hints(group, include_extras=True)
        inherited = [field.name for base in group.__bases__ if is_dataclass(base) for field in fields(base)]
        for field in sorted(fields(group), key=lambda field: field.name in inherited):
            default = inspect.Parameter.empty if field.default is MISSING else field.default
            annotation = types[field.name]
            parameters.append(inspect.Parameter(field.name, _KEYWORD, default=default, annotation=annotation))

    def typed(**given: Any) -> None:
        for name, group in groups.items():
            given[name] = group(**{field.name: given.pop(field.name) for field in fields(group)})
        command(**given)

    typed.__name__, typed.__doc__ = command.__name__, command.__doc__
    typed.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    typed.__annotations__ = {p.name: p.annotation for p in parameters}
    return typed


MEASURED_MODEL = (
    "A model, 'SLIM' or 'SLIM: l1=1, l2=50'; parameters of an MRF, 'l2=6, sparsity=0.005' (sparsity=dense "
    "for all weights); or a .json file from mrfrec tune. May start with a name for the table: "
    "'small: sparsity=0.001', 'other: model=SLIM, l1=9'."
)
MeasuredModel = Annotated[list[str] | None, Option(metavar="MODEL", help=MEASURED_MODEL)]
MeasuredModels = Annotated[list[str], Option(metavar="MODEL", help=MEASURED_MODEL + " Twice or more.")]
TieRule = Annotated[
    Literal["index", "popularity"],
    Option(help="Order of items with equal scores: the more popular first, as recommend does, or by index."),
]
ReportFormat = Annotated[
    Literal["table", "json", "markdown"] | None,
    Option(
        "--format", help="Format of the results.", show_default="by the name of the output file, or a table"
    ),
]
ReportFile = Annotated[
    Path | None,
    Option("-o", "--output", metavar="FILE", help="A .json, .md or .txt file.", show_default="stdout"),
]
ModelFile = Annotated[Path, Option("-o", "--output", metavar="FILE", help="The model file to write.")]
Plot = Annotated[Path | None, Option("--plot", metavar="FILE", help="Draw the results, as PNG and SVG.")]
PerUser = Annotated[
    Path | None, Option("--per-user", metavar="FILE", help="Write each test user's metrics, as CSV.")
]
Threads = Annotated[int | None, Option(metavar="N", help="Number of threads.", show_default="all cores")]
MemoryLimit = Annotated[
    str | None, Option(metavar="SIZE", help="Memory to use, such as 8GB.", show_default="what is free")
]
Device = Annotated[
    str | None,
    Option(
        metavar="NAME",
        help="Compute on cpu, cuda, cuda:1, or auto: a GPU where it pays.",
        show_default="cpu, autoencoders auto",
    ),
]

Cluster = Annotated[
    str | None,
    Option(
        metavar="ADDRESS",
        help="Use a Dask cluster: tcp://host:8786, or local:4 for four processes started here.",
    ),
]
SharedPath = Annotated[
    Path | None,
    Option(
        metavar="FOLDER",
        help="With --cluster: a folder that all workers see, for the data.",
        show_default="the data is sent",
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
        Option(
            metavar="NAMES",
            help="ndcg, recall, recall_all, precision, hit, mrr, map, coverage, popularity, tail; each with "
            "@k.",
            show_default="ndcg@100,recall@20,recall@50",
        ),
    ] = None
    ties: TieRule = "popularity"
    form: ReportFormat = None
    output: ReportFile = None
    threads: Threads = None
    memory_limit: MemoryLimit = None

    def machine(self, device: str | None = None) -> dict[str, Any]:
        """Return the parameters of models that change no result."""
        return {"threads": self.threads, "memory_limit": self.memory_limit, "device": device}
