"""The data of the commands that evaluate, how it is read and split, and what else these commands share."""

import csv
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

from pydantic import Field

from mrfrec import datasets
from mrfrec.cli import note
from mrfrec.cli.options import Evaluating, Features
from mrfrec.cli.show import (
    REPORT_FORMATS,
    check_output,
    kind_of,
    output_file,
    progress_bar,
    show_report,
)
from mrfrec.core.engine import Progress
from mrfrec.data.interactions import Interactions
from mrfrec.data.reading_options import LIMITS
from mrfrec.errors import DataError, ParameterError
from mrfrec.evaluation import splits
from mrfrec.evaluation.metrics import DEFAULTS, parse, within
from mrfrec.evaluation.questions import Folds, Split
from mrfrec.evaluation.results import Evaluation
from mrfrec.evaluation.splits import SHARE
from mrfrec.figures import check_drawable
from mrfrec.io.databases import redacted
from mrfrec.io.item_table import read_item_table
from mrfrec.io.tables import check_reading, read_interactions
from mrfrec.options import USUAL, Options, Shell
from mrfrec.shown import Report

_MIN_ITEMS = 5
_OPTIONS_OF = {
    "strong": ("heldout", "hidden"),
    "leave-out": ("leave",),
    "time": ("at", "folds"),
    "last": ("leave",),
}


def data_set_named(data: list[str], reading: dict[str, Any]) -> str | None:
    """Return the name of the data set that DATA is, None for files; refuse options for files with it."""
    name = data[0]
    if len(data) > 1 and name in datasets.NAMES and not Path(name).exists():
        raise DataError(f"{name} is a data set of the package: give it alone, without {data[1]}.")
    if len(data) > 1 or Path(name).exists() or name not in datasets.NAMES:
        near = get_close_matches(name, datasets.NAMES, 1, cutoff=0.8)
        if near and not Path(name).exists():
            raise DataError(f"there is no file or data set {name}. Did you mean {near[0]}?")
        return None
    refuse({option: x for option, x in reading.items() if option not in LIMITS}, f"the data set {name}")
    return name


def refuse(options: Mapping[str, Any], where: str) -> None:
    """Refuse options that would change nothing."""
    for name, value in options.items():
        raise ParameterError(name, f"left out with {where}", value)


class Data(Options):
    """The data of a command that evaluates, and how it is split."""

    group: ClassVar[str] = "Data"

    data: Annotated[list[str], Shell(value="DATA", argument=True)] = Field(
        description="Files, as for mrfrec fit, or debian for the data set of the package."
    )
    test: Annotated[Path | None, USUAL] = Field(
        None, description="Train on DATA and test on FILE, which holds the items to predict."
    )
    shown: Path | None = Field(None, description="With --test: the known items of its users, if not in DATA.")
    split: Annotated[Literal["strong", "leave-out", "time", "last"] | None, USUAL] = Field(
        None,
        description="Hold out users (Liang et al. 2018); k random items of each; what came after a time; or "
        "the k last items of each.  [default: time where the table has times, else strong]",
    )
    at: Annotated[str | None, Shell(value="TIME|X")] = Field(
        None,
        description="time: ask about what came from this time on, or about this share of the events, the "
        "latest.  [default: 0.1]",
    )
    folds: Annotated[int | None, USUAL] = Field(
        None,
        description="time: at so many cuts, one after the other; the last is --at.  [default: one cut]",
    )
    heldout: int | None = Field(
        None, description="strong: users for validation, and test; a tenth, at most 10,000."
    )
    hidden: float = Field(0.2, description="strong: share of their items to predict.")
    leave: int = Field(1, description="leave-out, last: items of each user.")
    seed: int = Field(98765, description="Seed of the split.")
    min_items: int | None = Field(
        None,
        description="Leave out users with fewer items than this, as mrfrec fit does not.  "
        "[default: 5; time: 0]",
    )
    items: Annotated[str | None, Shell(value="FILE", usual=True)] = Field(
        None, description="A table of items, whose columns --by and rules such as --at-most name."
    )


