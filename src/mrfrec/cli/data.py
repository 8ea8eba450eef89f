"""Options that several commands share: which data, and how it is split."""

import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_type_hints

from typer import Argument, Option

from mrfrec.checks import check_count
from mrfrec.errors import DataError, ParameterError

if TYPE_CHECKING:
    from mrfrec.core.engine import Progress
    from mrfrec.data.events import Events
    from mrfrec.evaluation.splits import Split

_HELDOUT = 10_000  # users at most, if not said
_OF_FILES = (
    "user_column", "item_column", "value_column", "time_column", "min_value", "values", "duplicates",
    "on_bad", "separator", "columns", "input_format",
)  # fmt: skip


# Options that `mrfrec fit` has, too.
MaxHistory = Annotated[
    int | None, Option(metavar="N", help="Leave out users with more items than this, such as robots.")
]
MinUsers = Annotated[int, Option(metavar="N", help="Then leave out items with fewer users.")]
MinItems = Annotated[int, Option(metavar="N", help="Then leave out users with fewer items.")]
MinValue = Annotated[
    float | None, Option(metavar="X", help="Leave out rows with a value below this: 4 for ratings.")
]
Values = Annotated[bool, Option("--values", help="Learn from the values; else every pair counts 1.")]
Duplicates = Annotated[
    Literal["sum", "last", "error"],
    Option(help="Of several rows of one user and item: add the values, keep the last, or refuse."),
]
OnBad = Annotated[
    Literal["refuse", "skip"], Option(help="What to do with a row that has no id, or no number as value.")
]
Separator = Annotated[str | None, Option(metavar="TEXT", help="Between columns of a text file.")]
Columns = Annotated[
    str | None, Option(metavar="NAMES", help="Columns of a text file without a header: user,item,plays.")
]
InputFormat = Annotated[
    Literal["csv", "tsv", "jsonl", "parquet", "arrow"] | None,
    Option(help="Format of DATA; told by the name of a file, needed for standard input (-)."),
]


