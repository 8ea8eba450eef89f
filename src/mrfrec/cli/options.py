"""Options that several commands share."""

import inspect
from collections.abc import Callable
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_type_hints

import typer
from typer import Option

from mrfrec.cli.derived import Derived, Machine
from mrfrec.errors import ParameterError

if TYPE_CHECKING:
    from mrfrec.data.features import ItemFeatures


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
Plot = Annotated[Path | None, Option(metavar="FILE", help="Draw the results, as a .png, .svg or .pdf file.")]
PerUser = Annotated[Path | None, Option(metavar="FILE", help="Write each test user's metrics, as CSV.")]
Cluster = Annotated[
    str | None,
    Option(
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
class Features:
    """Features of items, as typed."""

    item_features: Annotated[
        str | None,
        Option(
            metavar="FILE",
            help="A table of items and their features: categories, lists, texts, numbers. An MRF then also "
            "knows items that nobody has used.",
        ),
    ] = None
    feature_columns: Annotated[
        str | None,
        Option(
            metavar="LIST",
            help="Columns of that table to use, also with kinds: genre=list,title=words,year=number.",
            show_default="all",
        ),
    ] = None
    features_query: Annotated[
        str | None,
        Option(metavar="SQL", help="Query for the features, if --item-features names a database."),
    ] = None

    def read(self) -> "ItemFeatures | None":
        from mrfrec.io.features import read_item_features

        if self.item_features is None:
            for name in ("feature_columns", "features_query"):
                if getattr(self, name) is not None:
                    raise ParameterError(name, "left out without --item-features", getattr(self, name))
            return None
        columns: dict[str, Any] | None = None
        if self.feature_columns is not None:
            parts = (part.partition("=") for part in self.feature_columns.split(","))
            columns = {name.strip(): kind.strip() or None for name, _, kind in parts}
        return read_item_features(self.item_features, columns=columns, query=self.features_query)


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
    machine: Machine = field(default_factory=dict)
