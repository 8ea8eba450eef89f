"""Run a table: tune every model on the validation users, measure it on the test users, write its page.

results/WHAT-NAME.json has all that the page shows, so that the page can be made anew without measuring, and
an interrupted run continues. Values of users are in the cache; differences between models are measured again
only where both have them there. Parameters tuned before are read from results/WHAT-NAME-MODEL.json. Rankings
of autoencoders that were trained elsewhere, by autoencoders.py, are read from cache/gpu-results.
"""

import datetime
import itertools
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mrfrec import MemoryPlanError, MissingLibraryError, MrfrecError, NumericalError, Recommender
from mrfrec.evaluation import Split, evaluate, evaluate_fitted, paired
from mrfrec_lab import datasets
from mrfrec_lab.datasets.registry import DATA_SETS
from mrfrec_lab.lists import mean_of, measure_lists
from mrfrec_lab.models import build
from mrfrec_lab.places import CACHE, RESULTS, machine, seconds_text, writing
from mrfrec_lab.tables import AT_100, Row, Table, Uncentered, Unconstrained, split_of, table_of

AIM = "ndcg@100"
GPU = CACHE / "gpu-results"
AUTOENCODERS = {"MultVAE": "Mult-VAE", "MultDAE": "Mult-DAE", "CDAE": "CDAE"}
_FAILURES = (MemoryPlanError, MissingLibraryError, NumericalError)  # that stop one model alone

Numbers = npt.NDArray[Any]


def run(what: str, name: str, folder: Path | None, only: list[str], *, tune: bool, measure: bool) -> Path:
    """Measure the models of a table that are not measured yet, or `only` these again; write the page."""
    table = table_of(what, name)
    for place in (CACHE, RESULTS):
        place.mkdir(exist_ok=True)
    kept = RESULTS / f"{what}-{name}.json"
    found: dict[str, dict[str, Any]] = json.loads(kept.read_text()) if kept.exists() else {}
    split: Split | None = None
    notes: list[str] = []

    def keep(row: dict[str, Any], values: dict[str, Numbers]) -> None:
        np.savez_compressed(_per_user(f"{what}-{name}", row["name"]), **values)  # type: ignore[arg-type]
        row["users"] = len(values[AIM])
        row["measured"] = {metric: mean_of(of_users) for metric, of_users in values.items()}
        row["date"] = datetime.date.today().isoformat()
        found[row["name"]] = row
        _compare(f"{what}-{name}", found, table.against)
        with writing(kept) as unfinished:
            unfinished.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")

    def due(row: str) -> bool:
        return measure and (row in only or not (only or row in found))

    wanted = [*AT_100, *table.extra]
    for row in table.rows:
        if due(row.name):
            split = split or split_of(name, folder)
            try:
                keep(*_measure(row, split, wanted, f"{what}-{name}", again=tune))
            except _FAILURES as error:
                notes.append(f"{row.name}: {error}")
                print(notes[-1], file=sys.stderr, flush=True)
    for kind, title in AUTOENCODERS.items() if what == "table1" else ():
        ranking = GPU / f"{name}-{kind}.npz"
        if ranking.exists() and due(title):
            split = split or split_of(name, folder)
            keep(*_measure_ranking(ranking, title, split, wanted, f"{what}-{name}"))
    if name in DATA_SETS:
        notes += differences(name, folder)
    path = RESULTS / f"{what}-{name}.md"
    path.write_text(page(f"{what} {name}", table, found, notes), encoding="utf-8")
    return path


def differences(name: str, folder: Path | None) -> list[str]:
    """Say how prepared data differs from the published data, if it does."""
    try:
        wrong = [check for check in datasets.verify(name, folder) if not check.ok]
    except MrfrecError as error:
        return [str(error)]
    texts = [
        f"{check.what}: expected {check.texts[0]}, found {check.texts[1] or 'unknown'}" for check in wrong
    ]
    return [f"{DIFFERS}. {'; '.join(texts)}."] if texts else []


DIFFERS = "This is not the published data, or not its split"


def _file_name(row: str) -> str:
    return row.lower().replace(", ", "-").replace(" ", "-")


def _per_user(table: str, row: str) -> Path:
    return CACHE / f"{table}.{_file_name(row)}.npz"


def _compare(name: str, found: dict[str, dict[str, Any]], against: str) -> None:
    """Put the differences from the first row into the others, where the values of both are in the cache."""
    best = _first(found, against)
    for row in found.values():
        files = [_per_user(name, one["name"]) for one in (row, best)]
        if row is best:
            row.pop("difference", None)
        elif all(file.exists() for file in files):
            pair = paired(*(np.load(file)[AIM] for file in files))
            row["difference"] = {
                "from": best["name"], "mean": float(pair.difference), "error": float(pair.error),
            }  # fmt: skip


def _first(found: dict[str, dict[str, Any]], against: str) -> dict[str, Any]:
    """Return the row that the others are compared with."""
    return found.get(against) or max(found.values(), key=lambda row: float(row["measured"][AIM][0]))


