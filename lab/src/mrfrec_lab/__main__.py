"""The commands of the lab, and those of mrfrec with the lab's models.

python -m mrfrec_lab datasets prepare ml-20m --from ml-20m.zip
python -m mrfrec_lab table1 debian                 # every model of the paper's Table 1
python -m mrfrec_lab table2 gowalla FOLDER         # accuracy against training time
python -m mrfrec_lab claims debian
python -m mrfrec_lab lowrank debian
python -m mrfrec_lab exposure debian
python -m mrfrec_lab notebook NOTEBOOK debian      # the published notebook beside mrfrec
python -m mrfrec_lab fit events.csv -o slim.mrf --model SLIM
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from mrfrec import MRF, DataError, MrfrecError, cli
from mrfrec.evaluation import compare
from mrfrec_lab import datasets, models, notebook, runner  # noqa: F401 - which registers the models
from mrfrec_lab.datasets.registry import DATA_SETS
from mrfrec_lab.side_checks import exposure, low_rank
from mrfrec_lab.tables import AT_100, PAPER, split_of

TABLES = ("table1", "table2", "claims")
CHECKS = ("lowrank", "exposure")


def main(arguments: Sequence[str] | None = None) -> None:
    typed = list(sys.argv[1:] if arguments is None else arguments)
    if typed[:1] == ["notebook"]:
        notebook.main(typed[1:])
        return
    if typed and typed[0] not in (*TABLES, *CHECKS, "datasets", "-h", "--help"):
        cli.main()
    asked = parser().parse_args(typed)
    try:
        asked.run(asked)
    except MrfrecError as error:
        sys.exit(f"mrfrec_lab: {error}")


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="python -m mrfrec_lab", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = made.add_subparsers(required=True, metavar="COMMAND")
    for what in (*TABLES, *CHECKS):
        command = commands.add_parser(what)
        command.add_argument("name", help="debian, a data set of the paper, or one with a folder of its own")
        command.add_argument("folder", type=Path, nargs="?", help="the folder of the data")
        command.set_defaults(run=measure if what in TABLES else check, what=what)
        if what in TABLES:
            command.add_argument("--only", action="append", default=[], help="measure this model, again")
            command.add_argument("--tune", action="store_true", help="tune again, too")
            command.add_argument("--page", action="store_true", help="make the page only")
    sets = commands.add_parser("datasets", help="list, prepare and verify the data sets of the paper")
    sets.add_argument("what", choices=["list", "prepare", "verify"])
    sets.add_argument("name", nargs="?", choices=DATA_SETS)
    sets.add_argument("--from", dest="source", help="the archive, the folder it unpacks to, or the ratings")
    sets.add_argument("--folder", help="folder of prepared data sets; ~/.cache/mrfrec/datasets by default")
    sets.add_argument("--vae-cf", help="also write the split in the format of vae_cf's notebook")
    sets.set_defaults(run=manage)
    return made


def measure(asked: argparse.Namespace) -> None:
    """Run a table."""
    path = runner.run(
        asked.what, asked.name, asked.folder, asked.only, tune=asked.tune, measure=not asked.page
    )
    print(path.read_text(encoding="utf-8"))


def check(asked: argparse.Namespace) -> None:
    """Run a side check of the paper."""
    split = split_of(asked.name, asked.folder)
    names = [name for name in AT_100 if int(name.split("@")[1]) <= split.training.n_items]
    dense = MRF(**{**PAPER, "sparsity": None})
    if asked.what == "lowrank":
        for found, energy in low_rank(dense.fit(split.training), split, None, names):
            print(
                f"{found.model:12}{energy:8.1%}", *(f"{name} {found.mean(name)}" for name in names), sep="  "
            )
        return
    shares = exposure(compare({"dense": dense, "MRF()": MRF()}, split, names), split.test).shares
    for name, share in shares.items():
        print(f"{name:30}", *(f"{100 * each:6.2f}" for each in share))


def manage(asked: argparse.Namespace) -> None:
    """List, prepare or verify data sets."""
    if asked.what == "list":
        for listed in datasets.available(asked.folder):
            size = f"{listed.size / 1e6:,.1f} MB" if listed.size else "not prepared"
            print(f"{listed.name:10}{listed.title:40}{size}")
        return
    if asked.name is None:
        raise DataError(f"name a data set: {', '.join(DATA_SETS)}.")
    if asked.what == "prepare":
        path = datasets.prepare(asked.name, asked.source, asked.folder)
        print(f"{asked.name} is prepared: {path}")
        if asked.vae_cf is not None:
            for file in datasets.write_vae_cf(asked.name, asked.vae_cf, asked.folder):
                print(f"wrote {file}")
        return
    checks = datasets.verify(asked.name, asked.folder)
    for one in checks:
        expected, found = one.texts
        print(f"{one.what:45}{expected!s:36}{found!s:36}{'' if one.ok else 'DIFFERS'}")
    wrong = [one.what for one in checks if not one.ok]
    if wrong:
        raise DataError(f"{len(wrong)} of {len(checks)} checks failed, the first: {wrong[0]}.")
    if not any(isinstance(one.expected, str) or one.expected for one in checks):
        print("nothing is published about it: only its consistency was checked")


if __name__ == "__main__":
    main()
