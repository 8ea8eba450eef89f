"""Options about data: how tables are read, and how the measuring commands split them."""

from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from typer import Argument, Option

from mrfrec.checks import check_count
from mrfrec.errors import DataError, ParameterError
from mrfrec.io.databases import redacted

if TYPE_CHECKING:
    from mrfrec.core.engine import Progress
    from mrfrec.data.events import Events
    from mrfrec.evaluation.splits import Split

_HELDOUT = 10_000  # users held out at most by default
Query = Annotated[
    str | None,
    Option(metavar="SQL", help="What to read if DATA is a database: 'select user_id, sku from orders'."),
]


@dataclass(frozen=True, kw_only=True)
class TableOptions:
    """How tables are read, as typed."""

    user_column: Annotated[
        str | None, Option(metavar="NAME", help="Column of the users, if its name does not tell.")
    ] = None
    item_column: Annotated[str | None, Option(metavar="NAME", help="Column of the items.")] = None
    value_column: Annotated[
        str | None, Option(metavar="NAME", help="Column of the values: ratings, counts, plays.")
    ] = None
    min_value: Annotated[
        float | None, Option(metavar="X", help="Leave out rows with a value below this: 4 for ratings.")
    ] = None
    values: Annotated[bool, Option("--values", help="Learn from the values; else pairs count 1.")] = False
    event_weights: Annotated[
        str | None,
        Option(
            metavar="LIST",
            help="What each kind of event counts: view=0.2,cart=0.5,buy=1; other=0 for all others.",
        ),
    ] = None
    event_column: Annotated[
        str | None, Option(metavar="NAME", help="Column of the kinds, if its name does not tell.")
    ] = None
    half_life: Annotated[
        str | None, Option(metavar="TIME", help="Events count half after this time: 30d, 12h, 2w.")
    ] = None
    now: Annotated[
        str | None,
        Option(metavar="TIME", help="From when ages are measured.", show_default="the latest time in DATA"),
    ] = None
    since: Annotated[
        str | None, Option(metavar="TIME", help="Leave out events before this: 2026-11-16, or with a time.")
    ] = None
    until: Annotated[str | None, Option(metavar="TIME", help="Leave out events at this time and later.")] = (
        None
    )
    window: Annotated[
        str | None, Option(metavar="TIME", help="Leave out events that are older than this: 365d.")
    ] = None
    time_column: Annotated[str | None, Option(metavar="NAME", help="Column of the times.")] = None
    duplicates: Annotated[
        Literal["sum", "max", "last", "first", "error"],
        Option(
            help="Of several rows of one user and item: add what they count, take the largest, the last "
            "or the first, or refuse."
        ),
    ] = "sum"
    max_history: Annotated[
        int | None, Option(metavar="N", help="Leave out users with more items than this, such as robots.")
    ] = None
    min_users: Annotated[int, Option(metavar="N", help="Then leave out items with fewer users.")] = 0
    min_items: Annotated[int, Option(metavar="N", help="Then leave out users with fewer items.")] = 0
    on_bad: Annotated[
        Literal["refuse", "skip"], Option(help="What to do with a row that has no id, or no number as value.")
    ] = "refuse"
    separator: Annotated[str | None, Option(metavar="TEXT", help="Between columns of a text file.")] = None
    columns: Annotated[
        str | None, Option(metavar="NAMES", help="Columns of a text file without a header: user,item,plays.")
    ] = None
    input_format: Annotated[
        Literal["csv", "tsv", "jsonl", "parquet", "arrow"] | None,
        Option(help="Format of DATA; told by the name of a file, needed for standard input (-)."),
    ] = None
    query: Query = None

    def rows(self) -> dict[str, Any]:
        """Return the parameters of the readers that choose and parse rows."""
        return {
            "min_value": self.min_value, "binary": not self.values, "duplicates": self.duplicates,
            "on_bad": self.on_bad, "input_format": self.input_format,
            "separator": self.separator.replace("\\t", "\t") if self.separator else None,
            "columns": [name.strip() for name in self.columns.split(",")] if self.columns else None,
            "event_weights": None if self.event_weights is None else _weights(self.event_weights),
            "event": self.event_column, "half_life": self.half_life, "now": self.now,
            "since": self.since, "until": self.until, "window": self.window, "query": self.query,
        }  # fmt: skip

    def limits(self) -> dict[str, Any]:
        """Return the parameters that leave out users and items."""
        return {name: getattr(self, name) for name in ("max_history", "min_users", "min_items")}

    def data_set(self, data: list[str]) -> str | None:
        """Return the name of the data set that DATA is, after refusing options of files; None for files."""
        from mrfrec.datasets.registry import DATA_SETS, EMBEDDED

        name, names = data[0], [*DATA_SETS, *EMBEDDED]
        if len(data) > 1 or "://" in name or Path(name).exists():
            return None
        if name not in names:
            if near := get_close_matches(name, names, 1):
                meant = f"did you mean {near[0]}?"
                raise DataError(f"there is no file {name}, and no data set of that name: {meant}")
            return None
        of_files = {field.name for field in fields(TableOptions)} - self.limits().keys()
        self.refuse(of_files, f"the data set {name}, which is read as it was prepared")
        if name in DATA_SETS:
            self.refuse(self.limits(), f"the data set {name}, which is filtered as published")
        return name

    def refuse(self, names: Iterable[str], where: str) -> None:
        """Refuse options that would change nothing."""
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name in names and value != field.default:
                option = "--leave" if field.name == "k" else f"--{field.name.replace('_', '-')}"
                raise ParameterError(option, f"left out with {where}", value)


