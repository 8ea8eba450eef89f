"""The command demo: a tour of the package on built-in data. docs/cli.md is generated from the text here."""

import logging
import shlex
import shutil
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import typer

from mrfrec import datasets
from mrfrec.cli import written
from mrfrec.cli.options import ModelFile
from mrfrec.io.atomic import check_writable, expanded

_HISTORY = ("python3-numpy", "python3-scipy", "cython3")
_NEW = ("python3-sparse", "sparse multidimensional arrays for numpy (Python 3)")
_HELD_OUT = 2000


def demo(output: ModelFile = Path("debian.mrf")) -> None:
    """Fit, compare, recommend and explain on built-in data.

    Users are the source packages of Debian 12, items the packages they are built with. Takes half a
    minute of one core, and about ten seconds more the first time, to compile. Ends with commands to try next.

    \b
    Examples:
      mrfrec demo
      mrfrec demo -o /tmp/debian.mrf
    """
    from mrfrec.cli.show import print_table, progress_bar
    from mrfrec.evaluation.protocol import compare
    from mrfrec.evaluation.report import means_text
    from mrfrec.evaluation.splits import strong_generalisation
    from mrfrec.models import Popularity
    from mrfrec.models.compiling import warm_up
    from mrfrec.models.mrf.model import MRF

    logging.getLogger("mrfrec").setLevel(logging.WARNING)
    check_writable(output)
    data = datasets.load("debian")
    typer.echo(
        f"Debian 12: {data.n_users:,} source packages (the users) and the {data.n_items:,} packages they are "
        f"built with (the items),\n{len(data):,} pairs.\n"
    )
    warm_up(MRF())  # compile before anything is timed
    typer.echo(
        f"For {_HELD_OUT:,} packages that the models were not trained on, how well is a fifth of their "
        "build dependencies\npredicted from the rest?"
    )
    models = {
        "most popular": Popularity(),
        "MRF, dense": MRF(sparsity=None),
        "MRF, 2 % of the weights": MRF(sparsity=0.02),
    }
    split = strong_generalisation(datasets.events("debian"), _HELD_OUT)
    with progress_bar() as progress:
        found = compare(models, split, ("ndcg@100", "recall@20"), progress=progress)
    rows = [[*means_text(each), f"{each.seconds['training']:.2f} s"] for each in found.values()]
    print_table(rows, ["", "nDCG@100", "Recall@20", "training"])

    features = datasets.item_features("debian")
    with progress_bar() as progress:
        model = MRF().fit(data, progress=progress, item_features=features)
    typer.echo(f"\nA package is built with {', '.join(_HISTORY)}. What else will it need?")
    answer = model.answer(history=_HISTORY, k=8, explain=3)
    names = ["rank", "item", "title", "score", "because"]
    print_table([[row[name] for name in names] for row in answer.rows], [*names[:-1], "because of"])

    item, title = _NEW
    with TemporaryDirectory() as folder:
        table = Path(folder) / "new.csv"
        table.write_text(f"item,title\n{item},{title}\n", encoding="utf-8")
        model.add_items(table)
    typer.echo(f"\nA new package that nobody has used, {item}, {title}: would it be recommended?")
    answer = model.answer(history=_HISTORY, k=1, explain=3, allow=[item])
    print_table([[row[name] for name in names] for row in answer.rows], [*names[:-1], "because of"])

    model.save(output, include_histories=True)
    typer.echo(f"\nDone: {written(output)}. Try next:\n")
    file = shlex.quote(str(expanded(output)))
    for command in (
        f"recommend {file} --history {','.join(_HISTORY)} --explain",
        f"recommend {file} --user gimp -k 5 --novelty 0.5",
        f"recommend {file} --all -k 20 -o recommendations.parquet",
        f"similar {file} libgtk-3-dev",
        f"explain {file} --history {','.join(_HISTORY)} --item python3-matplotlib",
        f"info {file}",
        "fit YOUR_TABLE.csv -o your.mrf",
    ):
        typer.echo(f"  {_program()} {command}")
    typer.echo(
        f"\nOr look at it in a browser: open http://127.0.0.1:8000 after\n\n  {_program()} serve {file}"
    )


def _program() -> str:
    """Return the command to type: `mrfrec` if there is one on the path, otherwise the path of this one."""
    return "mrfrec" if shutil.which("mrfrec") else shlex.quote(sys.argv[0])
