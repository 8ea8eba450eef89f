"""Reproduce the paper's tables: published numbers next to measured ones.

The published numbers are from Tables 1 and 2 of Steck (2019); those of the other models stem from Liang et
al. (2018). The parameters of the MRF are from the notebook published with the paper, those of Mult-VAE and
Mult-DAE from Liang et al.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from os import PathLike
from typing import Any

from mrfrec.core.engine import Progress
from mrfrec.datasets import available, split
from mrfrec.datasets.files import advice
from mrfrec.datasets.registry import DATA_SETS
from mrfrec.errors import DataError, MemoryPlanError, MissingLibraryError, NumericalError, ParameterError
from mrfrec.evaluation.metrics import DEFAULTS, Mean
from mrfrec.evaluation.protocol import Comparison, Evaluation, evaluate
from mrfrec.evaluation.report import Report, Section, of_evaluations, seconds_text
from mrfrec.evaluation.splits import Split
from mrfrec.models.mrf import MRF, PAPER
from mrfrec.models.recommender import Recommender
from mrfrec.models.registry import build, model_class
from mrfrec.paper.side_checks import exposure, low_rank
from mrfrec.paper.tables import of_exposure, of_low_rank

EXPERIMENTS = ("table1", "table2", "lowrank", "exposure")


@dataclass(frozen=True)
class Published:
    """A row of a table of the paper, and how to train its model here."""

    model: str
    values: tuple[float, float, float] | None  # nDCG@100, Recall@20, Recall@50; None: did not finish
    training: str = "–"
    kind: str = "MRF"
    parameters: Mapping[str, Any] = field(default_factory=dict)


Values = tuple[float, float, float]


def _dense(values: Values, training: str, l2: float) -> Published:
    parameters = {**PAPER, "l2": l2, "sparsity": None}
    return Published("MRF, dense", values, training, "MRF", parameters)


def _sparse(share: str, r: float, values: Values, training: str, threshold: float) -> Published:
    parameters = {**PAPER, "l2": 1.0, "threshold": threshold, "max_neighbors": 1000, "r": r}
    return Published(f"MRF, {share} sparse, r = {r:g}", values, training, "MRF", parameters)


def _vae(values: Values, training: str, steps: int) -> Published:
    """Mult-VAE as published: β grows by 1/200,000 in each step to 0.2; `steps` make an epoch."""
    return Published("Mult-VAE", values, training, "MultVAE", {"kl_cap": 0.2, "kl_epochs": 40_000 / steps})


TABLE_1 = {
    "ml-20m": (
        _dense((0.423, 0.392, 0.522), "2 min 0 s", 6.0),
        _vae((0.426, 0.395, 0.537), "28 min 10 s", 234),
        Published("Mult-DAE", (0.419, 0.387, 0.524), kind="MultDAE"),
        Published("CDAE", (0.418, 0.391, 0.523), kind="CDAE"),
        Published("SLIM", (0.401, 0.370, 0.495), kind="SLIM"),
        Published("WMF", (0.386, 0.360, 0.498), kind="WMF"),
    ),
    "netflix": (
        _dense((0.397, 0.364, 0.448), "1 min 30 s", 6.0),
        _vae((0.386, 0.351, 0.444), "1 h 26 min", 767),
        Published("Mult-DAE", (0.380, 0.344, 0.438), kind="MultDAE"),
        Published("CDAE", (0.376, 0.343, 0.428), kind="CDAE"),
        Published("SLIM", (0.379, 0.347, 0.428), kind="SLIM"),
        Published("WMF", (0.351, 0.316, 0.404), kind="WMF"),
    ),
    "msd": (
        _dense((0.391, 0.334, 0.430), "15 min 45 s", 3.0),
        _vae((0.316, 0.266, 0.364), "4 h 30 min", 943),
        Published("Mult-DAE", (0.313, 0.266, 0.363), kind="MultDAE"),
        Published("CDAE", (0.237, 0.188, 0.283), kind="CDAE"),
        Published("SLIM", None, kind="SLIM"),
        Published("WMF", (0.257, 0.211, 0.312), kind="WMF"),
    ),
}
TABLE_2 = {
    "msd": (
        _dense((0.391, 0.334, 0.430), "15 min 45 s", 3.0),
        _sparse("0.5 %", 0.0, (0.390, 0.333, 0.427), "21 min 12 s", 0.11),
        _sparse("0.5 %", 0.1, (0.387, 0.331, 0.424), "3 min 27 s", 0.11),
        _sparse("0.5 %", 0.5, (0.385, 0.330, 0.424), "2 min 1 s", 0.11),
        _sparse("0.1 %", 0.0, (0.385, 0.330, 0.421), "3 min 7 s", 0.375),
        _sparse("0.1 %", 0.1, (0.382, 0.327, 0.417), "1 min 10 s", 0.375),
        _sparse("0.1 %", 0.5, (0.381, 0.327, 0.417), "39 s", 0.375),
    )
}
_PROTOCOL: dict[str, Any] = {"metrics": DEFAULTS, "ties": "index"}  # as in the published code
_NOTES = {
    "table1": "Published standard errors: about 0.002 (ML-20M), 0.001 (Netflix), 0.001 (MSD). Published "
    "times: 16 vCPUs; those of Mult-VAE with a GPU.",
    "table2": "Published standard error: about 0.001. Published times: 16 vCPUs.",
    "lowrank": "Published: on MSD even 3,000 dimensions give about 10 % less nDCG@100.",
    "exposure": "Published, in words: on MSD the full-rank model recommends long-tail items considerably "
    "more often than Mult-VAE does.",
}  # fmt: skip
_NOT_PUBLISHED = ("SLIM", "WMF", "CDAE")  # models whose parameters are not published


def reproduce(
    what: str,
    names: Iterable[str] | None = None,
    *,
    models: Iterable[str] | None = None,
    parameters: Mapping[str, Mapping[str, Any]] | None = None,
    folder: "str | PathLike[str] | None" = None,
    machine: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
    tell: Callable[[str], None] = lambda _: None,
) -> Report:
    """Run an experiment of the paper on those of its data sets that are prepared.

    The report tells how to prepare the data sets that are missing.

    Parameters
    ----------
    what
        "table1", "table2", "lowrank" or "exposure".
    names
        Data sets; all of the experiment's if None.
    models
        Kinds of models to measure for a table; all if None.
    parameters
        Parameters to change, by kind of model: {"WMF": {"factors": 200}}.
    folder
        Where data sets are prepared, as in `datasets.prepare`.
    machine
        Parameters of all models that change no result, such as threads.
    tell
        Called with a line for each model of a table once it is measured, since tables take long.
    """
    if what not in EXPERIMENTS:
        raise ParameterError("what", f"one of {', '.join(EXPERIMENTS)}", what)
    tables = TABLE_2 if what == "table2" else TABLE_1
    chosen = list(tables) if names is None else list(names)
    for name in chosen:
        if name not in tables:
            raise ParameterError("names", f"among {', '.join(tables)} for {what}", name)
    known = dict.fromkeys(row.kind for name in chosen for row in tables[name])
    kinds = set(known)
    if models is not None:
        if what not in ("table1", "table2"):
            raise ParameterError("models", f"left out with {what}", list(models))
        kinds = {model_class(kind).__name__ for kind in models}
        for kind in kinds - set(known):
            raise ParameterError("models", f"among {', '.join(known)} for {what}", kind)
    changes = {model_class(kind).__name__: dict(changed) for kind, changed in (parameters or {}).items()}

    def build_row(row: Published) -> Recommender:
        return build(row.kind, {**row.parameters, **changes.get(row.kind, {})}, machine)

    rows = {name: [row for row in tables[name] if row.kind in kinds] for name in chosen}
    for row in (row for name in chosen for row in rows[name]):
        build_row(row)  # a wrong parameter shows before anything is trained
    prepared = {listed.name for listed in available(folder) if listed.prepared}
    missing = [
        f"{DATA_SETS[name].title}: not prepared. {advice(DATA_SETS[name], folder)}"
        for name in chosen
        if name not in prepared
    ]
    if len(missing) == len(chosen):
        raise DataError("none of the data sets is prepared. " + " ".join(missing))
    notes = [_NOTES[what], *missing]
    unknown = [kind for kind in _NOT_PUBLISHED if kind in kinds]
    if what == "table1" and unknown:
        notes.insert(
            1,
            f"The parameters of {', '.join(unknown)} are not published: these are mrfrec's defaults. To find "
            f"better ones: mrfrec tune NAME --model {unknown[-1]} -o best.json.",
        )
    run = {"lowrank": _low_rank, "exposure": _exposure}.get(what, _table)
    sections, data = [], {}
    for name in (name for name in chosen if name in prepared):
        title = DATA_SETS[name].title
        page, failures = run(rows[name], split(name, folder), build_row, progress, tell)
        notes += [f"{title}, {failure}" for failure in failures]
        if page is not None:
            sections += [replace(section, title=title) for section in page.sections]
            data[name] = page.data
    return Report([], sections, {"experiment": what, "data_sets": data, "notes": notes}, notes=notes)


Outcome = tuple[Report | None, list[str]]  # a report, and the models that failed, with reasons
Build = Callable[[Published], Recommender]
Tell = Callable[[str], None]
_FAILURES = (DataError, MemoryPlanError, MissingLibraryError, NumericalError)


def _table(
    rows: Sequence[Published], data: Split, build_row: Build, progress: Progress | None, tell: Tell
) -> Outcome:
    """Measure all models; one that cannot be trained here is noted and does not stop the others."""
    measured, failures = {}, []
    for row in rows:
        try:
            evaluation = evaluate(build_row(row), data, name=row.model, **_PROTOCOL, progress=progress)
        except _FAILURES as error:
            failures.append(f"{row.model}: {error}")
        else:
            measured[row.model] = evaluation
            values = ", ".join(f"{metric} {_short(evaluation.mean(metric))}" for metric in evaluation.values)
            seconds = seconds_text(evaluation.seconds["training"])
            tell(f"{row.model} on {data.training.n_items:,} items: {values}; trained in {seconds}")
    if not measured:
        return None, failures
    page = of_evaluations(list(measured.values()))
    return replace(page, sections=[_side_by_side(rows, measured)]), failures


def _low_rank(
    rows: Sequence[Published], data: Split, build_row: Build, progress: Progress | None, tell: Tell
) -> Outcome:
    model, m = build_row(rows[0]), data.training.n_items
    assert isinstance(model, MRF)
    ranks = [rank for rank in (200, 1000, 3000) if rank < m] or [max(m // 2, 1)]
    try:
        model.fit(data.training, progress=progress)
        comparison = low_rank(model, data.test, ranks, **_PROTOCOL, progress=progress)
    except MemoryPlanError as error:
        return None, [f"{rows[0].model}: {error}"]
    return of_low_rank(comparison, data.name), []


def _exposure(
    rows: Sequence[Published], data: Split, build_row: Build, progress: Progress | None, tell: Tell
) -> Outcome:
    """Compare the MRF with Mult-VAE."""
    found, failures = [], []
    for row in (row for row in rows if row.kind in ("MRF", "MultVAE")):
        try:
            found.append(evaluate(build_row(row), data, name=row.model, **_PROTOCOL, progress=progress))
        except _FAILURES as error:
            failures.append(f"{row.model}: {error}")
    if not found:
        return None, failures
    comparison = Comparison(tuple(found))
    page = of_exposure(comparison, exposure(comparison, data.test))
    return replace(page, sections=page.sections[-1:]), failures


def _side_by_side(rows: Sequence[Published], measured: Mapping[str, Evaluation]) -> Section:
    """Put published and measured numbers next to each other."""
    titles = ["nDCG@100", "Recall@20", "Recall@50"]
    columns = ["model", *(f"{title}, {which}" for title in titles for which in ("published", "measured"))]
    table = []
    for row in rows:
        cells = [row.model]
        evaluation = measured.get(row.model)
        for place, metric in enumerate(DEFAULTS):
            cells.append("did not finish" if row.values is None else f"{row.values[place]:.3f}")
            cells.append("–" if evaluation is None else _short(evaluation.mean(metric)))
        seconds = seconds_text(None if evaluation is None else evaluation.seconds["training"])
        table.append([*cells, row.training, seconds])
    return Section([*columns, "training, published", "training, measured"], table)


def _short(mean: Mean) -> str:
    return f"{mean.mean:.3f} ± {mean.error:.3f}"
