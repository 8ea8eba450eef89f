"""Reproduce the paper's tables: published numbers next to measured ones."""

import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from os import PathLike
from typing import Any

import numpy as np

from mrfrec.core.engine import Progress
from mrfrec.datasets import Check, available, split, verify
from mrfrec.datasets.files import advice
from mrfrec.datasets.registry import DATA_SETS
from mrfrec.errors import DataError, MemoryPlanError, MissingLibraryError, NumericalError, ParameterError
from mrfrec.evaluation.figures import check_drawable
from mrfrec.evaluation.metrics import DEFAULTS, Mean
from mrfrec.evaluation.protocol import Comparison, Evaluation, evaluate, fit_and_measure
from mrfrec.evaluation.report import Report, Section, of_evaluations, percent, seconds_text
from mrfrec.evaluation.splits import Split
from mrfrec.models.mrf import MRF
from mrfrec.models.recommender import Recommender
from mrfrec.models.registry import build, model_class
from mrfrec.paper.plots import plot_exposure, plot_low_rank, plot_times
from mrfrec.paper.published import NOTES, TABLE_1, TABLE_2, WITHOUT_PARAMETERS, Published
from mrfrec.paper.side_checks import exposure, low_rank
from mrfrec.paper.tables import of_exposure, of_low_rank
from mrfrec.paper.tradeoff import AS_PUBLISHED, share_kept

EXPERIMENTS = ("table1", "table2", "lowrank", "exposure")
_PROTOCOL: dict[str, Any] = {"metrics": DEFAULTS, "ties": AS_PUBLISHED["ties"]}
_OF_ROW = ("sparsity", "threshold", "r")  # parameters of an MRF that its row of a table names

Path = str | PathLike[str]
Parameters = Mapping[str, Any]


def reproduce(
    what: str,
    names: Iterable[str] | None = None,
    *,
    models: Iterable[str] | None = None,
    parameters: Mapping[str, Mapping[str, Parameters]] | None = None,
    folder: Path | None = None,
    machine: Parameters | None = None,
    plot: Path | None = None,
    progress: Progress | None = None,
    tell: Callable[[str], None] = lambda _: None,
) -> Report:
    """Run an experiment of the paper on those of its data sets that are prepared.

    The report tells how to prepare the data sets that are missing. It has no published numbers of a data set
    whose counts are not the published ones.

    Parameters
    ----------
    what
        "table1", "table2", "lowrank" or "exposure".
    names
        Data sets; all of the experiment's if None.
    models
        Kinds of models to measure for a table; all if None.
    parameters
        Parameters to change, by data set and kind of model: {"ml-20m": {"WMF": {"factors": 200}}}.
    folder
        Where data sets are prepared, as in `datasets.prepare`.
    machine
        Parameters of all models that change no result, such as threads.
    plot
        A file to draw: for "table2" accuracy against training time, for "lowrank" accuracy over the rank, for
        "exposure" recommendations by popularity. Needs a single data set.
    tell
        Called with a line for each model of a table once it is measured, since tables take long.
    """
    rows, changes = _rows(what, names, models), _checked(parameters or {})

    def build_row(name: str, row: Published) -> Recommender:
        return _built(row, changes.get(name, {}).get(row.kind, {}), machine)

    for name in rows:
        for row in rows[name]:
            build_row(name, row)  # a wrong parameter shows before anything is trained
    prepared = {listed.name for listed in available(folder) if listed.prepared}
    chosen = [name for name in rows if name in prepared]
    missing = [DATA_SETS[name] for name in rows if name not in prepared]
    notes = [f"{known.title}: not prepared. {advice(known, folder)}" for known in missing]
    if not chosen:
        raise DataError("none of the data sets is prepared. " + " ".join(notes))
    if plot is not None:
        _check_plot(plot, what, chosen)

    run = {"lowrank": _low_rank, "exposure": _exposure}.get(what, _table)
    sections, data, verified = [], {}, []
    for name in chosen:
        title = DATA_SETS[name].title
        try:
            wrong = [check for check in verify(name, folder) if not check.ok]
            parts = split(name, folder)
        except DataError as error:  # a damaged file, or too few users
            notes.append(f"{title}: {error}")
            continue
        if wrong:
            notes.append(f"{title}: {_difference(wrong)}")
            tell(notes[-1])
        if not _has_other_counts(wrong):
            verified.append(name)
        unknown = {row.kind for row in rows[name]} & set(WITHOUT_PARAMETERS) - changes.get(name, {}).keys()
        if what == "table1" and unknown:
            notes.append(f"{title}: {_tuning_advice(name, sorted(unknown), folder)}")
        build_here, with_density = partial(build_row, name), what == "table2"
        task = _Task(rows[name], parts, build_here, name in verified, with_density, plot, progress, tell)
        page, failures = run(task)
        notes += [f"{title}, {failure}" for failure in failures]
        if page is not None:
            sections += [replace(section, title=title) for section in page.sections]
            data[name] = {"verified": name in verified, **page.data}
    if "msd" in verified or (verified and what == "table1"):  # the other notes are about MSD
        notes.insert(0, NOTES[what])
    return Report([], sections, {"experiment": what, "data_sets": data, "notes": notes}, notes=notes)


