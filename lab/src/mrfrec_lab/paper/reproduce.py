"""Reproduce the paper's tables: published numbers next to measured ones."""

import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from os import PathLike
from typing import Any

from mrfrec.core.progress import Progress
from mrfrec.errors import DataError, MemoryPlanError, MissingLibraryError, NumericalError, ParameterError
from mrfrec.evaluation.metrics import DEFAULTS, Mean
from mrfrec.evaluation.protocol import Comparison, Evaluation, evaluate_each
from mrfrec.evaluation.questions import Split
from mrfrec.evaluation.report import of_evaluations, percent
from mrfrec.figures import check_drawable
from mrfrec.models.mrf.field import GaussianField
from mrfrec.models.recommender import Recommender
from mrfrec.models.registry import build, model_class
from mrfrec.shown import Report, Section, seconds_text
from mrfrec_lab.datasets import Check, available, split, verify
from mrfrec_lab.datasets.files import advice
from mrfrec_lab.datasets.registry import DATA_SETS
from mrfrec_lab.paper.published import NOTES, TABLE_1, TABLE_2, WITHOUT_PARAMETERS, Published
from mrfrec_lab.paper.results import of_exposure, of_low_rank, plot_exposure, plot_low_rank, plot_times
from mrfrec_lab.paper.side_checks import exposure, low_rank
from mrfrec_lab.paper.tradeoff import AS_PUBLISHED

