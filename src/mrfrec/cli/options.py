"""Options that several commands share, and help that lists options by group."""

from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from typer import Option
from typer.core import TyperCommand

# Parameters of commands by group; the others are about the data.
_GROUPS = {
    "Model": "model params l2 alpha sparsity threshold max_neighbors r l2_flat dropout user_weight center "
    "mean_constraint offset dtype method vary trials dense sparse ranks",
    "Machine": "threads memory_limit device checkpoint max_seconds",
    "Output": "output best histories metrics metric ties form per_user plot study help",
}


def new_app(name: str | None = None) -> typer.Typer:
    """Create an application or a group of commands with plain-text help."""
    settings = {"help_option_names": ["-h", "--help"], "max_content_width": 100}
    return typer.Typer(name=name, add_completion=False, rich_markup_mode=None, context_settings=settings)


class GroupedCommand(TyperCommand):
    """A command whose help lists options by group, with the defaults of the model class."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the arguments, then one section for each group of options."""
        group_of = {name: title for title, names in _GROUPS.items() for name in names.split()}
        groups: dict[str, list[tuple[str, str]]] = {title: [] for title in ("Arguments", "Data", *_GROUPS)}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None:
                title = group_of.get(str(parameter.name), "Data")
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


def file_name(text: str) -> Path:
    """Refuse an empty file name, which would mean the current folder."""
    if not text:
        raise typer.BadParameter("it must be the name of a file; got ''")
    return Path(text)


MEASURED_MODEL = (
    "A model, 'SLIM' or 'SLIM: l1=1, l2=50'; parameters of an MRF, 'l2=6, sparsity=0.005' (sparsity=dense "
    "for all weights); or a .json file from mrfrec tune. May start with a name for the table: "
    "'small: sparsity=0.001', 'other: model=SLIM, l1=9'."
)
Metrics = Annotated[
    str | None,
    Option(
        metavar="NAMES",
        help="ndcg, recall, recall_all, precision, hit, mrr, map, coverage, popularity, tail; each with @k.",
        show_default="ndcg@100,recall@20,recall@50",
    ),
]
TieRule = Annotated[
    Literal["index", "popularity"],
    Option(
        help="Order of items with equal scores: the more popular first, as recommend does, or by index.",
    ),
]
ReportFormat = Annotated[
    Literal["table", "json", "markdown"] | None,
    Option(
        "--format",
        help="Format of the results.",
        show_default="by the name of the output file, or a table",
    ),
]
ReportFile = Annotated[
    Path | None,
    Option("-o", "--output", metavar="FILE", help="A .json, .md or .txt file.", show_default="stdout"),
]  # fmt: skip
Plot = Annotated[Path | None, Option("--plot", metavar="FILE", help="Draw the results, as PNG and SVG.")]
PerUser = Annotated[
    Path | None, Option("--per-user", metavar="FILE", help="Write each test user's metrics, as CSV.")
]  # fmt: skip
Threads = Annotated[int | None, Option(metavar="N", help="Number of threads.", show_default="all cores")]
MemoryLimit = Annotated[
    str | None, Option(metavar="SIZE", help="Memory to use, such as 8GB.", show_default="what is free")
]  # fmt: skip
Device = Annotated[
    str | None,
    Option(metavar="NAME", help="Where to train autoencoders: cpu or cuda.",
           show_default="a GPU if there is one"),
]  # fmt: skip
Folder = Annotated[
    Path | None,
    Option("--folder", metavar="FOLDER", help="Folder of prepared data sets.",
           show_default="~/.cache/mrfrec/datasets"),
]  # fmt: skip
