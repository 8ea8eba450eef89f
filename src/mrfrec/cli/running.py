"""Shared by commands: checks before the work, reading and splitting data, clusters, reports."""

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mrfrec.cli.data import Data
from mrfrec.cli.options import Measuring

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
    defaults: Sequence[str] | None = None,
    written: Sequence[Path | None] = (),
) -> "Iterator[tuple[Split, list[str], Progress | None]]":
    """Check the options, then read and split the data. Gives the split, the metrics and a progress callback.

    `defaults` are the metrics where none is typed, if not the usual ones. `written` are further files.
    """
    from mrfrec.cli.show import REPORT_FORMATS, kind_of, note, progress_bar
    from mrfrec.evaluation.metrics import DEFAULTS, parse, within

    kind_of(options.form, options.output, REPORT_FORMATS)
    names = (defaults or DEFAULTS) if options.metrics is None else options.metrics.split(",")
    wanted = [str(parse(name)) for name in names]
    files = data.files()
    for path in (options.output, *written):
        check_output(path, files)
    if plot is not None:
        from mrfrec.evaluation.figures import check_drawable

        check_drawable(plot)
    with progress_bar() as progress:
        split = data.read(progress)
        note(str(split))
        m = split.training.n_items
        if options.metrics is None and any(parse(name).k > m for name in wanted):  # requests do not adapt
            wanted = within(wanted, m)
            note(f"there are {m:,} items: measuring {', '.join(wanted)}")
        logging.getLogger("mrfrec").setLevel(logging.WARNING)
        yield split, wanted, progress


@contextmanager
def resumable(path: Path | None) -> Iterator[None]:
    """Say on Ctrl-C that the same command continues from this file."""
    from mrfrec.cli.show import note
    from mrfrec.io.atomic import expanded

    try:
        yield
    except KeyboardInterrupt:
        if path is not None and expanded(path).exists():
            note(f"the same command continues from {path}")
        raise


@contextmanager
def cluster_of(cluster: str | None, fitted: "Recommender | None" = None) -> "Iterator[dict[str, Any]]":
    """Connect to the cluster that was typed, if any, to fit a model there; gives the parameters of `fit`."""
    from mrfrec.engines.cluster import connected

    if cluster is None:
        yield {}
        return
    with connected(cluster) as client:
        if fitted is not None:
            fitted.check_client(client)
        yield {"client": client}


def check_output(path: Path | None, inputs: Sequence[Path] = ()) -> None:
    """Raise if a file cannot be written, or is one of the inputs."""
    from mrfrec.io.atomic import check_writable, refuse_own_input

    if path is not None:
        refuse_own_input(path, inputs)
        check_writable(path)


def show(report: "Report", options: Measuring, data: Data) -> None:
    """Write a report, with the source of its data."""
    from mrfrec.cli.show import REPORT_FORMATS, kind_of, show_report

    kind = kind_of(options.form, options.output, REPORT_FORMATS)
    show_report(report.on(data.typed()), kind, options.output)