class Input(NamedTuple):
    """The data of a command that evaluates: how it is split, the features of items, how it is read."""

    options: Data
    features: Features
    reading: dict[str, Any]

    def read(self, progress: Progress | None) -> Split | Folds:
        """Read and split the data: by time where it has times, if the options leave that open."""
        features = self.features.read()
        table = None if self.options.items is None else read_item_table(self.options.items)

        def changed(split: Split) -> Split:
            split = split if features is None else split.with_features(features)
            return split if table is None else split.with_table(table)

        split = self._split(progress)
        return split.changed(changed) if isinstance(split, Folds) else changed(split)

    def _split(self, progress: Progress | None) -> Split | Folds:
        if self.options.test is not None:
            return self._given_split(progress)
        refuse(self._changed("shown"), "a split of DATA: it belongs to --test")
        kind = self.options.split or self._told()
        if kind is not None:
            self._refuse_unused(kind)
        data = self._interactions(progress, kind)
        if kind is None:
            kind = "time" if data.times is not None else "strong"
            self._refuse_unused(kind)
        whole = data.size
        fewest = 0 if kind == "time" else _MIN_ITEMS
        try:
            data = data.filtered(
                min_items=fewest if self.options.min_items is None else self.options.min_items
            )
        except DataError as error:
            raise DataError(f"{error} To hide one item of each user: {splits.LEAVE_ONE}.") from None
        made: Split
        if kind == "strong":
            made = splits.strong_generalisation(
                data, self.options.heldout, min_items=0, hidden=self.options.hidden, seed=self.options.seed
            )
        elif kind == "time":
            at = _time_or_share(self.options.at)
            if self.options.folds is not None:
                return splits.at_time(data, at, folds=self.options.folds)
            made = splits.at_time(data, at)
        elif kind == "last":
            made = splits.last(data, self.options.leave)
        else:
            made = splits.leave_out(data, self.options.leave, seed=self.options.seed)
        return replace(made, whole=whole)

    def _told(self) -> str | None:
        """Return the split that other options belong to, if --split was not typed."""
        if self._changed("heldout", "hidden"):
            return "strong"
        return "time" if self._changed("at", "folds") else None

    def _refuse_unused(self, kind: str) -> None:
        """Refuse options of other splits."""
        every = {name for names in _OPTIONS_OF.values() for name in names}
        unused = sorted(every - {*_OPTIONS_OF[kind]})
        refuse(self._changed(*unused), f"--split {kind}")

    def _changed(self, *names: str) -> dict[str, Any]:
        """Return the values of options that are not their defaults."""
        fields = Data.model_fields
        return {name: x for name in names if (x := getattr(self.options, name)) != fields[name].default}

    def _interactions(self, progress: Progress | None, kind: str | None) -> Interactions:
        """Return the data as mrfrec fit reads it.

        A --min-items that was typed holds for fit, too; its default here does not. Times are read where the
        table has them, and must be there to split by.
        """
        reading = self.reading | self._changed("min_items")
        limits = {name: reading.pop(name) for name in LIMITS if name in reading}
        if (name := data_set_named(self.options.data, reading | limits)) is not None:
            return datasets.load(name).filtered(**limits)
        if kind in ("time", "last"):
            reading = {"time": True, **reading}
        return read_interactions(self.options.data, progress=progress, **reading, **limits)

    def _given_split(self, progress: Progress | None) -> Split:
        def read(source: object, **reading: Any) -> Any:
            return read_interactions(source, progress=progress, **reading)

        reading = self.reading
        unused = self._changed("split", "at", "folds", "heldout", "hidden", "leave", "min_items", "seed")
        refuse(unused | {name: x for name, x in reading.items() if name in LIMITS}, "--test")
        options = check_reading(reading)
        if options.window is not None and options.now is None:
            raise ParameterError("now", "given with --test and window, so that all files have the same", None)
        others = {name: x for name, x in reading.items() if name != "query"}
        shown = None if self.options.shown is None else read(self.options.shown, **others)
        return splits.given(read(self.options.data, **reading), read(self.options.test, **others), shown)

    def refuse_folds(self, where: str) -> None:
        refuse(self._changed("folds"), where)

    def inputs(self) -> list[str | Path | None]:
        """Return the names of the files that are read, which must not be written to."""
        tables = [] if data_set_named(self.options.data, {}) else self.options.data
        return [
            *tables,
            self.features.item_features,
            self.options.items,
            self.options.test,
            self.options.shown,
        ]

    def typed(self) -> dict[str, Any]:
        """Return the options that differ from their defaults, for reports."""
        options = self._changed(*Data.model_fields) | self.reading
        if self.features.item_features is not None:
            options["item_features"] = redacted(self.features.item_features)
        options["data"] = list(map(redacted, self.options.data))
        return {name: str(value) if isinstance(value, Path) else value for name, value in options.items()}


