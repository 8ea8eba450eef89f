"""The command that learns a model. docs/cli.md is generated from the texts here."""

import time
from pathlib import Path
from typing import Annotated, Literal

import typer
from typer import Argument, Option

from mrfrec.cli.data import (
    Columns,
    Duplicates,
    MaxHistory,
    MinItems,
    MinUsers,
    MinValue,
    OnBad,
    Separator,
    Values,
    text_options,
)
from mrfrec.errors import ParameterError

__all__ = ["Threads", "fit"]

Threads = Annotated[int | None, Option(metavar="N", help="Threads to use; all cores if not given.")]


def _file_name(text: str) -> Path:
    """As it was typed; nothing at all would be the folder one is in."""
    if not text:
        raise typer.BadParameter("it must be the name of a file; got ''")
    return Path(text)


def fit(
    context: typer.Context,
    data: Annotated[
        list[str],
        Argument(
            help="Files, or patterns in quotes: CSV, TSV, JSON lines (also .gz, .zst), Parquet, Arrow.",
            metavar="DATA",
        ),
    ],
    output: Annotated[Path, Option("-o", "--output", metavar="FILE", help="The model file to write.")],
    histories: Annotated[
        bool, Option("--histories", help="Keep what each user had: recommend --user and --all need it.")
    ] = False,
    user_column: Annotated[
        str | None, Option(metavar="NAME", help="Column of the users, if its name does not tell.")
    ] = None,
    item_column: Annotated[str | None, Option(metavar="NAME", help="Column of the items.")] = None,
    value_column: Annotated[
        str | None, Option(metavar="NAME", help="Column of the values: ratings, counts, plays.")
    ] = None,
    title_column: Annotated[str | None, Option(metavar="NAME", help="Column of the items' titles.")] = None,
    items: Annotated[
        Path | None, Option(metavar="FILE", help="Another table, of the items and their titles.")
    ] = None,
    min_value: MinValue = None,
    values: Values = False,
    duplicates: Duplicates = "sum",
    max_history: MaxHistory = None,
    min_users: MinUsers = 0,
    min_items: MinItems = 0,
    on_bad: OnBad = "refuse",
    separator: Separator = None,
    columns: Columns = None,
    model: Annotated[
        list[str] | None,
        Option(
            metavar="MODEL",
            help="Which model: MRF, EASE, EDLAE, Popularity, ItemKNN, SLIM, FsSLIM, WMF, CDAE, MultDAE or "
            "MultVAE, with parameters of its own: 'SLIM: l1=1'. MRF if not given.",
        ),
    ] = None,
    params: Annotated[
        Path | None,
        Option(
            metavar="FILE",
            help="Model and parameters, as mrfrec tune writes them; what is typed wins.",
            parser=_file_name,
        ),
    ] = None,
    l2: Annotated[
        float, Option(metavar="X", help="Ridge, the first thing to tune: more for less data.")
    ] = 6.0,
    alpha: Annotated[float, Option(metavar="X", help="Rescaling: 0 covariances, 1 correlations.")] = 0.75,
    sparsity: Annotated[
        str, Option(metavar="X", help="Share of the weights to keep, such as 0.005; dense for all of them.")
    ] = "auto",
    threshold: Annotated[
        float | None, Option(metavar="X", help="Instead: keep pairs that correlate more than this.")
    ] = None,
    max_neighbors: Annotated[int, Option(metavar="N", help="Sparse: most weights of an item.")] = 1000,
    r: Annotated[float, Option(metavar="X", help="Sparse: from 0, accurate, to 1, faster.")] = 0.0,
    l2_flat: Annotated[float, Option(metavar="X", help="A second ridge, the same for all items.")] = 0.0,
    dropout: Annotated[
        float, Option(metavar="X", help="A third, in proportion to how often items are used; below 1.")
    ] = 0.0,
    user_weight: Annotated[float, Option(metavar="X", help="Above 0, long histories count less.")] = 0.0,
    center: Annotated[bool, Option(help="Subtract each item's mean, or do not.")] = True,
    mean_constraint: Annotated[
        bool, Option("--mean-constraint", help="Dense: fit so that the items' means are reproduced.")
    ] = False,
    offset: Annotated[
        bool, Option("--offset", help="Score by the exact conditional mean; popular items score higher.")
    ] = False,
    dtype: Annotated[Literal["float32", "float64"], Option(help="Precision of the weights.")] = "float32",
    threads: Threads = None,
    memory_limit: Annotated[
        str | None, Option(metavar="SIZE", help="Such as 8GB; what the machine has free if not given.")
    ] = None,
    device: Annotated[
        str | None,
        Option(metavar="NAME", help="Where an autoencoder is trained: cpu, cuda; a GPU if there is one."),
    ] = None,
    checkpoint: Annotated[
        Path | None,
        Option(
            metavar="FILE",
            help="Keep the state of that training here: the same command goes on there.",
            parser=_file_name,
        ),
    ] = None,
) -> None:
    """Learn a model from a table of who used what.

    The table has a row for each time a user used an item. Ids are integers or texts and stay what they are.
    Bad rows are refused with their number; nothing is repaired. A model that would not fit in memory is
    refused before it is begun.

    --l2 to --dtype are parameters of an MRF, and of other models that have the same.

    \b
    Examples:
      mrfrec fit events.csv -o shop.mrf
      mrfrec fit ratings.csv -o movies.mrf --min-value 4 --items movies.csv --histories
      mrfrec fit 'logs/*.parquet' -o songs.mrf --sparsity 0.005 --memory-limit 8GB
      mrfrec fit triplets.txt -o songs.mrf --columns user,song,plays
      mrfrec fit events.csv -o shop.mrf --params best.json
      mrfrec fit events.csv -o shop.mrf --model 'SLIM: l1=1, l2=50'
      mrfrec fit events.csv -o shop.mrf --model MultVAE --device cuda --checkpoint training.ckpt
    """
    from mrfrec.cli.models import check_machine, make, only, parse_model, with_options
    from mrfrec.cli.running import check_output, going_on
    from mrfrec.cli.show import note, progress_bar, size_of
    from mrfrec.io.atomic import check_writable, expanded, refuse_own_input
    from mrfrec.io.sources import paths_of
    from mrfrec.io.tables import read_interactions

    check_writable(output)
    files = [*([] if items is None else [items]), *(path for name in data for path in paths_of(name))]
    refuse_own_input(output, files)
    if checkpoint is not None and expanded(checkpoint).resolve() == expanded(output).resolve():
        raise ParameterError("--checkpoint", "another file than --output", str(checkpoint))
    check_output("--checkpoint", checkpoint, files)
    parameters = {
        "l2": l2, "alpha": alpha, "l2_flat": l2_flat, "dropout": dropout, "user_weight": user_weight,
        "center": center, "offset": offset, "sparsity": _sparsity(sparsity), "threshold": threshold,
        "max_neighbors": max_neighbors, "r": r, "mean_constraint": mean_constraint, "dtype": dtype,
    }  # fmt: skip
    typed = {n: x for n, x in parameters.items() if "DEFAULT" not in str(context.get_parameter_source(n))}
    machine = {
        "threads": threads, "memory_limit": memory_limit, "device": device, "checkpoint": checkpoint
    }  # fmt: skip
    spec = with_options(parse_model(only(model), params), typed)
    check_machine(machine, [spec.kind])
    made = make(spec, machine)
    with progress_bar() as progress:
        interactions = read_interactions(
            data, user_column, item_column, value_column, title_column,
            items=items, min_value=min_value, binary=not values, duplicates=duplicates,
            max_history=max_history, min_users=min_users, min_items=min_items, on_bad=on_bad,
            progress=progress, **text_options(separator, columns),
        )  # fmt: skip
        note(f"{interactions.n_users:,} users × {interactions.n_items:,} items, {len(interactions):,} pairs")
        for reason, count in interactions.skipped.items():
            note(f"left out {count:,} rows: {reason}")
        if checkpoint is not None and expanded(checkpoint).exists():
            note(f"going on from {checkpoint}")
        start = time.perf_counter()
        with going_on(checkpoint):
            made.fit(interactions, progress=progress)
    seconds = time.perf_counter() - start
    made.save(output, include_histories=histories)
    note(f"fitted {spec.kind} in {seconds:.1f} s; wrote {output} ({size_of(output)})")


def _sparsity(text: str) -> float | Literal["auto"] | None:
    if text in ("auto", "dense"):
        return "auto" if text == "auto" else None
    try:
        return float(text)
    except ValueError:
        raise ParameterError("--sparsity", "a number above 0 and at most 1, auto, or dense", text) from None
