"""Before and after a command measures: options checked, data split, results shown."""

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from mrfrec.cli.data import Data
from mrfrec.errors import ParameterError

if TYPE_CHECKING:
    from mrfrec.core.resources import Progress
    from mrfrec.evaluation.report import Report
    from mrfrec.evaluation.splits import Split

__all__ = ["check_output", "going_on", "naming", "report_form", "running", "show", "tell_drawn"]

_FORMS = {".json": "json", ".md": "markdown", ".txt": "table"}


@contextmanager
def running(
    data: Data,
    form: str | None,
    output: Path | None,
    metrics: str | None,
    plot: Path | None = None,
    *,
    usual: tuple[str, ...] = ("ndcg@100", "recall@20", "recall@50"),
    written: Mapping[str, Path | None] | None = None,
) -> "Iterator[tuple[Split, list[str], Progress | None]]":
    """The data, split, and what to measure; what can be refused is, before anything takes long."""
    from mrfrec.cli.show import note, progress_bar
    from mrfrec.evaluation.metrics import parse

    report_form(form, output)
    with naming("--metrics" if len(usual) > 1 else "--metric"):
        wanted = [str(parse(name)) for name in (usual if metrics is None else metrics.split(","))]
    files = data.files()
    for option, path in {"--output": output, **(written or {})}.items():
        check_output(option, path, files)
    if plot is not None:
        from mrfrec.evaluation.plots import check_drawable

        with naming("--plot"):
            check_drawable(plot)
    with progress_bar() as progress:
        split = data.read(progress)
        note(str(split))
        m = split.training.n_items
        if metrics is None and any(parse(name).k > m for name in wanted):
            kinds = [(parse(name).kind, min(parse(name).k, m)) for name in wanted]
            wanted = [f"{kind}@{k}" for kind, k in dict.fromkeys(kinds)]
            note(f"there are {m:,} items: measuring {', '.join(wanted)}")
        logging.getLogger("mrfrec").setLevel(logging.WARNING)
        yield split, wanted, progress


@contextmanager
def naming(option: str) -> Iterator[None]:
    """Errors name the option, whatever the parameter is called."""
    try:
        yield
    except ParameterError as error:
        raise error.named(option) from None


@contextmanager
def going_on(path: Path | None) -> Iterator[None]:
    """Say, when Ctrl-C ends the work, that its state is kept in this file."""
    from mrfrec.cli.show import note
    from mrfrec.io.atomic import expanded

    try:
        yield
    except KeyboardInterrupt:
        if path is not None and expanded(path).exists():
            note(f"the same command goes on from {path}")
        raise


def check_output(option: str, path: Path | None, files: Sequence[Path] = ()) -> None:
    """Refuse a file that cannot be written, or that is being read."""
    from mrfrec.io.atomic import check_writable, refuse_own_input

    if path is not None:
        with naming(option):
            refuse_own_input(path, files)
            check_writable(path)


def report_form(form: str | None, output: Path | None) -> str:
    """Of a report, by name or by the name of the file."""
    from mrfrec.cli.show import kind_of

    return kind_of(form, output, _FORMS)


def show(report: "Report", form: str | None, output: Path | None, data: Data | None) -> None:
    """Write a report, with where its data came from."""
    from mrfrec.cli.show import show_report

    if data is not None:
        report = report.on(data.facts())
    show_report(report, report_form(form, output), output)


def tell_drawn(paths: Iterable[Path]) -> None:
    """Name the figures that were drawn."""
    from mrfrec.cli.show import note

    note(f"drew {' and '.join(str(path) for path in paths)}")
