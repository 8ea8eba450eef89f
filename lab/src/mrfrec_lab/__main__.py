"""The commands of the lab, and those of mrfrec with the lab's models.

python -m mrfrec_lab datasets prepare ml-20m --from ml-20m.zip
python -m mrfrec_lab paper table1 --data ml-20m
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from mrfrec import cli
from mrfrec.core.memory import human_bytes
from mrfrec.errors import DataError, MrfrecError
from mrfrec_lab import datasets, models  # noqa: F401 - which registers them
from mrfrec_lab.paper.reproduce import EXPERIMENTS, reproduce

OWN = ("datasets", "paper")  # the other commands are those of mrfrec


def main(arguments: Sequence[str] | None = None) -> None:
    typed = sys.argv[1:] if arguments is None else arguments
    if typed and typed[0] not in (*OWN, "-h", "--help"):
        cli.main()
    parser = argparse.ArgumentParser(prog="python -m mrfrec_lab", description=__doc__)
    commands = parser.add_subparsers(required=True)
    sets = commands.add_parser("datasets", help="list, prepare and verify the data sets of the paper")
    sets.add_argument("what", choices=["list", "prepare", "verify"])
    sets.add_argument("name", nargs="?", choices=datasets.DATA_SETS)
    sets.add_argument("--from", dest="source", help="the archive, the folder it unpacks to, or the ratings")
    sets.add_argument("--folder", help="folder of prepared data sets; ~/.cache/mrfrec/datasets by default")
    sets.add_argument("--vae-cf", help="also write the split in the format of vae_cf's notebook")
    sets.set_defaults(run=manage)
    paper = commands.add_parser("paper", help="published beside measured numbers")
    paper.add_argument("what", choices=EXPERIMENTS)
    paper.add_argument("--data", action="append", help="only this data set of the paper; may be repeated")
    paper.add_argument("--model", action="append", help="tables: only this model; may be repeated")
    paper.add_argument("--folder", help="folder of prepared data sets")
    paper.add_argument("--plot", type=Path, help="a figure to draw; not for table1")
    paper.set_defaults(run=run)
    asked = parser.parse_args(arguments)
    try:
        asked.run(asked)
    except MrfrecError as error:
        sys.exit(f"mrfrec_lab: {error}")


def manage(asked: argparse.Namespace) -> None:
    """List, prepare or verify data sets."""
    if asked.what == "list":
        for one in datasets.available(asked.folder):
            print(f"{one.name:10}{one.title:40}{human_bytes(one.size) if one.size else 'not prepared'}")
        return
    if asked.name is None:
        raise DataError(f"name a data set: {', '.join(datasets.DATA_SETS)}.")
    if asked.what == "prepare":
        path = datasets.prepare(asked.name, asked.source, asked.folder)
        print(f"{asked.name} is prepared: {path}")
        if asked.vae_cf is not None:
            for file in datasets.write_vae_cf(asked.name, asked.vae_cf, asked.folder):
                print(f"wrote {file}")
        return
    checks = datasets.verify(asked.name, asked.folder)
    for check in checks:
        expected, found = check.texts
        print(f"{check.what:45}{expected!s:36}{found!s:36}{'' if check.ok else 'DIFFERS'}")
    wrong = [check.what for check in checks if not check.ok]
    if wrong:
        raise DataError(f"{len(wrong)} of {len(checks)} checks failed, the first: {wrong[0]}.")
    if not any(isinstance(check.expected, str) or check.expected for check in checks):
        print("nothing is published about it: only its consistency was checked")


def run(asked: argparse.Namespace) -> None:
    """Run an experiment of the paper on its data sets."""
    page = reproduce(
        asked.what, asked.data, models=asked.model, folder=asked.folder, plot=asked.plot,
        tell=lambda line: print(line, file=sys.stderr, flush=True),
    )  # fmt: skip
    print(page.markdown())


if __name__ == "__main__":
    main()
