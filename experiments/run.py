"""Run the experiments on real data step by step and write the results to experiments/results.

    python -m experiments.run ../data mtg-players            # all steps not run yet
    python -m experiments.run ../data mtg-players tradeoff   # this step, again

Every step is one `mrfrec` command. Its output is cached in experiments/cache, so that an interrupted run can
be continued, and the page is assembled from the cache.
"""

import argparse
import datetime
import json
import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

HERE = Path(__file__).parent
RESULTS, CACHE = HERE / "results", HERE / "cache"
PAPER = "ndcg@100,recall@20,recall@50"
MODEL = "--model 'user_weight=0, offset=false, novelty=0, rank=0{}'"  # the paper's, but for what is tuned


@dataclass(frozen=True)
class Step:
    """One command of an experiment."""

    name: str
    title: str
    command: str  # {data} and {results} stand for the two folders
    remark: str = ""


@dataclass(frozen=True)
class Experiment:
    """A page of results and the steps that produce it."""

    title: str
    about: str
    needs: tuple[str, ...]  # files below the data folder
    steps: tuple[Step, ...]


def _strong(folder: str, title: str, about: str, heldout: int, levels: str, ranks: str) -> Experiment:
    """Return the steps of the paper's protocol and both its tables."""
    file, name = f"{folder}/interactions.parquet", folder.removesuffix("-5k-users")
    data = f"{{data}}/{file} --heldout {heldout}"
    dense, sparse = f"{{results}}/{name}-dense.json", f"{{results}}/{name}-sparse.json"
    return Experiment(
        title,
        about,
        (file,),
        (
            Step(
                "tune-dense",
                "Tuning the dense model: a grid of alpha and l2",
                f"mrfrec tune {data} --method grid {MODEL.format(', sparsity=dense')} "
                f"-o {dense} --study {{cache}}/{name}-dense.jsonl --plot {{results}}/{name}-tuning.png",
                f"![Accuracy of the dense model over alpha and l2]({name}-tuning.png)",
            ),
            Step(
                "tune-sparse",
                "Tuning the sparse model: one parameter after another",
                f"mrfrec tune {data} --minutes 15 {MODEL.format('')} --vary sparsity={levels} -o {sparse} "
                f"--study {{cache}}/{name}-sparse.jsonl",
            ),
            Step(
                "table1",
                "Table 1: the paper's model, tuned, and the defaults of mrfrec on the test users",
                f"mrfrec paper exposure {data} --model 'dense: {dense}' --model 'sparse: {sparse}' "
                f"--model 'defaults: ' --metrics {PAPER},coverage@100,popularity@100,tail@100 "
                f"--plot {{results}}/{name}-exposure.png",
                f"![Recommendations by popularity of the items]({name}-exposure.png)",
            ),
            Step(
                "table2",
                "Table 2: accuracy against training time",
                f"mrfrec paper tradeoff {data} --sparsity {levels} --dense {dense} --sparse {sparse} "
                f"--plot {{results}}/{name}-tradeoff.png",
                f"![Accuracy against training time]({name}-tradeoff.png)",
            ),
            Step(
                "lowrank",
                "Side check: weights cut to a low rank",
                f"mrfrec paper lowrank {data} --model {dense} --ranks {ranks}",
            ),
        ),
    )


def _lightgcn(name: str, title: str, about: str, ridge: str, ease: str) -> Experiment:
    """Return the steps for a split that NGCF and LightGCN published."""
    folder = f"{name}-lightgcn"
    data = f"{{data}}/{folder}/train.parquet --test {{data}}/{folder}/test.parquet"
    metrics, sparse = "recall_all@20,ndcg@20", f"{{results}}/{name}-sparse.json"
    return Experiment(
        f"{title}, the split of NGCF and LightGCN",
        f"{about}, in the two files published with NGCF and LightGCN; Recall counts hits ÷ all targets. "
        "Others have [published results](published.md) for this split.",
        (f"{folder}/train.parquet", f"{folder}/test.parquet"),
        (
            Step(
                "ease",
                f"EASE, with {ridge}",
                f"mrfrec evaluate {data} --metrics {metrics} --model 'EASE: l2=100, sparsity=dense'",
                f"[Published](published.md): {ease}.",
            ),
            Step(
                "tune-sparse",
                "Tuning the sparse model, on a tenth of the training data",
                f"mrfrec tune {data} --metric ndcg@20 --minutes 10 {MODEL.format('')} "
                f"--vary sparsity=0.002,0.005 -o {sparse} --study {{cache}}/{name}-sparse.jsonl",
            ),
            Step(
                "sparse",
                "The tuned sparse model and the defaults on the test data",
                f"mrfrec paper exposure {data} --metrics {metrics},coverage@20,popularity@20,tail@20 "
                f"--model 'sparse: {sparse}' --model 'defaults: ' --plot {{results}}/{name}-exposure.png",
                f"![Recommendations by popularity of the items]({name}-exposure.png)",
            ),
            Step(
                "tradeoff",
                "Table 2: accuracy against training time",
                f"mrfrec paper tradeoff {data} --metrics {metrics} --sparsity 0.0005,0.002,0.005 "
                f"--dense none --sparse {sparse} --plot {{results}}/{name}-tradeoff.png",
                f"![Accuracy against training time]({name}-tradeoff.png)",
            ),
        ),
    )


