"""The command demo: a tour of the package on built-in data. Its text becomes docs/reference/cli.md."""

import logging
import shlex
import shutil
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import typer

from mrfrec import datasets
from mrfrec.cli import written
from mrfrec.cli.show import print_table, progress_bar
from mrfrec.core.engine import part_of
from mrfrec.evaluation.protocol import fit_and_evaluate
from mrfrec.evaluation.results import means_text
from mrfrec.evaluation.splits import strong_generalisation
from mrfrec.io.atomic import check_writable, expanded
from mrfrec.models import Popularity
from mrfrec.models.mrf.model import MRF
from mrfrec.models.recommender import Recommender

_HISTORY = ("python3-numpy", "python3-scipy", "cython3")
_NEW = ("python3-sparse", "sparse multidimensional arrays for numpy (Python 3)")
_KNOWN = "libgtk-3-dev"
_HELD_OUT = 2000
_METRICS = ("ndcg@100", "recall@20")
_DENSE, _SPARSE = "MRF, dense", "MRF, 2 % of the weights"

Output = Annotated[Path | None, "Also fit the model to all the data, and write it to this file."]


def demo(output: Output = None) -> None:
    """Fit, compare, recommend and explain on built-in data.

    Users are the source packages of Debian 12, items the packages they are built with. Takes half a
    minute of one core, much of it to compile, which is done once. Ends with commands to try next.

    \b
    Examples:
      mrfrec demo
      mrfrec demo -o /tmp/debian.mrf
    """
    logging.getLogger("mrfrec").setLevel(logging.WARNING)
    if output is not None:
        check_writable(output)
    data, features = datasets.load("debian"), datasets.item_features("debian")
    typer.echo(
        f"Debian 12: {data.n_users:,} source packages (the users) and the {data.n_items:,} "
        f"packages they are built with (the items),\n{len(data):,} pairs.\n"
    )
    split = strong_generalisation(data, _HELD_OUT).with_features(features)
    typer.echo(
        f"For {_HELD_OUT:,} packages that the models were not trained on, how well is a fifth of their "
        "build dependencies\npredicted from the rest?"
    )
    # Titles serve to know the new item alone: with a weight to measure, a fit would take longer.
    model, sparse = (MRF(sparsity=sparsity, feature_weight=0) for sparsity in (None, 0.02))
    with progress_bar() as progress:

        def evaluated(model: Recommender, name: str, start: float, stop: float, **kept: Any) -> Any:
            part = part_of(progress, start, stop, f"{name}: ")
            return fit_and_evaluate(model, split, _METRICS, name=name, progress=part, **kept)

        found = [evaluated(Popularity(), "most popular", 0, 0.01), evaluated(model, _DENSE, 0.01, 0.9)]
        # Measuring takes most of a fit, and what suits one suits the other.
        found.append(evaluated(sparse, _SPARSE, 0.9, 1, measured=model.measured_))
    rows = [[*means_text(each), f"{each.seconds['training']:.2f} s"] for each in found]
    print_table(rows, ["", "nDCG@100", "Recall@20", "training"])
    if model.measured_ is not None:
        typer.echo(
            f"\nIn {found[1].seconds['measure']:.2f} s of its training the dense model chose parameters, "
            f"which the sparse one shares:\n{model.measured_}."
        )
    if output is not None:
        data = datasets.load("debian")
        with progress_bar() as progress:
            model.fit(data, progress=progress, measured=model.measured_, item_features=features)

    typer.echo(f"\nA package is built with {', '.join(_HISTORY)}. What else will it need?")
    best = model.recommend(history=_HISTORY, k=8, explain=3)
    names = ["rank", "item", "title", "score", "because"]
    print_table(best.select(names).rows(), [*names[:-1], "because of"])

    typer.echo(f"\nWhich packages are similar to {_KNOWN}?")
    similar = model.similar_items(_KNOWN, k=3)
    print_table(similar.rows(), similar.columns)

    item, title = _NEW
    with TemporaryDirectory() as folder:
        table = Path(folder) / "new.csv"
        table.write_text(f"item,title\n{item},{title}\n", encoding="utf-8")
        model.add_items(table)
    typer.echo(f"\nA new package that nobody has used, {item}, {title}: would it be recommended?")
    best = model.recommend(history=_HISTORY, k=1, explain=3, allow=[item])
    print_table(best.select(names).rows(), [*names[:-1], "because of"])

    _show_what_to_try_next(model, output)


def _show_what_to_try_next(model: MRF, output: Path | None) -> None:
    """Write the model to the file, if there is one, and list commands for it, or else one that writes it."""
    if output is None:
        typer.echo("\nDone. Fit a model to all the packages, and try it:\n")
        file = "debian.mrf"
        typer.echo(f"  {_program()} fit debian -o {file} --histories")
    else:
        model.save(output, include_histories=True)
        typer.echo(f"\nDone: {written(output)}, fitted to all the packages. Try next:\n")
        file = shlex.quote(str(expanded(output)))
    for command in (
        f"recommend {file} --history {','.join(_HISTORY)} --explain",
        f"recommend {file} --user gimp -k 5 --novelty 0.5",
        f"recommend {file} --all -k 20 -o recommendations.parquet",
        f"similar {file} {_KNOWN}",
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
