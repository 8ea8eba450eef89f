"""The paper's tables, published beside measured, on the data that is at hand.

Published numbers are those of Steck (2019), Tables 1 and 2, who takes the other models' from Liang et al.
(2018); parameters are those of the published notebook.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from os import PathLike
from typing import Any

from mrfrec.core.resources import Progress
from mrfrec.datasets import available, split
from mrfrec.datasets.files import advice
from mrfrec.datasets.registry import DATA_SETS
from mrfrec.errors import DataError, MemoryPlanError, ParameterError
from mrfrec.evaluation import report, side_checks
from mrfrec.evaluation.metrics import DEFAULTS, Mean
from mrfrec.evaluation.protocol import Comparison, Evaluation, evaluate
from mrfrec.evaluation.report import Report, Section
from mrfrec.evaluation.splits import Split
from mrfrec.model import MRF

__all__ = ["EXPERIMENTS", "Published", "reproduce"]

EXPERIMENTS = ("table1", "table2", "lowrank", "exposure")


@dataclass(frozen=True)
class Published:
    """A row of the paper: nDCG@100, Recall@20, Recall@50, training time, and how to train it here."""

    model: str
    values: tuple[float, float, float] | None  # None: did not finish
    training: str = "–"
    parameters: Mapping[str, Any] | None = None  # None: a model there is no implementation of


def _dense(values: tuple[float, float, float], training: str, l2: float) -> Published:
    return Published("MRF, dense", values, training, {"l2": l2, "alpha": 0.75, "sparsity": None})


def _sparse(
    share: str, r: float, values: tuple[float, float, float], training: str, threshold: float
) -> Published:
    parameters = {"l2": 1.0, "alpha": 0.75, "threshold": threshold, "max_neighbors": 1000, "r": r}
    return Published(f"MRF, {share} sparse, r = {r:g}", values, training, parameters)


TABLE_1 = {
    "ml-20m": (
        _dense((0.423, 0.392, 0.522), "2 min 0 s", 6.0),
        Published("Mult-VAE", (0.426, 0.395, 0.537), "28 min 10 s"),
        Published("Mult-DAE", (0.419, 0.387, 0.524)),
        Published("CDAE", (0.418, 0.391, 0.523)),
        Published("SLIM", (0.401, 0.370, 0.495)),
        Published("WMF", (0.386, 0.360, 0.498)),
    ),
    "netflix": (
        _dense((0.397, 0.364, 0.448), "1 min 30 s", 6.0),
        Published("Mult-VAE", (0.386, 0.351, 0.444), "1 h 26 min"),
        Published("Mult-DAE", (0.380, 0.344, 0.438)),
        Published("CDAE", (0.376, 0.343, 0.428)),
        Published("SLIM", (0.379, 0.347, 0.428)),
        Published("WMF", (0.351, 0.316, 0.404)),
    ),
    "msd": (
        _dense((0.391, 0.334, 0.430), "15 min 45 s", 3.0),
        Published("Mult-VAE", (0.316, 0.266, 0.364), "4 h 30 min"),
        Published("Mult-DAE", (0.313, 0.266, 0.363)),
        Published("CDAE", (0.237, 0.188, 0.283)),
        Published("SLIM", None),
        Published("WMF", (0.257, 0.211, 0.312)),
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
_RANKS = (200, 1000, 3000)
_NOTES = {
    "table1": "Published standard errors: about 0.002 (ML-20M), 0.001 (Netflix), 0.001 (MSD). Published "
    "times: 16 vCPUs; those of Mult-VAE with a GPU.",
    "table2": "Published standard error: about 0.001. Published times: 16 vCPUs.",
    "lowrank": "Published: on MSD even 3,000 dimensions give about 10 % less nDCG@100.",
    "exposure": "Published, in words: on MSD the full-rank model recommends long-tail items considerably "
    "more often than Mult-VAE does.",
}  # fmt: skip


def reproduce(
    what: str,
    names: Iterable[str] | None = None,
    *,
    folder: "str | PathLike[str] | None" = None,
    machine: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
) -> Report:
    """An experiment of the paper on those of its data sets that are prepared; of the others, what to do.

    `what` is one of "table1", "table2", "lowrank" and "exposure"; `names` are data sets, all if None;
    `machine` are parameters of all models that change no result, such as threads.
    """
    if what not in EXPERIMENTS:
        raise ParameterError("what", f"one of {', '.join(EXPERIMENTS)}", what)
    tables = TABLE_2 if what == "table2" else TABLE_1
    chosen = list(tables) if names is None else list(names)
    for name in chosen:
        if name not in tables:
            raise ParameterError("names", f"among {', '.join(tables)} for {what}", name)
    prepared = {listed.name for listed in available(folder) if listed.prepared}
    ready = [name for name in chosen if name in prepared]
    missing = [f"{DATA_SETS[name].title}: not prepared. {advice(DATA_SETS[name], folder)}" for name in chosen
               if name not in prepared]  # fmt: skip
    if not ready:
        raise DataError("none of the data is at hand. " + " ".join(missing))
    sections, data = [], {}
    notes = [_NOTES[what], *missing]
    for name in ready:
        title = DATA_SETS[name].title
        try:
            found = _on(what, tables[name], split(name, folder), dict(machine or {}), progress)
        except MemoryPlanError as error:
            notes.append(f"{title}: {error}")
            continue
        sections += [replace(section, title=title) for section in found[0]]
        data[name] = found[1]
    return Report([], sections, {"experiment": what, "data_sets": data, "notes": notes}, "", notes)


def _on(
    what: str, rows: Sequence[Published], data: Split, machine: dict[str, Any], progress: Progress | None
) -> tuple[list[Section], dict[str, Any]]:
    if what in ("table1", "table2"):
        measured = {
            row.model: evaluate(
                MRF(**{**row.parameters, **machine}), data, DEFAULTS, name=row.model, progress=progress
            )
            for row in rows
            if row.parameters is not None
        }
        return [_beside(rows, measured)], report.of_evaluations(list(measured.values())).data
    dense = MRF(**{**(rows[0].parameters or {}), **machine})
    if what == "lowrank":
        model = dense.fit(data.training, progress=progress)
        m = data.training.n_items
        found = side_checks.low_rank(
            model, data.test, [rank for rank in _RANKS if rank < m] or [max(m // 2, 1)], progress=progress
        )
        page = report.of_low_rank(found, data.name)
    else:
        full = evaluate(dense, data, DEFAULTS, name="full rank", progress=progress)
        cut = side_checks.low_rank(dense, data.test, [min(200, data.training.n_items - 1)], progress=progress)
        pair = Comparison((full, cut.evaluations[-1]))
        page = report.of_exposure(side_checks.exposure(pair, data.test))
    return list(page.sections), page.data


def _beside(rows: Sequence[Published], measured: Mapping[str, Evaluation]) -> Section:
    """Published and measured, number by number."""
    titles = ["nDCG@100", "Recall@20", "Recall@50"]
    columns = ["model", *(f"{title}, {which}" for title in titles for which in ("published", "measured"))]
    out = []
    for row in rows:
        cells = [row.model]
        found = measured.get(row.model)
        for place, metric in enumerate(DEFAULTS):
            cells.append("did not finish" if row.values is None else f"{row.values[place]:.3f}")
            cells.append("–" if found is None else _short(found.mean(metric)))
        times = report.seconds_text(None if found is None else found.seconds["training"])
        out.append([*cells, row.training, times])
    return Section([*columns, "training, published", "training, measured"], out)


def _short(mean: Mean) -> str:
    return f"{mean.mean:.3f} ± {mean.error:.3f}"