@dataclass(frozen=True)
class Data:
    """The data of a command and how it is split, as typed."""

    data: Annotated[
        list[str],
        Argument(
            metavar="DATA",
            help="Files, as for mrfrec fit, or the name of a data set (mrfrec paper datasets list).",
        ),
    ]
    test: Annotated[
        Path | None,
        Option(
            metavar="FILE", help="A split as given: DATA is trained on, what FILE holds is to be guessed."
        ),
    ] = None
    shown: Annotated[
        Path | None,
        Option(metavar="FILE", help="With --test: what its users are shown, where DATA has none of them."),
    ] = None
    split: Annotated[
        Literal["strong", "leave-out", "time"],
        Option(help="Hold out users (Liang et al. 2018); k random items of each; or the k last by time."),
    ] = "strong"
    heldout: Annotated[
        int | None,
        Option(metavar="N", help="strong: users for validation, and for test; a tenth, at most 10,000."),
    ] = None
    hidden: Annotated[float, Option(metavar="X", help="strong: share of their items to be guessed.")] = 0.2
    k: Annotated[int, Option("--leave", metavar="K", help="leave-out, time: items of each user.")] = 1
    max_history: MaxHistory = None
    min_users: MinUsers = 0
    min_items: MinItems = 5
    seed: Annotated[int, Option(metavar="N", help="Of the split; that of the published ones.")] = 98765
    user_column: Annotated[str | None, Option(metavar="NAME", help="Column of the users.")] = None
    item_column: Annotated[str | None, Option(metavar="NAME", help="Column of the items.")] = None
    value_column: Annotated[str | None, Option(metavar="NAME", help="Column of the values.")] = None
    time_column: Annotated[str | None, Option(metavar="NAME", help="Column of the times.")] = None
    min_value: MinValue = None
    values: Values = False
    duplicates: Duplicates = "sum"
    on_bad: OnBad = "refuse"
    separator: Separator = None
    columns: Columns = None
    input_format: InputFormat = None
    folder: Annotated[
        Path | None, Option(metavar="FOLDER", help="Where data sets are prepared, if not the usual place.")
    ] = None

    def read(self, progress: "Progress | None") -> "Split":
        """Read the data and split it."""
        from mrfrec.evaluation import splits

        if self.test is not None:
            return self._given(progress)
        if self.shown is not None:
            raise ParameterError(
                "--shown", "given together with --test", str(self.shown), "Or split DATA: --split."
            )
        check_count("--leave", self.k)
        unused = ("k",) if self.split == "strong" else ("heldout", "hidden")
        self._refuse(unused, f"--split {self.split}, which has no use for it")
        events, known = self._events(progress)
        if self.split == "strong":
            usual = known or max(min(events.n_users // 10, _HELDOUT), 1)
            heldout = usual if self.heldout is None else self.heldout
            return splits.strong_generalisation(
                events, heldout, min_items=0, min_users=0, hidden=self.hidden, seed=self.seed
            )
        if self.split == "time":
            return splits.by_time(events, self.k)
        return splits.leave_out(events, self.k, seed=self.seed)

    def _events(self, progress: "Progress | None") -> "tuple[Events, int | None]":
        """Filtered, and how many users of a data set are held out by those who published it."""
        from mrfrec import datasets
        from mrfrec.datasets.registry import DATA_SETS, EMBEDDED
        from mrfrec.io.tables import read_events

        name = self.data[0]
        names = [*DATA_SETS, *EMBEDDED]
        if len(self.data) == 1 and name in names and not Path(name).exists():
            self._refuse(_OF_FILES, f"the data set {name}, which is read as it was prepared")
            if name in EMBEDDED:
                return self._filtered(datasets.events(name, self.folder)), None
            limits = ("max_history", "min_items", "min_users")
            self._refuse(limits, f"the data set {name}, which is filtered as published")
            return datasets.events(name, self.folder), DATA_SETS[name].heldout
        near = get_close_matches(name, names, 1)
        if len(self.data) == 1 and near and not Path(name).exists():
            raise DataError(f"there is no file {name}, and no data set of that name: did you mean {near[0]}?")
        events = read_events(
            self.data, self.user_column, self.item_column, self.value_column,
            self.time_column or self.split == "time", progress=progress, **self._reading(),
        )  # fmt: skip
        _tell(events.skipped, 0 if self.values else events.repeated)
        return self._filtered(events), None

    def _filtered(self, events: "Events") -> "Events":
        return events.filtered(
            max_history=self.max_history, min_users=self.min_users, min_items=self.min_items
        )

    def _given(self, progress: "Progress | None") -> "Split":
        from mrfrec.evaluation import splits
        from mrfrec.io.tables import read_interactions

        def read(source: object) -> Any:
            data = read_interactions(
                source, self.user_column, self.item_column, self.value_column,
                progress=progress, **self._reading(),
            )  # fmt: skip
            _tell(data.skipped, 0)
            return data

        unused = (
            "split", "heldout", "hidden", "k", "max_history", "min_items", "min_users", "seed", "time_column"
        )  # fmt: skip
        self._refuse(unused, "--test, which gives the split as it is")
        shown = None if self.shown is None else read(self.shown)
        return splits.given(read(self.data), read(self.test), shown)

    def _refuse(self, names: Iterable[str], where: str) -> None:
        """What was typed and would change nothing."""
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name in names and value != field.default:
                option = "--leave" if field.name == "k" else f"--{field.name.replace('_', '-')}"
                raise ParameterError(option, f"left out with {where}", value)

    def files(self) -> list[Path]:
        """What is read, as far as it is files; not to be written over."""
        from mrfrec.io.sources import paths_of

        named = [path for name in self.data if Path(name).expanduser().exists() for path in paths_of(name)]
        return [*named, *(path for path in (self.test, self.shown) if path is not None)]

    def facts(self) -> dict[str, Any]:
        """What was typed, for whoever reads the results."""
        given = {f.name: getattr(self, f.name) for f in fields(self) if getattr(self, f.name) != f.default}
        return {name: str(value) if isinstance(value, Path) else value for name, value in given.items()}

    def _reading(self) -> dict[str, Any]:
        return {
            "min_value": self.min_value,
            "binary": not self.values,
            "duplicates": self.duplicates,
            "on_bad": self.on_bad,
            "input_format": self.input_format,
            **text_options(self.separator, self.columns),
        }


def text_options(separator: str | None, columns: str | None) -> dict[str, Any]:
    """Convert --separator and --columns to parameters of the readers."""
    return {
        "separator": separator.replace("\\t", "\t") if separator else None,
        "columns": [name.strip() for name in columns.split(",")] if columns else None,
    }


def _tell(skipped: dict[str, int], repeated: int) -> None:
    from mrfrec.cli.show import note

    for reason, count in skipped.items():
        note(f"left out {count:,} rows: {reason}")
    if repeated:
        note(f"left out {repeated:,} rows of pairs that came before")


def takes_data(command: Callable[..., None]) -> Callable[..., None]:
    """A command whose first parameter is `Data`, with the options of that in its place."""
    _, *own = inspect.signature(command).parameters.values()
    names = [field.name for field in fields(Data)]

    def typed(**given: Any) -> None:
        command(Data(**{name: given.pop(name) for name in names}), **given)

    hints = get_type_hints(Data, include_extras=True)
    kind = inspect.Parameter.KEYWORD_ONLY
    shared = [
        inspect.Parameter(field.name, kind, default=field.default, annotation=hints[field.name])
        if field.name != "data"
        else inspect.Parameter(field.name, kind, annotation=hints[field.name])
        for field in fields(Data)
    ]
    own_hints = get_type_hints(command, include_extras=True)
    mine = [p.replace(kind=kind, annotation=own_hints[p.name]) for p in own]
    parameters = [shared[0], *mine, *shared[1:]]
    typed.__name__, typed.__doc__ = command.__name__, command.__doc__
    typed.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    typed.__annotations__ = {p.name: p.annotation for p in parameters}
    return typed
