"""What the measuring commands share: checks before the work, reading and splitting data, showing reports."""

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from mrfrec.cli.data import Data
from mrfrec.errors import ParameterError

if TYPE_CHECKING:
    from mrfrec.core.engine import Progress
    from mrfrec.evaluation.report import Report
    from mrfrec.evaluation.splits import Split

_FORMATS = {".json": "json", ".md": "markdown", ".txt": "table"}
_METRICS = ("ndcg@100", "recall@20", "recall@50")


@contextmanager
def measuring(
    data: Data,
    form: str | None,
    output: Path | None,
    metrics: str | None,
    plot: Path | None = None,
    *,
    default_metrics: tuple[str, ...] = _METRICS,
    written: Mapping[str, Path | None] | None = None,
) -> "Iterator[tuple[Split, list[str], Progress | None]]":
    """Check the options, then read and split the data. Gives the split, the metrics and a progress callback.

    `written` are further files that the command writes, by option.
    """
    from mrfrec.cli.show import note, progress_bar
    from mrfrec.evaluation.metrics import parse

    report_format(form, output)
    with naming("--metrics" if len(default_metrics) > 1 else "--metric"):
        wanted = [str(parse(name)) for name in (default_metrics if metrics is None else metrics.split(","))]
    files = data.files()
    for option, path in {"--output": output, **(written or {})}.items():
        check_output(option, path, files)
    if plot is not None:
        from mrfrec.evaluation.figures import check_drawable

        with naming("--plot"):
            check_drawable(plot)
    with progress_bar() as progress:
        split = data.read(progress)
        note(str(split))
        m = split.training.n_items
        if metrics is None and any(parse(name).k > m for name in wanted):  # defaults adapt, requests do not
            kinds = [(parse(name).kind, min(parse(name).k, m)) for name in wanted]
            wanted = [f"{kind}@{k}" for kind, k in dict.fromkeys(kinds)]
            note(f"there are {m:,} items: measuring {', '.join(wanted)}")
        logging.getLogger("mrfrec").setLevel(logging.WARNING)
        yield split, wanted, progress


@contextmanager
def naming(option: str) -> Iterator[None]:
    """Make parameter errors name the option instead of the parameter."""
    try:
        yield
    except ParameterError as error:
        raise error.named(option) from None


@contextmanager
def resumable(path: Path | None) -> Iterator[None]:
    """Say on Ctrl-C that the same command continues from this file, if it exists."""
    from mrfrec.cli.show import note
    from mrfrec.io.atomic import expanded

    try:
        yield
    except KeyboardInterrupt:
        if path is not None and expanded(path).exists():
            note(f"the same command continues from {path}")
        raise


def check_output(option: str, path: Path | None, inputs: Sequence[Path] = ()) -> None:
    """Raise if a file cannot be written, or is one of the inputs."""
    from mrfrec.io.atomic import check_writable, refuse_own_input

    if path is not None:
        with naming(option):
            refuse_own_input(path, inputs)
            check_writable(path)


def report_format(form: str | None, output: Path | None) -> str:
    """Return the format of a report: as requested, or by the name of the file."""
    from mrfrec.cli.show import kind_of

    return kind_of(form, output, _FORMATS)


def show(report: "Report", form: str | None, output: Path | None, data: Data | None) -> None:
    """Write a report, with the source of its data."""
    from mrfrec.cli.show import show_report

    if data is not None:
        report = report.on(data.facts())
    show_report(report, report_format(form, output), output)


def data_title(data: Data, split: str) -> str:
    """Return the title of a figure: the data set, or the file and its folder, and below it the split."""
    from mrfrec.datasets.registry import DATA_SETS, EMBEDDED

    name = data.data[0]
    if name in DATA_SETS and not Path(name).exists():
        title = DATA_SETS[name].title
    elif name in EMBEDDED and not Path(name).exists():
        title = EMBEDDED[name]
    else:
        path = Path(name)
        title = "/".join([*path.parent.parts[-1:], path.name.partition(".")[0]]).lstrip("/")
    more = f" and {len(data.data) - 1} more" if len(data.data) > 1 else ""
    return f"{title}{more}\n{split}"


def note_plots(paths: Iterable[Path]) -> None:
    """Name the figures that were drawn."""
    from mrfrec.cli.show import note

    note(f"drew {' and '.join(str(path) for path in paths)}")
