"""Table 1 on real data: tune every model on the validation users, measure it on the test users.

    python -m mrfrec_lab.table1 ../data mtg-players              # models not measured yet, then the page
    python -m mrfrec_lab.table1 ../data mtg-players SLIM WMF     # these models, measured again
    python -m mrfrec_lab.table1 ../data mtg-players SLIM --tune  # tuned again, too
    python -m mrfrec_lab.table1 ../data mtg-players --page       # the page only

results/table1-NAME.json has all that the page shows, so that the page can be made anew without measuring.
Parameters tuned before are read from results/table1-NAME-MODEL.json. Values of users are in the cache;
differences between models are measured again only where both have them there. The autoencoders are trained
by autoencoders.py; its files are read from lab/cache/gpu-results.
"""

import argparse
import datetime
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mrfrec.evaluation import grid, metrics, tuning
from mrfrec.evaluation.metrics import Numbers
from mrfrec.evaluation.protocol import Ties, evaluate
from mrfrec.evaluation.questions import Split
from mrfrec.io.atomic import writing
from mrfrec.models.registry import build
from mrfrec.shown import seconds_text
from mrfrec_lab.places import CACHE, RESULTS, machine
from mrfrec_lab.table1_pages import TABLES, Row, Table

AIM = "ndcg@100"
TIES: Ties = "index"
COLUMNS = {"ndcg@100": "nDCG@100", "recall@20": "Recall@20", "recall@50": "Recall@50"}
GPU = CACHE / "gpu-results"
AUTOENCODERS = {"MultVAE": "Mult-VAE", "MultDAE": "Mult-DAE", "CDAE": "CDAE"}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Table 1 of the paper on real data.")
    parser.add_argument("data", type=Path, help="folder with one folder per data set")
    parser.add_argument("name", choices=TABLES)
    parser.add_argument(
        "models", nargs="*", help="measure only these, again; by default all models not measured yet"
    )
    parser.add_argument("--tune", action="store_true", help="tune them again")
    parser.add_argument("--page", action="store_true", help="make the page only, of what was measured")
    asked = parser.parse_args(arguments)
    name, table = asked.name, TABLES[asked.name]
    CACHE.mkdir(exist_ok=True)
    kept = RESULTS / f"table1-{name}.json"
    found: dict[str, dict[str, Any]] = json.loads(kept.read_text()) if kept.exists() else {}
    wanted = [*COLUMNS, *table.extra]
    split: Split | None = None

    def keep(row: dict[str, Any], values: dict[str, Numbers]) -> None:
        np.savez_compressed(_per_user(name, row["name"]), **values)  # type: ignore[arg-type]
        means = {metric: metrics.mean_of(of_users) for metric, of_users in values.items()}
        row["users"] = len(values[AIM])
        row["measured"] = {metric: [float(mean.mean), float(mean.error)] for metric, mean in means.items()}
        row["date"] = datetime.date.today().isoformat()
        found[row["name"]] = row
        _compare(name, found)
        with writing(kept) as unfinished:
            unfinished.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")

    def due(row: str) -> bool:
        return not asked.page and (row in asked.models or not (asked.models or row in found))

    for row in table.rows:
        if due(row.name):
            split = split or table.split(asked.data)
            keep(*_measure(row, split, wanted, name, again=asked.tune))
    for kind, title in AUTOENCODERS.items():
        ranking = GPU / f"{name}-{kind}.npz"
        if ranking.exists() and due(title):
            split = split or table.split(asked.data)
            keep(*_measure_ranking(ranking, title, split, wanted, name))
    (RESULTS / f"table1-{name}.md").write_text(page(name, table, found), encoding="utf-8")


def _file_name(row: str) -> str:
    return row.lower().replace(", ", "-").replace(" ", "-")


def _per_user(table: str, row: str) -> Path:
    return CACHE / f"table1-{table}.{_file_name(row)}.npz"


def _compare(name: str, found: dict[str, dict[str, Any]]) -> None:
    """Put the differences from the best row into the others, where the values of both are in the cache."""
    best = max(found.values(), key=lambda row: float(row["measured"][AIM][0]))
    for row in found.values():
        files = [_per_user(name, one["name"]) for one in (row, best)]
        if row is best:
            row.pop("difference", None)
        elif all(file.exists() for file in files):
            pair = metrics.paired(*(np.load(file)[AIM] for file in files))
            row["difference"] = {
                "from": best["name"], "mean": float(pair.difference), "error": float(pair.error),
            }  # fmt: skip


