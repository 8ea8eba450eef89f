"""Options that several commands share."""

from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from mrfrec.answers.question import Question
from mrfrec.cli.derived import Derived
from mrfrec.data.item_table import ItemFeatures
from mrfrec.data.reading_options import RULES, TableOptions
from mrfrec.errors import ParameterError
from mrfrec.io.features import read_item_features
from mrfrec.models.mrf.model import MRF
from mrfrec.options import Options, Shell
from mrfrec.service.settings import ServiceSettings

# ── of the library, as typed ──────────────────────────────────────────────────────────────────────

_READING = Derived(TableOptions)
Reading = Annotated[dict[str, Any], _READING]
# An evaluation shows no titles, and has its own default for --min-items.
ReadingToEvaluate = Annotated[
    dict[str, Any], _READING._replace(without=("title", "items", "min_items"), is_usual=False)
]
# The form of the table, without the options about rows, which a model keeps.
TableForm = Annotated[dict[str, Any], _READING._replace(without=RULES)]
_OF_HISTORIES = (
    "user", "item", "value", "event", "time", "on_bad", "missing_time", "separator", "input_format",
)  # fmt: skip
HistoryForm = Annotated[dict[str, Any], _READING._replace(only=_OF_HISTORIES, is_usual=False)]
UserColumn = Annotated[dict[str, Any], _READING._replace(only=("user",))]
_MACHINE = Derived(MRF, MRF.machine_parameters, shows_defaults=False, group="Machine")
Machine = Annotated[dict[str, Any], _MACHINE]
RankingMachine = Annotated[dict[str, Any], _MACHINE._replace(only=("threads", "device"), is_usual=False)]
ModelParameters = Annotated[dict[str, Any], Derived(MRF, without=MRF.machine_parameters)]
Asked = Annotated[dict[str, Any], Derived(Question, without=("explain",))]
Rules = Annotated[dict[str, Any], Derived(Question, ("where", "at_most", "boost", "variety"), is_usual=False)]
NoveltyAndBoost = Annotated[dict[str, Any], Derived(Question, ("novelty", "boost"))]
ServedSettings = Annotated[
    dict[str, Any],
    Derived(
        ServiceSettings,
        without=(
            "access_log",
            "max_k",
            "max_history",
            "max_cost",
            "max_values",
            "seconds",
            "body_seconds",
            "poll",
        ),
    ),
]

# ── of the commands ───────────────────────────────────────────────────────────────────────────────


class ModelFile(Options):
    """The model that a command opens."""

    model: Annotated[Path, Shell(value="MODEL", argument=True)] = Field(
        description="A model file written by mrfrec fit."
    )


class Features(Options):
    """Features of items."""

    group: ClassVar[str] = "Model"

    item_features: Annotated[str | None, Shell(value="FILE", usual=True)] = Field(
        None,
        description="A table of items and their features: categories, lists, texts, numbers. An MRF then "
        "also knows items that nobody has used.",
    )
    feature_columns: Annotated[str | None, Shell(value="LIST")] = Field(
        None,
        description="Columns of this table to use, also with types: genre=list,title=words,year=number.  "
        "[default: all]",
    )
    features_query: Annotated[str | None, Shell(value="SQL")] = Field(
        None, description="Query for the features, if --item-features names a database."
    )

    def read(self) -> ItemFeatures | None:
        """Read the features; None if there are none."""
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


class ReportForm(Options):
    """Where the report of an evaluation goes."""

    group: ClassVar[str] = "Results"

    form: Annotated[Literal["table", "json", "markdown"] | None, Shell("--format")] = Field(
        None, description="Format of the results.  [default: by the name of the output file, or a table]"
    )


class Evaluating(ReportForm):
    """What is measured in an evaluation, and where the results go."""

    group: ClassVar[str] = "Results"

    metrics: Annotated[str | None, Shell(value="NAMES", usual=True)] = Field(
        None,
        description="ndcg, recall, recall_all, precision, hit, mrr, map, coverage, gini, novelty, "
        "popularity, tail, variety; each with @k.  [default: ndcg@100,recall@20,recall@50]",
    )
    by: Annotated[str | None, Shell(value="NAME")] = Field(
        None,
        description="A column of --items: report the share of each of its groups in what is recommended.",
    )
    ties: Literal["index", "popularity"] = Field(
        "popularity",
        description="Order of items with equal scores: the more popular first, as recommend does, or by "
        "index.",
    )
    output: Annotated[Path | None, Shell("-o --output", usual=True)] = Field(
        None, description="A .json, .md or .txt file.  [default: stdout]"
    )


class Models(Options):
    """A model to evaluate, and what to compare it with."""

    group: ClassVar[str] = "Model"

    model: Annotated[list[str] | None, Shell(value="MODEL", usual=True)] = Field(
        None,
        description="A model, 'EASE' or 'ItemKNN: neighbors=50'; parameters of an MRF, 'l2=6, "
        "sparsity=0.005' (sparsity=dense for all weights); or a .json file from mrfrec tune. May start with "
        "a name for the table: 'small: sparsity=0.001', 'other: model=EASE, l2=9'. May be repeated in mrfrec "
        "compare.",
    )
    recommendations: Annotated[list[str] | None, Shell(value="FILE", usual=True)] = Field(
        None,
        description="Compare with what another system has recommended: a table of users, items and ranks or "
        "scores. May start with a name, 'als: lists.parquet', and be repeated.",
    )
    drop_seen: bool = Field(
        False,
        description="Take what a user has already seen out of the lists of --recommendations; the next move "
        "up.",
    )
    per_user: Annotated[Path | None, Shell(group="Results")] = Field(
        None, description="Write the metrics of every test user, as CSV."
    )