EXPERIMENTS = ("table1", "table2", "lowrank", "exposure")
_PROTOCOL: dict[str, Any] = {"metrics": DEFAULTS, "ties": AS_PUBLISHED["ties"]}
_FAILURES = (DataError, MemoryPlanError, MissingLibraryError, NumericalError)  # that stop one model alone
_OF_ROW = ("sparsity", "r")  # parameters of an MRF that its row of a table names

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
        Kinds of models to evaluate for a table; all if None.
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
        Called with a line for each model once it is evaluated, since that takes long.
    """
    rows = _rows(what, names, models)
    changes = _checked(parameters or {})
    # All models are built first, so that a wrong parameter shows before anything is read or trained.
    built = {
        name: {row.model: _built(row, changes.get(name, {}).get(row.kind, {}), machine) for row in rows[name]}
        for name in rows
    }
    prepared = {listed.name for listed in available(folder) if listed.prepared}
    chosen = [name for name in rows if name in prepared]
    missing = [DATA_SETS[name] for name in rows if name not in prepared]
    notes = [f"{known.title}: not prepared. {advice(known, folder)}" for known in missing]
    if not chosen:
        raise DataError("none of the data sets is prepared. " + " ".join(notes))
    if plot is not None:
        if what == "table1" or len(chosen) > 1:
            one = f"used with one data set, such as {chosen[-1]}, of those prepared: {', '.join(chosen)}"
            raise ParameterError("plot", "left out with table1" if what == "table1" else one, str(plot))
        check_drawable(plot)

    sections = []
    data = {}
    for name in chosen:
        title = DATA_SETS[name].title
        try:
            wrong = [check for check in verify(name, folder) if not check.ok]
            parts = split(name, folder)
        except DataError as error:  # a damaged file, or too few users
            notes.append(f"{title}: {error}")
            continue
        verified = not any(isinstance(check.expected, int) for check in wrong)
        if wrong:
            notes.append(f"{title}: {_difference(wrong, verified)}")
            tell(notes[-1])
        unknown = {row.kind for row in rows[name]} & set(WITHOUT_PARAMETERS) - changes.get(name, {}).keys()
        if what == "table1" and unknown:
            notes.append(f"{title}: {_tuning_advice(name, sorted(unknown), folder)}")
        if verified and (what == "table1" or name == "msd") and NOTES[what] not in notes:
            notes.insert(0, NOTES[what])  # those of the others are about MSD
        comparison = _evaluated(what, built.pop(name), parts, progress, tell)  # frees what is fitted
        notes += [f"{title}, {model}: {error}" for model, error in comparison.failures.items()]
        if comparison:
            page = _page(what, comparison, parts, plot)
            if what in ("table1", "table2"):
                page = replace(page, sections=[_side_by_side(what, rows[name], comparison, verified)])
            sections.append(replace(page.sections[-1], title=title))
            data[name] = {"verified": verified, **page.data}
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
    known = list(dict.fromkeys(row.kind for name in chosen for row in tables[name]))
    kinds = set({"lowrank": ["MRF"], "exposure": ["MRF", "MultVAE"]}.get(what, known))
    if models is not None:
        if what not in ("table1", "table2"):
            raise ParameterError("models", f"left out with {what}", list(models))
        kinds = {model_class(kind).__name__ for kind in models}
        for kind in kinds.difference(known):
            raise ParameterError("models", f"among {', '.join(known)} for {what}", kind)
    return {name: [row for row in tables[name] if row.kind in kinds] for name in chosen}


def _checked(parameters: Mapping[str, Mapping[str, Parameters]]) -> dict[str, dict[str, Parameters]]:
    """Return parameters by data set and kind of model, the kinds as their classes are called."""
    kinds = [row.kind for row in TABLE_1["msd"]]
    rule = f"by data set ({', '.join(TABLE_1)}), then by model ({', '.join(kinds)})"
    checked: dict[str, dict[str, Parameters]] = {}
    for name, changed in parameters.items():
        if name not in TABLE_1 or not isinstance(changed, Mapping):
            raise ParameterError("parameters", rule, name)
        checked[name] = {model_class(kind).__name__: values for kind, values in changed.items()}
        for kind, values in checked[name].items():
            if kind not in kinds or not isinstance(values, Mapping):
                raise ParameterError("parameters", rule, f"{name}, {kind}")
    return checked


def _built(row: Published, changed: Parameters, machine: Parameters | None) -> Recommender:
    """Build the model of a row; refuse changes that would make it the model of another row."""
    model, published = (build(row.kind, {**row.parameters, **more}, machine) for more in (changed, {}))
    for name in _OF_ROW if row.kind == "MRF" else ():
        if model.parameters[name] != published.parameters[name]:
            rule = f"without {name}, which the row {row.model!r} has"
            raise ParameterError("parameters", rule, model.parameters[name])
    return model


def _difference(wrong: Iterable[Check], verified: bool) -> str:
    """Say how data differs from the published data."""
    verdict = "the counts are the published ones, but the split is another"
    if not verified:
        verdict = "this is not the published data, so that published numbers are left out"
    pairs = [(check.what, *check.texts) for check in wrong]
    texts = [f"{what}: expected {known}, found {found or 'unknown'}" for what, known, found in pairs]
    return f"{verdict}. {'; '.join(texts)}."


def _tuning_advice(name: str, kinds: Sequence[str], folder: Path | None) -> str:
    """Say which models have default parameters, and how the last of them gets better ones."""
    at = "" if folder is None else f" --folder {shlex.quote(str(folder))}"
    return (
        f"the parameters of {', '.join(kinds)} are not published; these are mrfrec's defaults. To find "
        f"better ones: python -m mrfrec_lab table1 {name}{at}"
    )


def _evaluated(
    what: str,
    models: Mapping[str, Recommender],
    data: Split,
    progress: Progress | None,
    tell: Callable[[str], None],
) -> Comparison:
    """Evaluate all models; one that cannot be trained here does not stop the others."""

    def tell_of(evaluation: Evaluation) -> None:
        values = ", ".join(f"{metric} {_short(evaluation.mean(metric))}" for metric in evaluation.values)
        seconds = seconds_text(evaluation.seconds["training"])
        tell(f"{evaluation.model} on {data.training.n_items:,} items: {values}; trained in {seconds}")

    if what != "lowrank":
        return evaluate_each(models, data, **_PROTOCOL, progress=progress, skip=_FAILURES, tell=tell_of)
    ((name, model),) = models.items()
    assert isinstance(model, GaussianField)
    try:
        model.fit(data.training, progress=progress)
        return low_rank(model, data.test, **_PROTOCOL, split=data.name, progress=progress)
    except MemoryPlanError as error:
        return Comparison((), {name: error})


def _page(what: str, comparison: Comparison, data: Split, plot: Path | None) -> Report:
    """Return a report whose last section is the experiment's, and draw it if there is a file for that."""
    if what == "lowrank":
        if plot is not None:
            plot_low_rank(comparison, DEFAULTS[0], plot)
        return of_low_rank(comparison)
    if what == "exposure":
        shares = exposure(comparison, data.test)
        if plot is not None:
            plot_exposure(shares, plot)
        return of_exposure(comparison, shares)
    if plot is not None:
        plot_times(comparison.evaluations, DEFAULTS[0], plot)
    return of_evaluations(comparison.evaluations)


def _side_by_side(what: str, rows: Sequence[Published], comparison: Comparison, verified: bool) -> Section:
    """Put published and measured numbers next to each other."""
    titles = ["nDCG@100", "Recall@20", "Recall@50"]
    columns = ["model", *(f"{title}, {which}" for title in titles for which in ("published", "measured"))]
    columns += ["training, published", "training, measured"]
    if what == "table2":
        columns += ["weights kept", "items with max_neighbors weights"]
    table = []
    for row in rows:
        cells = [row.model]
        found = comparison.get(row.model)
        published = ["did not finish"] * 3 if row.values is None else [f"{value:.3f}" for value in row.values]
        for value, metric in zip(published, DEFAULTS, strict=True):
            cells.append(value if verified else "–")
            cells.append("–" if found is None else _short(found.mean(metric)))
        cells.append(row.training if verified else "–")
        cells.append(seconds_text(None if found is None else found.seconds["training"]))
        if what == "table2":
            weights = {} if found is None else found.facts["weights"]
            cells += [percent(weights[name], 2) if name in weights else "–" for name in ("share", "capped")]
        table.append(cells)
    return Section(columns, table)


def _short(mean: Mean) -> str:
    return f"{mean.mean:.3f} ± {mean.error:.3f}"
