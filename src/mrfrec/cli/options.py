"""Options that several commands share."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from typer import Argument

from mrfrec.answers.question import Question
from mrfrec.cli.derived import Derived
from mrfrec.data.item_table import ItemFeatures
from mrfrec.data.reading_options import RULES
from mrfrec.errors import ParameterError
from mrfrec.io.features import read_item_features
from mrfrec.io.tables import read_interactions
from mrfrec.models.mrf.model import MRF
from mrfrec.service.settings import ServiceSettings

# ── of the library, as typed ──────────────────────────────────────────────────────────────────────

_READING = Derived(read_interactions, without=("progress",))
Reading = Annotated[dict[str, Any], _READING]
# Where models are evaluated, titles are not shown, and --min-items has another default.
_NOT_TO_EVALUATE = ("progress", "title", "items", "min_items")
ReadingToEvaluate = Annotated[dict[str, Any], _READING._replace(without=_NOT_TO_EVALUATE)]
# Without the rules about rows, which a model keeps: only the form of the table.
TableForm = Annotated[dict[str, Any], _READING._replace(without=("progress", *RULES))]
_OF_HISTORIES = (
    "user",
    "item",
    "value",
    "event",
    "time",
    "on_bad",
    "missing_time",
    "separator",
    "input_format",
)
HistoryForm = Annotated[dict[str, Any], _READING._replace(only=_OF_HISTORIES)]
UserColumn = Annotated[dict[str, Any], _READING._replace(only=("user",))]
_MACHINE = Derived(MRF, ("threads", "memory_limit", "device"), shows_defaults=False)
Machine = Annotated[dict[str, Any], _MACHINE]
RankingMachine = Annotated[dict[str, Any], _MACHINE._replace(only=("threads", "device"))]
ModelParameters = Annotated[dict[str, Any], Derived(MRF, without=_MACHINE.only)]
Asked = Annotated[dict[str, Any], Derived(Question, without=("explain",))]
_RULES = tuple(name for name in Question.model_fields if name in ("where", "at_most", "boost", "variety"))
Rules = Annotated[dict[str, Any], Derived(Question, _RULES)]
_SERVED = (
    "copies",
    "keys",
    "rate",
    "origins",
    "hosts",
    "root_path",
    "user_page",
    "max_body",
    "max_batch",
    "queue",
    "drain",
)
ServedSettings = Annotated[
    dict[str, Any],
    Derived(ServiceSettings, (*_SERVED, "log_requests", "log_clients")),
]

# ── of the commands ───────────────────────────────────────────────────────────────────────────────

Model = Annotated[Path, Argument(metavar="MODEL", help="A model file written by mrfrec fit.")]
ModelFile = Annotated[Path, "The model file to write."]
EVALUATED_MODEL = (
    "A model, 'EASE' or 'ItemKNN: neighbors=50'; parameters of an MRF, 'l2=6, sparsity=0.005' "
    "(sparsity=dense for all weights); or a .json file from mrfrec tune. May start with a name for the "
    "table: 'small: sparsity=0.001', 'other: model=EASE, l2=9'."
)
EvaluatedModel = Annotated[list[str] | None, "MODEL", EVALUATED_MODEL]
EvaluatedModels = Annotated[list[str], "MODEL", EVALUATED_MODEL + " Twice or more."]
TieRule = Annotated[
    Literal["index", "popularity"],
    "Order of items with equal scores: the more popular first, as recommend does, or by index.",
]
ReportFormat = Annotated[
    Literal["table", "json", "markdown"] | None,
    "Format of the results.  [default: by the name of the output file, or a table]",
]
ReportFile = Annotated[Path | None, "A .json, .md or .txt file.  [default: stdout]"]
Plot = Annotated[Path | None, "Draw the results, as a .png, .svg or .pdf file."]
Recommendations = Annotated[
    list[str] | None,
    "FILE",
    "Compare with what another system has recommended: a table of users, items and ranks or scores. May "
    "start with a name, 'als: lists.parquet', and be repeated.",
]
DropSeen = Annotated[
    bool, "Take what a user has already seen out of the lists of --recommendations; the next move up."
]
PerUser = Annotated[Path | None, "Write each test user's metrics, as CSV."]


@dataclass(frozen=True, kw_only=True)
class Features:
    """Features of items, as typed."""

    item_features: Annotated[
        str | None,
        "FILE",
        "A table of items and their features: categories, lists, texts, numbers. An MRF then also knows "
        "items that nobody has used.",
    ] = None
    feature_columns: Annotated[
        str | None,
        "LIST",
        "Columns of that table to use, also with kinds: genre=list,title=words,year=number.  [default: all]",
    ] = None
    features_query: Annotated[
        str | None, "SQL", "Query for the features, if --item-features names a database."
    ] = None

    def read(self) -> ItemFeatures | None:
        if self.item_features is None:
            for name in ("feature_columns", "features_query"):
                if getattr(self, name) is not None:
                    raise ParameterError(name, "left out without --item-features", getattr(self, name))
            return None
        columns: dict[str, Any] | None = None
        if self.feature_columns is not None:
            parts = (part.partition("=") for part in self.feature_columns.split(","))
            columns = {name.strip(): kind.strip() or None for name, _, kind in parts}
        try:
            return read_item_features(self.item_features, columns=columns, query=self.features_query)
        except ParameterError as error:
            raise error.named("--feature-columns") if error.name == "columns" else error from None


@dataclass(frozen=True, kw_only=True)
class Evaluating:
    """How models are evaluated and where the results go, as typed."""

    metrics: Annotated[
        str | None,
        "NAMES",
        "ndcg, recall, recall_all, precision, hit, mrr, map, coverage, gini, novelty, popularity, tail, "
        "variety; each with @k.  [default: ndcg@100,recall@20,recall@50]",
    ] = None
    by: Annotated[
        str | None,
        "NAME",
        "A column of --items: report the share of each of its groups in what is recommended.",
    ] = None
    rules: Rules = field(default_factory=dict)
    ties: TieRule = "popularity"
    form: ReportFormat = None
    output: ReportFile = None
    machine: Machine = field(default_factory=dict)