def _time_or_share(typed: str | None) -> str | float:
    if typed is None:
        return SHARE
    try:
        return float(typed)
    except ValueError:
        return typed


@contextmanager
def prepared_split(
    data: Input,
    options: Evaluating,
    plot: Path | None = None,
    *,
    defaults: Sequence[str] | None = None,
    written: Sequence[Path | None] = (),
    read: Iterable[str] = (),
) -> Iterator[tuple[Split | Folds, list[str], Progress | None]]:
    """Check the options, then read and split the data. Gives the split, the metrics and a progress callback.

    `defaults` are metrics to use in place of the usual ones if none is typed. `written` are files that are
    written beside the report, `read` others that are read.
    """
    kind_of(options.form, options.output, REPORT_FORMATS)
    if options.by is not None and data.options.items is None:
        raise ParameterError("--by", "left out without --items", options.by)
    names = (defaults or DEFAULTS) if options.metrics is None else options.metrics.split(",")
    wanted = [str(parse(name)) for name in names]
    for path in (options.output, *written):
        check_output(path, *data.inputs(), *read)
    if plot is not None:
        check_drawable(plot)
    with progress_bar() as progress:
        split = data.read(progress)
        latest = split[-1] if isinstance(split, Folds) else split
        note(f"split: {split.name}; {latest}")
        m = latest.training.n_items
        if options.metrics is None and any(parse(name).k > m for name in wanted):  # requests do not adapt
            wanted = within(wanted, m)
            note(f"there are {m:,} items: evaluating {', '.join(wanted)}")
        logging.getLogger("mrfrec").setLevel(logging.WARNING)
        yield split, wanted, progress


def show(report: Report, options: Evaluating, data: Input) -> None:
    """Write a report, with the source of its data."""
    show_report(report.on(data.typed()), options.form, options.output)


def write_per_user(evaluations: Sequence[Evaluation], path: Path) -> None:
    """Write a CSV file with the metrics of each model and user."""
    metrics = [metric for metric in evaluations[0].values if not metric.is_overall]
    with output_file(path) as file:
        writer = csv.writer(file, lineterminator="\n")
        situation = evaluations[0].situation
        cut = ["cut"] if evaluations[0].cuts else []
        apart = [] if situation is None else ["situation"]
        writer.writerow(["model", *cut, "user", *apart, *map(str, metrics)])
        for found in (cut for each in evaluations for cut in each.cuts or (each,)):
            columns = [found.per_user(metric).tolist() for metric in metrics]
            if found.situation is not None:
                columns.insert(0, found.situation.tolist())
            first = [found.model, *([found.split.removeprefix("cut at ")] if cut else [])]
            writer.writerows(
                [*first, user, *values] for user, *values in zip(found.users, *columns, strict=True)
            )