def grid_points(row: Row, split: Split) -> list[dict[str, Any]]:
    """Return the points to try of a row; one without parameters if it has no grid."""
    axes = {name: _ridges(row, split) if x == "ridge" else list(x) for name, x in row.grid.items()}
    return [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]


def _ridges(row: Row, split: Split) -> list[float]:
    """Return values of l2: multiples of v^(1 − α), v the variance of the item of a typical interaction."""
    X = split.training
    c = X.popularity.astype(np.float64)
    typical = float((c * (c - c * c / X.n_users)).sum() / c.sum()) ** (1 - row.fixed.get("alpha", 0.0))
    return [float(f"{multiple * typical:.2g}") for multiple in (0.03, 0.1, 0.3, 1.0, 3.0)]


def built(row: Row, parameters: Mapping[str, Any]) -> Recommender:
    """Return the model of a row."""
    own = {"Unconstrained": Unconstrained, "Uncentered": Uncentered}
    return own[row.kind](**parameters) if row.kind in own else build(row.kind, parameters)


def _measure(
    row: Row, split: Split, wanted: list[str], table: str, *, again: bool
) -> tuple[dict[str, Any], dict[str, Numbers]]:
    """Tune a model, or read what was found before, and measure it; return its row and its values per user."""
    parameters, trials, value = dict(row.fixed), 1, None
    print(f"── {row.name}", file=sys.stderr, flush=True)
    grid = {}
    if row.grid:
        before = RESULTS / f"{table}-{_file_name(row.name)}.json"
        if again or not before.exists():
            before.write_text(json.dumps(_tuned(row, split), indent=1) + "\n", encoding="utf-8")
        best = json.loads(before.read_text())
        parameters, trials, value = best["parameters"], best["tuned"]["trials"], best["tuned"]["value"]
        grid = {name: _ridges(row, split) if x == "ridge" else x for name, x in row.grid.items()}
    measured = evaluate(built(row, parameters), split, wanted, name=row.name, ties="index")
    print(measured, f"{measured.seconds['training']:.1f} s", file=sys.stderr, flush=True)
    weights = measured.facts.get("weights", {})
    made = {
        "name": row.name,
        "kind": row.kind,
        "parameters": parameters,
        "grid": grid,
        "trials": trials,
        "validation": value,
        "remark": row.remark,
        "seconds": round(measured.seconds["training"], 2),
        "weights": {key: weights[key] for key in ("share", "capped", "blocks") if weights.get(key)},
        "machine": machine(),
    }
    return made, {name: measured.per_user(name) for name in wanted}


def _tuned(row: Row, split: Split) -> dict[str, Any]:
    """Return the best point of the grid on the validation users."""
    tuning = split.for_tuning()
    tried = []
    for point in grid_points(row, split):
        parameters = {**row.fixed, **point}
        model = built(row, parameters).fit(tuning.training)
        found = evaluate_fitted(model, tuning.test, AIM, ties="index").mean(AIM).mean
        print(f"   {point}: {found:.4f}", file=sys.stderr, flush=True)
        tried.append((float(found), parameters))
    value, parameters = max(tried, key=lambda each: each[0])
    return {"model": row.kind, "parameters": parameters, "tuned": {"trials": len(tried), "value": value}}


def _measure_ranking(
    ranking: Path, title: str, split: Split, wanted: list[str], table: str
) -> tuple[dict[str, Any], dict[str, Numbers]]:
    """Measure a ranking of autoencoders.py like those of all others, and keep its trials."""
    with np.load(ranking) as file:
        facts, ranked = json.loads(str(file["facts"])), file["ranked"].astype(np.int32)
    trials = json.loads(ranking.with_suffix(".json").read_text())
    tuned = {name for name in facts["recipe"] if len({t["recipe"][name] for t in trials}) > 1} - {"epochs"}
    best = max((t for t in trials if not t["ended"]), key=lambda t: float(t["ndcg@100"]))
    for trial in trials:
        recipe = trial.pop("recipe")
        trial["parameters"] = {name: recipe[name] for name in sorted(tuned)}
        if trial is not best:
            del trial["history"]
    courses = RESULTS / f"{table}-{_file_name(title)}.json"
    courses.write_text(json.dumps(trials, indent=1) + "\n", encoding="utf-8")
    made = {
        "name": title,
        "kind": facts["kind"],
        "parameters": {name: facts["recipe"][name] for name in _SHOWN[title] if name in facts["recipe"]},
        "grid": {name: sorted({t["parameters"][name] for t in trials}) for name in sorted(tuned)},
        "trials": len(trials),
        "validation": best["ndcg@100"],
        "remark": f"the best of {best['epochs']} epochs is number {best['best_epoch']}",
        "seconds": facts["seconds"],
        "machine": f"{facts['device']}, PyTorch {facts['torch']}",
    }
    return made, measure_lists(ranked, split, wanted, title)