def _measure(
    row: Row, split: Split, wanted: list[str], table: str, *, again: bool
) -> tuple[dict[str, Any], dict[str, Numbers]]:
    """Tune a model, or read what was found before, and measure it; return its row and its values per user."""
    parameters, trials = dict(row.fixed), 1
    print(f"── {row.name}", file=sys.stderr, flush=True)
    value = None
    if row.grid:
        before = RESULTS / f"table1-{table}-{_file_name(row.name)}.json"
        if again or not before.exists():
            study = CACHE / f"table1-{table}.{_file_name(row.name)}.jsonl"
            points = grid(**row.grid)
            found = tuning.tune(
                split, points, AIM, model=row.kind, fixed=row.fixed, study=study, ties=TIES, progress=_tell
            )
            found.save(before)
        tuned = json.loads(before.read_text())
        parameters, trials, value = tuned["parameters"], tuned["tuned"]["trials"], tuned["tuned"]["value"]
    measured = evaluate(build(row.kind, parameters), split, wanted, name=row.name, ties=TIES)
    print(measured, f"{measured.seconds['training']:.1f} s", file=sys.stderr, flush=True)
    made = {
        "name": row.name,
        "kind": row.kind,
        "parameters": parameters,
        "grid": row.grid,
        "trials": trials,
        "validation": value,
        "remark": row.remark,
        "seconds": round(measured.seconds["training"], 2),
        "machine": machine(),
    }
    return made, {name: measured.per_user(name) for name in wanted}


def _tell(stage: str, done: int, total: int) -> None:
    print(f"   {stage} {done}/{total}", file=sys.stderr, flush=True)


def _measure_ranking(
    ranking: Path, title: str, split: Split, wanted: list[str], table: str
) -> tuple[dict[str, Any], dict[str, Numbers]]:
    """Measure a ranking of autoencoders.py like those of all others, and keep its trials."""
    with np.load(ranking) as file:
        facts, ranked = json.loads(str(file["facts"])), file["ranked"].astype(np.int32)
    lists = metrics.Lists(ranked, split.test.targets, split.training.popularity)
    trials = json.loads(ranking.with_suffix(".json").read_text())
    tuned = {name for name in facts["recipe"] if len({t["recipe"][name] for t in trials}) > 1} - {"epochs"}
    best = max((t for t in trials if not t["ended"]), key=lambda t: float(t["ndcg@100"]))
    for trial in trials:
        recipe = trial.pop("recipe")
        trial["parameters"] = {name: recipe[name] for name in sorted(tuned)}
        if trial is not best:
            del trial["history"]
    courses = RESULTS / f"table1-{table}-{_file_name(title)}.json"
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
    return made, {name: metrics.parse(name).per_user(lists) for name in wanted}


_ROUNDED = 2e-4
_USUAL = ("hidden", "dropout", "l2", "learning_rate")
_SHOWN = {
    "Mult-VAE": (*_USUAL, "latent", "kl_cap", "kl_epochs"),
    "Mult-DAE": _USUAL,
    "CDAE": (*_USUAL, "weight", "activation", "user_vectors"),
}


def page(name: str, table: Table, found: dict[str, dict[str, Any]]) -> str:
    """Assemble the page: results, best first, and what was tried."""
    rows = sorted(found.values(), key=lambda row: -float(row["measured"][AIM][0]))
    first = rows[0]
    titles = {**COLUMNS, **table.extra}
    head = ["model", *titles.values(), f"{COLUMNS[AIM]} − {first['name']}'s", "training", "trained on"]
    places = list(dict.fromkeys(row["machine"] for row in rows))
    lines = [head, ["---"] * len(head)]
    for row in rows:
        cells = [_mean(row["measured"].get(metric)) for metric in titles]
        place = "ABCDEF"[places.index(row["machine"])]
        lines.append([row["name"], *cells, _difference(row, first), seconds_text(row["seconds"]), place])
    tried = [["model", "parameters", "tried on the validation users", "trials", "nDCG@100 there", "remark"]]
    tried.append(["---"] * len(tried[0]))
    for row in rows:
        axes = "; ".join(f"{key} in {', '.join(map(_text, values))}" for key, values in row["grid"].items())
        chosen = {key: value for key, value in row["parameters"].items() if key != "threshold" or value}
        parameters = ", ".join(f"{key}={_text(value)}" for key, value in chosen.items())
        value = f"{row['validation']:.4f}" if row["validation"] else "–"
        tried.append([row["name"], parameters or "–", axes or "–", str(row["trials"]), value, row["remark"]])
    machines = [f"- {'ABCDEF'[place]}: {text}" for place, text in enumerate(places)]
    command = f"python -m mrfrec_lab.table1 $DATA {name}"
    parts = [
        f"# {table.title}",
        table.about,
        f"Mean over {first['users']:,} test users ± standard error. Differences are measured user by user; "
        "those without an error are differences of means.",
        _table(lines),
        "Trained on:\n\n" + "\n".join(machines),
        "## What was tried",
        _table(tried),
        f"```sh\n{command}\n```",
        *([table.closing] if table.closing else []),
        f"*{max(row['date'] for row in rows)}*",
    ]
    return "\n\n".join(parts) + "\n"


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
        return "dense" if value is None else "yes" if value else "no"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _table(rows: list[list[str]]) -> str:
    return "\n".join(f"| {' | '.join(cells)} |" for cells in rows)


if __name__ == "__main__":
    main()