def _rows(what: str, names: Iterable[str] | None, models: Iterable[str] | None) -> dict[str, list[Published]]:
    """Return the rows of an experiment by data set."""
    if what not in EXPERIMENTS:
        raise ParameterError("what", f"one of {', '.join(EXPERIMENTS)}", what)
    tables = TABLE_2 if what == "table2" else TABLE_1
    chosen = list(tables) if names is None else list(names)
    for name in chosen:
        if name not in tables:
            raise ParameterError("names", f"among {', '.join(tables)} for {what}", name)
    if models is None:
        return {name: list(tables[name]) for name in chosen}
    if what not in ("table1", "table2"):
        raise ParameterError("models", f"left out with {what}", list(models))
    known = dict.fromkeys(row.kind for name in chosen for row in tables[name])
    kinds = {model_class(kind).__name__ for kind in models}
    for kind in kinds - set(known):
        raise ParameterError("models", f"among {', '.join(known)} for {what}", kind)
    return {name: [row for row in tables[name] if row.kind in kinds] for name in chosen}


def _check_plot(path: Path, what: str, names: Sequence[str]) -> None:
    if what == "table1":
        raise ParameterError("plot", "left out with table1", str(path))
    if len(names) > 1:
        rule = f"used with one data set, such as {names[-1]}, of those prepared: {', '.join(names)}"
        raise ParameterError("plot", rule, str(path))
    check_drawable(path)


def _checked(parameters: Mapping[str, Mapping[str, Parameters]]) -> dict[str, dict[str, Parameters]]:
    """Return parameters by data set and kind of model, the kinds as their classes are called."""
    kinds = [row.kind for row in TABLE_1["msd"]]
    rule = f"by data set ({', '.join(TABLE_1)}), then by model ({', '.join(kinds)})"
    found: dict[str, dict[str, Parameters]] = {}
    for name, changed in parameters.items():
        if name not in TABLE_1 or not isinstance(changed, Mapping):
            raise ParameterError("parameters", rule, name)
        found[name] = {model_class(kind).__name__: values for kind, values in changed.items()}
        for kind, values in found[name].items():
            if kind not in kinds or not isinstance(values, Mapping):
                raise ParameterError("parameters", rule, f"{name}, {kind}")
    return found


def _built(row: Published, changed: Parameters, machine: Parameters | None) -> Recommender:
    """Build the model of a row; refuse changes that would make it the model of another row."""
    model, published = (build(row.kind, {**row.parameters, **more}, machine) for more in (changed, {}))
    for name in _OF_ROW if row.kind == "MRF" else ():
        if model.parameters[name] != published.parameters[name]:
            rule = f"without {name}, which the row {row.model!r} has"
            raise ParameterError("parameters", rule, model.parameters[name])
    return model


def _has_other_counts(wrong: Iterable[Check]) -> bool:
    return any(isinstance(check.expected, int) for check in wrong)


def _difference(wrong: Sequence[Check]) -> str:
    """Say how data differs from the published data."""
    verdict = "the counts are the published ones, but the split is another"
    if _has_other_counts(wrong):
        verdict = "this is not the published data, so that published numbers are left out"
    texts = [f"{check.what}: expected {_text(check.expected)}, found {_text(check.found)}" for check in wrong]
    return f"{verdict}. {'; '.join(texts)}."


def _text(value: int | str | None) -> str:
    return f"{value:,}" if isinstance(value, int) else "unknown" if value is None else value


def _tuning_advice(name: str, kinds: Sequence[str], folder: Path | None) -> str:
    """Say which models have default parameters, and how the last of them gets better ones."""
    at = "" if folder is None else f" --folder {shlex.quote(str(folder))}"
    kind, file = kinds[-1], f"{name}-{kinds[-1].lower()}.json"
    return (
        f"the parameters of {', '.join(kinds)} are not published; these are mrfrec's defaults. To find "
        f"better ones and use them: mrfrec tune {name}{at} --model {kind} -o {file} && mrfrec paper "
        f"reproduce table1 --data {name}{at} --model {kind} --params {file}"
    )


@dataclass(frozen=True)
class _Task:
    """What to measure on one data set."""

    rows: Sequence[Published]
    split: Split
    build: Callable[[Published], Recommender]
    is_published: bool  # whether published numbers are of this data
    with_density: bool
    plot: Path | None
    progress: Progress | None
    tell: Callable[[str], None]


