"""The data of the commands that evaluate, how it is read and split, and what else these commands share."""

import csv
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Literal

from typer import Argument

from mrfrec import datasets
from mrfrec.cli import note
from mrfrec.cli.options import Evaluating, Features, ReadingToEvaluate
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


@dataclass(frozen=True, kw_only=True)
class Data:
    """The data of a command that evaluates, and how it is split, as typed."""

    data: Annotated[
        list[str],
        Argument(
            metavar="DATA",
            help="Files, as for mrfrec fit, or debian for the data set of the package.",
        ),
    ]
    test: Annotated[Path | None, "Train on DATA and test on FILE, which holds the items to predict."] = None
    shown: Annotated[Path | None, "With --test: the known items of its users, if not in DATA."] = None
    split: Annotated[
        Literal["strong", "leave-out", "time", "last"] | None,
        "Hold out users (Liang et al. 2018); k random items of each; what came after a moment; or the k last "
        "items of each.  [default: time where the table has times, else strong]",
    ] = None
    at: Annotated[
        str | None,
        "TIME|X",
        "time: ask about what came from this time on, or about this share of the events, the latest.  "
        "[default: 0.1]",
    ] = None
    folds: Annotated[
        int | None, "time: at so many cuts, one after the other; the last is --at.  [default: one cut]"
    ] = None
    heldout: Annotated[int | None, "strong: users for validation, and test; a tenth, at most 10,000."] = None
    hidden: Annotated[float, "strong: share of their items to predict."] = 0.2
    leave: Annotated[int, "leave-out, last: items of each user."] = 1
    seed: Annotated[int, "Seed of the split."] = 98765
    min_items: Annotated[
        int | None,
        "Leave out users with fewer items than this, as mrfrec fit does not.  [default: 5; time: 0]",
    ] = None
    items: Annotated[
        str | None, "FILE", "A table of items, whose columns --by and rules such as --at-most name."
    ] = None
    features: Features = field(default_factory=Features)
    reading: ReadingToEvaluate = field(default_factory=dict)

    def read(self, progress: Progress | None) -> Split | Folds:
        """Read and split the data: by time where it has times, if the options leave that open."""
        features = self.features.read()
        table = None if self.items is None else read_item_table(self.items)

        def changed(split: Split) -> Split:
            split = split if features is None else split.with_features(features)
            return split if table is None else split.with_table(table)

        split = self._split(progress)
        return split.changed(changed) if isinstance(split, Folds) else changed(split)

    def _split(self, progress: Progress | None) -> Split | Folds:
        if self.test is not None:
            return self._given_split(progress)
        refuse(self._changed("shown"), "a split of DATA: it belongs to --test")
        kind = self.split or self._told()
        if kind is not None:
            self._refuse_unused(kind)
        data = self._interactions(progress, kind)
        if kind is None:
            kind = "time" if data.times is not None else "strong"
            self._refuse_unused(kind)
        whole = data.size
        fewest = 0 if kind == "time" else _MIN_ITEMS
        try:
            data = data.filtered(min_items=fewest if self.min_items is None else self.min_items)
        except DataError as error:
            raise DataError(f"{error} To hide one item of each user: {splits.LEAVE_ONE}.") from None
        made: Split
        if kind == "strong":
            made = splits.strong_generalisation(
                data, self.heldout, min_items=0, hidden=self.hidden, seed=self.seed
            )
        elif kind == "time":
            at = _moment_or_share(self.at)
            if self.folds is not None:
                return splits.at_time(data, at, folds=self.folds)
            made = splits.at_time(data, at)
        elif kind == "last":
            made = splits.last(data, self.leave)
        else:
            made = splits.leave_out(data, self.leave, seed=self.seed)
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
        defaults = {each.name: each.default for each in fields(self)}
        return {name: x for name in names if (x := getattr(self, name)) != defaults[name]}

    def _interactions(self, progress: Progress | None, kind: str | None) -> Interactions:
        """Return the data as mrfrec fit reads it.

        A --min-items that was typed holds for fit, too; its default here does not. Times are read where the
        table has them, and must be there to split by.
        """
        reading = self.reading | self._changed("min_items")
        limits = {name: reading.pop(name) for name in LIMITS if name in reading}
        if (name := data_set_named(self.data, reading | limits)) is not None:
            return datasets.load(name).filtered(**limits)
        if kind in ("time", "last"):
            reading = {"time": True, **reading}
        return read_interactions(self.data, progress=progress, **reading, **limits)

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
        shown = None if self.shown is None else read(self.shown, **others)
        return splits.given(read(self.data, **reading), read(self.test, **others), shown)

    def refuse_folds(self, where: str) -> None:
        refuse(self._changed("folds"), where)

    def inputs(self) -> list[str | Path | None]:
        """Return the names of the files that are read, which must not be written to."""
        tables = [] if data_set_named(self.data, {}) else self.data
        return [*tables, self.features.item_features, self.items, self.test, self.shown]

    def typed(self) -> dict[str, Any]:
        """Return the options that differ from their defaults, for reports."""
        own = (each.name for each in fields(self) if each.name not in ("reading", "features"))
        options = self._changed(*own) | self.reading
        if self.features.item_features is not None:
            options["item_features"] = redacted(self.features.item_features)
        options["data"] = list(map(redacted, self.data))
        return {name: str(value) if isinstance(value, Path) else value for name, value in options.items()}


def _moment_or_share(typed: str | None) -> str | float:
    if typed is None:
        return SHARE
    try:
        return float(typed)
    except ValueError:
        return typed


@contextmanager
def prepared_split(
    data: Data,
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
    if options.by is not None and data.items is None:
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


def show(report: Report, options: Evaluating, data: Data) -> None:
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