_ROUNDED = 2e-4
_USUAL = ("hidden", "dropout", "l2", "learning_rate")
_SHOWN = {
    "Mult-VAE": (*_USUAL, "latent", "kl_cap", "kl_epochs"),
    "Mult-DAE": _USUAL,
    "CDAE": (*_USUAL, "weight", "activation", "user_vectors"),
}


def page(command: str, table: Table, found: dict[str, dict[str, Any]], notes: list[str]) -> str:
    """Assemble the page: results, and what was tried; best first, or in the order of the table."""
    order = [row.name for row in table.rows]
    rows = [found[name] for name in order if name in found] + [r for n, r in found.items() if n not in order]
    if not rows:
        return "\n\n".join([f"# {table.title}", *notes]) + "\n"
    rows = rows if table.against else sorted(rows, key=lambda row: -float(row["measured"][AIM][0]))
    first = _first(found, table.against)
    known = {row.name: row for row in table.rows}
    is_published = any(row.published for row in table.rows)
    has_weights = any(row.get("weights") for row in rows) and bool(table.against)
    titles = {**AT_100, **table.extra}
    head = ["model", *titles.values(), f"{AT_100[AIM]} − {first['name']}'s", "training", "trained on"]
    head += ["published", "published training"] if is_published else []
    head += ["weights kept", "at the cap", "blocks"] if has_weights else []
    places = list(dict.fromkeys(row["machine"] for row in rows))
    lines = [head, ["---"] * len(head)]
    verified = not any(note.startswith(DIFFERS) for note in notes)
    for row in rows:
        cells = [_mean(row["measured"].get(metric)) for metric in titles]
        place = "ABCDEF"[places.index(row["machine"])]
        line = [row["name"], *cells, _difference(row, first), seconds_text(row["seconds"]), place]
        if is_published:
            line += _published(known.get(row["name"]), verified)
        if has_weights:
            kept = row.get("weights", {})
            line += [f"{kept[key]:.2%}" if key in kept else "–" for key in ("share", "capped")]
            line.append(f"{kept['blocks']:,}" if "blocks" in kept else "–")
        lines.append(line)
    tried = [["model", "parameters", "tried on the validation users", "trials", "nDCG@100 there", "remark"]]
    tried.append(["---"] * len(tried[0]))
    for row in rows:
        axes = "; ".join(f"{key} in {', '.join(map(_text, values))}" for key, values in row["grid"].items())
        chosen = {key: value for key, value in row["parameters"].items() if key != "threshold" or value}
        if "sparsity" in chosen and chosen["sparsity"] is None:
            chosen["sparsity"] = "dense"
        parameters = ", ".join(f"{key}={_text(value)}" for key, value in chosen.items())
        value = f"{row['validation']:.4f}" if row["validation"] else "–"
        tried.append([row["name"], parameters or "–", axes or "–", str(row["trials"]), value, row["remark"]])
    machines = [f"- {'ABCDEF'[place]}: {text}" for place, text in enumerate(places)]
    name = command.split()[1]
    typed = f"python -m mrfrec_lab {command}{'' if name == 'debian' else ' $DATA'}"
    parts = [
        f"# {table.title}",
        table.about,
        f"Mean over {first['users']:,} test users ± standard error. Differences are measured user by user; "
        "those without an error are differences of means.",
        _table(lines),
        "Trained on:\n\n" + "\n".join(machines),
        *([f"Left out, or to know:\n\n{chr(10).join(f'- {note}' for note in notes)}"] if notes else []),
        "## What was tried",
        _table(tried),
        f"```sh\n{typed}\n```",
        *([table.closing] if table.closing else []),
        f"*{max(row['date'] for row in rows)}*",
    ]
    return "\n\n".join(parts) + "\n"


def _published(row: Row | None, verified: bool) -> list[str]:
    """Return the published numbers and time, if the data is the published data."""
    if row is None or not verified:
        return ["–", "–"]
    return [
        " / ".join(f"{x:.3f}" for x in row.published) if row.published else "did not finish",
        row.training,
    ]


def _difference(row: dict[str, Any], first: dict[str, Any]) -> str:
    if row is first:
        return ""
    apart = row["measured"][AIM][0] - first["measured"][AIM][0]
    pair = row.get("difference", {})
    # The mean of a difference is the difference of the means, unless the best row was measured again since.
    if pair.get("from") == first["name"] and abs(pair["mean"] - apart) < _ROUNDED:
        return f"{pair['mean']:+.4f} ± {pair['error']:.4f}"
    return f"{apart:+.4f}"


def _mean(found: list[float] | None) -> str:
    return "–" if found is None else f"{found[0]:.4f} ± {found[1]:.4f}"


def _text(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return "none" if value is None else "yes" if value else "no"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _table(rows: list[list[str]]) -> str:
    return "\n".join(f"| {' | '.join(cells)} |" for cells in rows)