EXPERIMENTS = {
    "mtg-players": _strong(
        "mtg-players",
        "Magic: The Gathering players",
        "Tournament players and the cards in their decks: about the shape of ML-20M, and split like it.",
        10_000,
        "0.001,0.005,0.01",
        "200,1000,2000",
    ),
    "anime": _strong(
        "anime-5k-users",
        "Anime, 5,000 users",
        "A sample of MyAnimeList, 5,000 users: what a small data set is like. Ratings are not used.",
        500,
        "0.005,0.02,0.05",
        "50,200,1000",
    ),
    "gowalla": _lightgcn(
        "gowalla",
        "Gowalla",
        "Check-ins, 29,858 users × 40,981 places",
        "its published ridge",
        ".1765 / .1467",
    ),
    "yelp2018": _lightgcn(
        "yelp2018",
        "Yelp2018",
        "Reviews, 31,668 users × 38,048 businesses",
        "the ridge published for Gowalla",
        ".0657 / .0552, with a ridge tuned for this data; here the same with l2 = 300 "
        "([table 1](table1-yelp2018.md))",
    ),
}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Run the experiments on real data.")
    parser.add_argument("data", type=Path, help="folder with one folder per data set")
    parser.add_argument("name", choices=EXPERIMENTS)
    parser.add_argument(
        "steps", nargs="*", help="run only these steps, again; by default all steps not run yet"
    )
    asked = parser.parse_args(arguments)
    experiment = EXPERIMENTS[asked.name]
    missing = [file for file in experiment.needs if not (asked.data / file).exists()]
    if missing:
        sys.exit(f"not at hand: {', '.join(str(asked.data / file) for file in missing)}")
    known = [step.name for step in experiment.steps]
    if unknown := [name for name in asked.steps if name not in known]:
        sys.exit(f"there is no step {', '.join(unknown)}; there are {', '.join(known)}")
    RESULTS.mkdir(exist_ok=True)
    CACHE.mkdir(exist_ok=True)
    for step in experiment.steps:
        kept = CACHE / f"{asked.name}.{step.name}.json"
        if step.name in asked.steps or not (asked.steps or kept.exists()):
            run(step, asked.data, kept)
    (RESULTS / f"{asked.name}.md").write_text(page(asked.name, experiment), encoding="utf-8")


def run(step: Step, data: Path, kept: Path) -> None:
    """Run a step and cache its output."""
    print(f"── {step.name}", file=sys.stderr, flush=True)
    typed = step.command.format(data="{data}", results=_from_here(RESULTS), cache=_from_here(CACHE))
    typed += " --ties index"
    command = [part.replace("{data}", str(data)) for part in shlex.split(typed)]
    executable = Path(sys.executable).parent / "mrfrec"
    done = subprocess.run(
        [str(executable), *command[1:], "--format", "markdown"], stdout=subprocess.PIPE, text=True, check=True
    )
    found = {
        "command": typed.replace("{data}", "$DATA"),
        "output": done.stdout.replace(str(data), "$DATA"),
        "date": datetime.date.today().isoformat(),
        "machine": machine(),
    }
    kept.write_text(json.dumps(found, indent=2), encoding="utf-8")


def _from_here(folder: Path) -> str:
    return os.path.relpath(folder)


def page(name: str, experiment: Experiment) -> str:
    """Assemble the page from the cached outputs."""
    parts = [f"# {experiment.title}", experiment.about]
    for step in experiment.steps:
        kept = CACHE / f"{name}.{step.name}.json"
        parts.append(f"## {step.title}")
        if not kept.exists():
            parts.append("Not run yet.")
            continue
        found = json.loads(kept.read_text(encoding="utf-8"))
        output = found["output"].strip().replace("\n## ", "\n### ")
        parts += [f"```sh\n{found['command']}\n```", output]
        parts += [step.remark] if step.remark else []
        parts.append(f"*{found['date']}, {found['machine']}*")
    return "\n\n".join(parts) + "\n"


def machine() -> str:
    """Describe this machine in one line."""
    model = "unknown processor"
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        lines = cpuinfo.read_text().splitlines()
        model = next(
            (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), model
        )
    libraries = ", ".join(f"{name} {version(name)}" for name in ("mrfrec", "numpy", "scipy", "numba"))
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    cores = len(os.sched_getaffinity(0))
    return f"{cores} cores of {model}, {memory:.0f} GiB, Python {platform.python_version()}, {libraries}"


if __name__ == "__main__":
    main()
