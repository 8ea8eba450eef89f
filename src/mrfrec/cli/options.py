"""Options that several commands share, and help that lists options by group."""

from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from typer import Option
from typer.core import TyperCommand

__all__ = [
    "MACHINE",
    "MEASURED_MODEL",
    "MODEL",
    "OUTPUT",
    "Device",
    "Folder",
    "GroupedCommand",
    "MemoryLimit",
    "Metrics",
    "PerUser",
    "Plot",
    "ReportFile",
    "ReportFormat",
    "Threads",
    "TieRule",
    "file_name",
]

MODEL, MACHINE, OUTPUT = "Model", "Machine", "Output"  # groups of options; the others are about the data


class GroupedCommand(TyperCommand):
    """A command whose help lists options by group, with the defaults of the model class."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the arguments, then one section for each group of options."""
        groups: dict[str, list[tuple[str, str]]] = {
            title: [] for title in ("Arguments", "Data", MODEL, MACHINE, OUTPUT)
        }
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None:
                is_help = parameter.name == "help"
                panel = OUTPUT if is_help else getattr(parameter, "rich_help_panel", None) or "Data"
                if parameter.param_type_name == "argument":
                    panel = "Arguments"
                default = _model_default(parameter) if panel == MODEL else ""
                groups[panel].append((record[0], record[1] + default))
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
        rich_help_panel=OUTPUT,
    ),
]
TieRule = Annotated[
    Literal["index", "popularity"],
    Option(
        help="Order of items with equal scores: the more popular first, as recommend does, or by index.",
        rich_help_panel=OUTPUT,
    ),
]
ReportFormat = Annotated[
    Literal["table", "json", "markdown"] | None,
    Option(
        "--format",
        help="Format of the results.",
        show_default="by the name of the output file, or a table",
        rich_help_panel=OUTPUT,
    ),
]
ReportFile = Annotated[
    Path | None,
    Option("-o", "--output", metavar="FILE", help="A .json, .md or .txt file.", show_default="stdout",
           rich_help_panel=OUTPUT),
]  # fmt: skip
Plot = Annotated[
    Path | None,
    Option("--plot", metavar="FILE", help="Draw the results, as PNG and SVG.", rich_help_panel=OUTPUT),
]
PerUser = Annotated[
    Path | None,
    Option("--per-user", metavar="FILE", help="Write each test user's metrics, as CSV.",
           rich_help_panel=OUTPUT),
]  # fmt: skip
Threads = Annotated[
    int | None,
    Option(metavar="N", help="Number of threads.", show_default="all cores", rich_help_panel=MACHINE),
]
MemoryLimit = Annotated[
    str | None,
    Option(metavar="SIZE", help="Memory to use, such as 8GB.", show_default="what is free",
           rich_help_panel=MACHINE),
]  # fmt: skip
Device = Annotated[
    str | None,
    Option(metavar="NAME", help="Where to train autoencoders: cpu or cuda.",
           show_default="a GPU if there is one", rich_help_panel=MACHINE),
]  # fmt: skip
Folder = Annotated[
    Path | None,
    Option("--folder", metavar="FOLDER", help="Folder of prepared data sets.",
           show_default="~/.cache/mrfrec/datasets"),
]  # fmt: skip