@dataclass(frozen=True, kw_only=True)
class Data(TableOptions):
    """The data of a command that measures, and how it is split, as typed."""

    data: Annotated[
        list[str],
        Argument(
            metavar="DATA",
            help="Files, as for mrfrec fit, or the name of a data set (mrfrec paper datasets list).",
        ),
    ]
    test: Annotated[
        Path | None,
        Option(metavar="FILE", help="Train on DATA and test on FILE, which holds the items to predict."),
    ] = None
    shown: Annotated[
        Path | None,
        Option(metavar="FILE", help="With --test: the known items of its users, if they are not in DATA."),
    ] = None
    split: Annotated[
        Literal["strong", "leave-out", "time"],
        Option(help="Hold out users (Liang et al. 2018); k random items of each; or the k last by time."),
    ] = "strong"
    heldout: Annotated[
        int | None,
        Option(metavar="N", help="strong: users for validation, and for test; a tenth, at most 10,000."),
    ] = None
    hidden: Annotated[float, Option(metavar="X", help="strong: share of their items to predict.")] = 0.2
    k: Annotated[int, Option("--leave", metavar="K", help="leave-out, time: items of each user.")] = 1
    seed: Annotated[int, Option(metavar="N", help="Seed of the split.")] = 98765
    min_items: Annotated[
        int, Option(metavar="N", help="Then leave out users with fewer items. mrfrec fit keeps them: 0.")
    ] = 5
    folder: Annotated[
        Path | None, Option(metavar="FOLDER", help="Where data sets are prepared, if not the usual place.")
    ] = None

    def read(self, progress: "Progress | None") -> "Split":
        from mrfrec.evaluation import splits

        if self.test is not None:
            return self._given(progress)
        if self.shown is not None:
            advice = "Or split DATA: --split."
            raise ParameterError("--shown", "given together with --test", str(self.shown), advice)
        check_count("--leave", self.k)
        unused = ("k",) if self.split == "strong" else ("heldout", "hidden")
        self.refuse(unused, f"--split {self.split}, which has no use for it")
        events, known = self._events(progress)
        whole = events.size
        if known is None:  # a published data set is filtered as published
            try:
                events = events.filtered(min_items=self.min_items)
            except DataError as error:
                raise DataError(f"{error} To hide one item of each user: {splits.LEAVE_ONE}.") from None
        if self.split == "strong":
            usual = known or max(min(events.n_users // 10, _HELDOUT), 1)
            heldout = usual if self.heldout is None else self.heldout
            made = splits.strong_generalisation(
                events, heldout, min_items=0, hidden=self.hidden, seed=self.seed
            )
        elif self.split == "time":
            made = splits.by_time(events, self.k)
        else:
            made = splits.leave_out(events, self.k, seed=self.seed)
        return replace(made, whole=whole)

    def _events(self, progress: "Progress | None") -> "tuple[Events, int | None]":
        """Return the data as mrfrec fit reads it, and how many users of a published data set are held out.

        A limit that was typed is one that fit would get too; the default of --min-items is not.
        """
        from mrfrec import datasets
        from mrfrec.cli.show import note
        from mrfrec.datasets.registry import DATA_SETS
        from mrfrec.io.tables import read_events

        limits = self.limits()
        if self.min_items == Data.min_items:
            limits["min_items"] = 0
        if (name := self.data_set(self.data)) in DATA_SETS:
            return datasets.events(name, self.folder), DATA_SETS[name].heldout
        if name is not None:
            return datasets.events(name, self.folder).filtered(**limits), None
        events = read_events(
            self.data, self.user_column, self.item_column, self.value_column,
            self.time_column or self.split == "time", progress=progress, **self.rows(),
        )  # fmt: skip
        note_skipped(events.skipped)
        if events.repeated and events.value is None:
            note(f"left out {events.repeated:,} rows of pairs that came before")
        return events.filtered(**limits), None

    def _given(self, progress: "Progress | None") -> "Split":
        from mrfrec.evaluation import splits
        from mrfrec.io.tables import read_interactions

        def read(source: object, query: str | None = None) -> Any:
            data = read_interactions(
                source, self.user_column, self.item_column, self.value_column,
                time=self.time_column, progress=progress, **{**self.rows(), "query": query},
            )  # fmt: skip
            note_skipped(data.skipped)
            return data

        unused = ("split", "heldout", "hidden", "k", *self.limits(), "seed")
        self.refuse(unused, "--test, which gives the split as it is")
        if self.now is None and (self.half_life or self.window):
            rule = "given with --test and --half-life or --window, so that all files have the same"
            raise ParameterError("--now", rule, None)
        shown = None if self.shown is None else read(self.shown)
        return splits.given(read(self.data, self.query), read(self.test), shown)

    def files(self) -> list[Path]:
        """Return the files that are read, which must not be written to."""
        from mrfrec.io.sources import paths_of

        named = [path for name in self.data if Path(name).expanduser().exists() for path in paths_of(name)]
        return [*named, *(path for path in (self.test, self.shown) if path is not None)]

    def typed(self) -> dict[str, Any]:
        """Return the options that differ from their defaults, for reports."""
        given = {f.name: getattr(self, f.name) for f in fields(self) if getattr(self, f.name) != f.default}
        given["data"] = list(map(redacted, self.data))
        return {name: str(value) if isinstance(value, Path) else value for name, value in given.items()}

    def title(self, split: str) -> str:
        """Return the title of a figure: the data set, or the file and its folder, and below it the split."""
        from mrfrec.datasets.registry import DATA_SETS, EMBEDDED

        name, *others = map(redacted, self.data)
        path = Path(name)
        title = "/".join([*path.parent.parts[-1:], path.name.partition(".")[0]]).lstrip("/")
        if not path.exists():
            title = DATA_SETS[name].title if name in DATA_SETS else EMBEDDED.get(name, title)
        return f"{title}{f' and {len(others)} more' if others else ''}\n{split}"


def _weights(typed: str) -> dict[str, float]:
    """Parse view=0.2,buy=1."""
    weights: dict[str, float] = {}
    for part in typed.split(","):
        kind, _, number = part.rpartition("=")
        try:
            repeated = kind.strip() in weights
            weights[kind.strip()] = float(number)
        except ValueError:
            repeated = True
        if repeated or not kind.strip():
            rule = "a list of kinds, each once, and what they count, such as view=0.2,cart=0.5,buy=1"
            raise ParameterError("--event-weights", rule, typed)
    return weights


def note_skipped(skipped: dict[str, int]) -> None:
    """Say how many rows were left out, and why."""
    from mrfrec.cli.show import note

    for reason, count in skipped.items():
        note(f"left out {count:,} rows: {reason}")