Outcome = tuple[Report | None, list[str]]  # a report, and the models that failed, with reasons
_FAILURES = (DataError, MemoryPlanError, MissingLibraryError, NumericalError)


def _table(task: _Task) -> Outcome:
    """Measure all models; one that cannot be trained here is noted and does not stop the others."""
    measured: dict[str, Evaluation] = {}
    density: dict[str, dict[str, float]] = {}
    failures = []
    for row in task.rows:
        model = task.build(row)
        try:
            found = fit_and_measure(model, task.split, name=row.model, **_PROTOCOL, progress=task.progress)
        except _FAILURES as error:
            failures.append(f"{row.model}: {error}")
            continue
        measured[row.model] = found
        if task.with_density and isinstance(model, MRF):
            density[row.model] = _density(model)
        values = ", ".join(f"{metric} {_short(found.mean(metric))}" for metric in found.values)
        seconds = seconds_text(found.seconds["training"])
        task.tell(f"{row.model} on {task.split.training.n_items:,} items: {values}; trained in {seconds}")
    if not measured:
        return None, failures
    page = of_evaluations(list(measured.values()))
    for data in page.data["models"]:
        data |= density.get(data["name"], {})
    if task.plot is not None:
        lines: dict[str, dict[str, Evaluation]] = {}
        for name, found in measured.items():
            line, _, r = name.partition(", r = ")
            lines.setdefault(line, {})[f"r = {r}" if r else ""] = found
        plot_times(lines, DEFAULTS[0], task.plot)
    return replace(page, sections=[_side_by_side(task, measured, density)]), failures


def _density(model: MRF) -> dict[str, float]:
    """Return the share of the weights that are kept, and of the items that have as many as allowed."""
    found = {"share": share_kept(model)}
    if model.pattern_ is not None:
        found["capped"] = float(np.mean(np.diff(model.pattern_.indptr) >= model.max_neighbors))
    return found


def _low_rank(task: _Task) -> Outcome:
    row, data = task.rows[0], task.split
    model, m = task.build(row), data.training.n_items
    assert isinstance(model, MRF)
    ranks = [rank for rank in (200, 1000, 3000) if rank < m] or [max(m // 2, 1)]
    try:
        model.fit(data.training, progress=task.progress)
        found = low_rank(model, data.test, ranks, **_PROTOCOL, split=data.name, progress=task.progress)
    except MemoryPlanError as error:
        return None, [f"{row.model}: {error}"]
    if task.plot is not None:
        plot_low_rank(found, DEFAULTS[0], task.plot)
    return of_low_rank(found), []


def _exposure(task: _Task) -> Outcome:
    """Compare the MRF with Mult-VAE."""
    found, failures = [], []
    for row in (row for row in task.rows if row.kind in ("MRF", "MultVAE")):
        try:
            model = task.build(row)
            found.append(evaluate(model, task.split, name=row.model, **_PROTOCOL, progress=task.progress))
        except _FAILURES as error:
            failures.append(f"{row.model}: {error}")
    if not found:
        return None, failures
    comparison = Comparison(tuple(found))
    shares = exposure(comparison, task.split.test)
    if task.plot is not None:
        plot_exposure(shares, task.plot)
    page = of_exposure(comparison, shares)
    return replace(page, sections=page.sections[-1:]), failures


def _side_by_side(
    task: _Task, measured: Mapping[str, Evaluation], density: Mapping[str, Mapping[str, float]]
) -> Section:
    """Put published and measured numbers next to each other."""
    titles = ["nDCG@100", "Recall@20", "Recall@50"]
    columns = ["model", *(f"{title}, {which}" for title in titles for which in ("published", "measured"))]
    columns += ["training, published", "training, measured"]
    if task.with_density:
        columns += ["weights kept", "items with max_neighbors weights"]
    table = []
    for row in task.rows:
        cells, found = [row.model], measured.get(row.model)
        published = ["did not finish"] * 3 if row.values is None else [f"{value:.3f}" for value in row.values]
        for value, metric in zip(published, DEFAULTS, strict=True):
            cells.append(value if task.is_published else "–")
            cells.append("–" if found is None else _short(found.mean(metric)))
        cells.append(row.training if task.is_published else "–")
        cells.append(seconds_text(None if found is None else found.seconds["training"]))
        if task.with_density:
            own = density.get(row.model, {})
            cells += [percent(own[name], 2) if name in own else "–" for name in ("share", "capped")]
        table.append(cells)
    return Section(columns, table)


def _short(mean: Mean) -> str:
    return f"{mean.mean:.3f} ± {mean.error:.3f}"
