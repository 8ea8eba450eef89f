"""Shared by commands: checks before the work, reading and splitting data, clusters, reports."""

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mrfrec.cli.data import Data
from mrfrec.cli.options import Measuring
from mrfrec.errors import ParameterError

READING = 0.2  # share of a command's time that is spent on reading, about

if TYPE_CHECKING:
    from mrfrec.core.engine import Progress
    from mrfrec.evaluation.report import Report
    from mrfrec.evaluation.splits import Split
    from mrfrec.models.recommender import Recommender


@contextmanager
def measuring(
    data: Data,
    options: Measuring,
    plot: Path | None = None,
    *,
    aim: str | None = None,
    written: Mapping[str, Path | None] | None = None,
) -> "Iterator[tuple[Split, list[str], Progress | None]]":
    """Check the options, then read and split the data. Gives the split, the metrics and a progress callback.

    `aim` is the default of a command that takes one metric. `written` are further files, by option.
    """
    from mrfrec.cli.show import REPORT_FORMATS, kind_of, note, progress_bar
    from mrfrec.core.progress import part_of
    from mrfrec.evaluation.metrics import DEFAULTS, parse, within

    kind_of(options.form, options.output, REPORT_FORMATS)
    default = DEFAULTS if aim is None else [aim]
    with naming("--metrics" if aim is None else "--metric"):
        names = default if options.metrics is None else options.metrics.split(",")
        wanted = [str(parse(name)) for name in names]
        if aim is not None and len(wanted) > 1:
            raise ParameterError("--metric", "one metric", options.metrics)
    files = data.files()
    for option, path in {"--output": options.output, **(written or {})}.items():
        check_output(option, path, files)
    if plot is not None:
        from mrfrec.evaluation.figures import check_drawable

        with naming("--plot"):
            check_drawable(plot)
    with progress_bar() as progress:
        split = data.read(part_of(progress, 0, READING))
        note(str(split))
        m = split.training.n_items
        if options.metrics is None and any(parse(name).k > m for name in wanted):  # requests do not adapt
            wanted = within(wanted, m)
            note(f"there are {m:,} items: measuring {', '.join(wanted)}")
        logging.getLogger("mrfrec").setLevel(logging.WARNING)
        yield split, wanted, part_of(progress, READING, 1)


@contextmanager
def naming(option: str) -> Iterator[None]:
    """Make parameter errors name the option instead of the parameter."""
    try:
        yield
    except ParameterError as error:
        raise error.named(option) from None


@contextmanager
def resumable(path: Path | None, best: Path | None = None) -> Iterator[None]:
    """Say on Ctrl-C that the same command continues from this file, and that `best` was written meanwhile."""
    from mrfrec.cli.show import note
    from mrfrec.io.atomic import expanded

    start = time.time()
    try:
        yield
    except KeyboardInterrupt:
        if best is not None and expanded(best).exists() and expanded(best).stat().st_mtime >= start:
            note(f"the best parameters so far are in {best}")
        if path is not None and expanded(path).exists():
            note(f"the same command continues from {path}")
        raise


@contextmanager
def cluster_of(cluster: str | None, fitted: "Recommender | None" = None) -> "Iterator[dict[str, Any]]":
    """Connect to the cluster that was typed, if any; gives the parameters of `fit`, `climb` and `search`.

    `fitted` is a model whose fits the workers are to share.
    """
    from mrfrec.engines.cluster import connected
    from mrfrec.models.recommender import Recommender

    if cluster is None:
        yield {}
        return
    if fitted is not None and type(fitted).check_client is Recommender.check_client:
        rule = f"left out with {type(fitted).__name__}, which is fitted on this machine"
        raise ParameterError("--cluster", rule, cluster, "Workers share the fits of MRF.")
    with connected(cluster) as client:
        yield {"client": client}


def check_output(option: str, path: Path | None, inputs: Sequence[Path] = ()) -> None:
    """Raise if a file cannot be written, or is one of the inputs."""
    from mrfrec.io.atomic import check_writable, refuse_own_input

    if path is not None:
        with naming(option):
            refuse_own_input(path, inputs)
            check_writable(path)


def show(report: "Report", options: Measuring, data: Data) -> None:
    """Write a report, with the source of its data."""
    from mrfrec.cli.show import REPORT_FORMATS, kind_of, show_report

    kind = kind_of(options.form, options.output, REPORT_FORMATS)
    show_report(report.on(data.typed()), kind, options.output)
