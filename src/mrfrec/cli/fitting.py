"""The command fit. docs/cli.md is generated from the texts here."""

import time
from pathlib import Path
from typing import Annotated, Any, Literal

from typer import Argument, Option

from mrfrec.cli.data import TableOptions, note_skipped
from mrfrec.cli.options import (
    Cluster,
    Device,
    Folder,
    MemoryLimit,
    ModelFile,
    SharedPath,
    Threads,
    takes_options,
)
from mrfrec.errors import ParameterError


@takes_options
def fit(
    data: Annotated[
        list[str],
        Argument(
            help="Files, or patterns in quotes: CSV, TSV, JSON lines (also .gz, .zst), Parquet, Arrow; a "
            "database with --query: postgresql://, sqlite:/// or duckdb:///; or the name of a data set "
            "(mrfrec paper datasets list).",
            metavar="DATA",
        ),
    ],
    output: ModelFile,
    reading: TableOptions,
    histories: Annotated[
        bool, Option("--histories", help="Store the users' histories: recommend --user and --all need them.")
    ] = False,
    title_column: Annotated[str | None, Option(metavar="NAME", help="Column of the items' titles.")] = None,
    items: Annotated[
        Path | None, Option(metavar="FILE", help="Another table, of the items and their titles.")
    ] = None,
    folder: Folder = None,
    model: Annotated[
        list[str] | None,
        Option(
            metavar="MODEL",
            help="MRF, EASE, EDLAE, Popularity, ItemKNN, SLIM, FsSLIM, WMF, CDAE, MultDAE or MultVAE, also "
            "with parameters: 'SLIM: l1=1'.",
            show_default="MRF",
        ),
    ] = None,
    params: Annotated[
        Path | None,
        Option(metavar="FILE", help="Model and parameters from mrfrec tune; other options override them."),
    ] = None,
    l2: Annotated[
        str | None, Option(metavar="X", help="Ridge: auto, or a number, larger for less data.")
    ] = None,
    alpha: Annotated[
        float | None, Option(metavar="X", help="Rescaling: 0 for covariances, 1 for correlations.")
    ] = None,
    sparsity: Annotated[
        str | None,
        Option(metavar="X", help="Share of the weights to keep, such as 0.005; dense for all of them."),
    ] = None,
    threshold: Annotated[
        float | None,
        Option(metavar="X", help="Instead of --sparsity: keep pairs that correlate more than this."),
    ] = None,
    max_neighbors: Annotated[
        int | None, Option(metavar="N", help="Sparse: largest number of weights of an item.")
    ] = None,
    r: Annotated[float | None, Option(metavar="X", help="Sparse: 0 is most accurate, 1 fastest.")] = None,
    l2_flat: Annotated[
        float | None, Option(metavar="X", help="A second ridge, the same for all items.")
    ] = None,
    dropout: Annotated[
        float | None,
        Option(metavar="X", help="A third ridge, proportional to the popularity of an item; below 1."),
    ] = None,
    user_weight: Annotated[
        float | None, Option(metavar="X", help="Above 0, long histories count less.")
    ] = None,
    center: Annotated[
        bool | None, Option("--center/--no-center", help="Whether to subtract each item's mean.")
    ] = None,
    novelty: Annotated[
        float | None, Option(metavar="X", help="Above 0, rarer items score higher; below, popular ones.")
    ] = None,
    rank: Annotated[
        str | None,
        Option(metavar="N", help="Vectors of a low-rank part beside the weights: auto, or 0 for none."),
    ] = None,
    rank_weight: Annotated[
        float | None, Option(metavar="X", help="How much the low-rank part counts, beside 1 for the weights.")
    ] = None,
    mean_constraint: Annotated[
        bool | None, Option("--mean-constraint", help="Dense: make predictions reproduce the items' means.")
    ] = None,
    offset: Annotated[
        bool | None,
        Option("--offset/--no-offset", help="Whether to add the intercept of the conditional mean."),
    ] = None,
    dtype: Annotated[Literal["float32", "float64"] | None, Option(help="Precision of the weights.")] = None,
    threads: Threads = None,
    memory_limit: MemoryLimit = None,
    device: Device = None,
    cluster: Cluster = None,
    shared_path: SharedPath = None,
    checkpoint: Annotated[
        Path | None,
        Option(metavar="FILE", help="Keep the state of an autoencoder's training in this file, to continue "
               "after an interruption."),
    ] = None,
) -> None:  # fmt: skip
    """Fit a model to a table of users and items.

    The table has a row for each interaction. Ids may be integers or texts and keep their type. Bad rows are
    refused with their line number. A fit that would not fit in memory is refused before it starts.

    The options from --l2 to --dtype are parameters of the MRF and of other models that have them.

    \b
    Examples:
      mrfrec fit events.csv -o shop.mrf
      mrfrec fit debian -o debian.mrf
      mrfrec fit ratings.csv -o movies.mrf --min-value 4 --items movies.csv --histories
      mrfrec fit 'logs/*.parquet' -o songs.mrf --sparsity 0.005 --memory-limit 8GB
      mrfrec fit clicks.csv -o shop.mrf --event-weights view=0.2,cart=0.5,buy=1 --half-life 30d
      mrfrec fit triplets.txt -o songs.mrf --columns user,song,plays
      mrfrec fit postgresql://db/shop --query 'select user_id, sku from orders' -o shop.mrf
      mrfrec fit events.csv -o shop.mrf --params best.json
      mrfrec fit events.csv -o paper.mrf --model 'preset=paper, l2=3'
      mrfrec fit events.csv -o shop.mrf --model 'SLIM: l1=1, l2=50'
      mrfrec fit events.csv -o shop.mrf --sparsity 0.005 --cluster tcp://scheduler:8786
      mrfrec fit events.csv -o shop.mrf --model MultVAE --device cuda --checkpoint training.ckpt
    """
    from mrfrec import datasets
    from mrfrec.cli.models import check_machine, make, only, parse_model, parse_value, with_options
    from mrfrec.cli.running import READING, check_output, cluster_of, resumable
    from mrfrec.cli.show import note, progress_bar, size_of
    from mrfrec.core.progress import part_of
    from mrfrec.io.atomic import check_writable, expanded, refuse_own_input
    from mrfrec.io.sources import paths_of
    from mrfrec.io.tables import read_interactions

    check_writable(output)
    name = reading.data_set(data)
    for option, value in {"--title-column": title_column, "--items": items}.items():
        if name is not None and value is not None:
            rule = f"left out with the data set {name}, which is read as it was prepared"
            raise ParameterError(option, rule, str(value))
    files = [] if name is not None else [path for source in data for path in paths_of(source)]
    files += [] if items is None else [items]
    refuse_own_input(output, files)
    if checkpoint is not None and expanded(checkpoint).resolve() == expanded(output).resolve():
        raise ParameterError("--checkpoint", "another file than --output", str(checkpoint))
    check_output("--checkpoint", checkpoint, files)
    parameters: dict[str, Any] = {
        "l2": l2, "alpha": alpha, "l2_flat": l2_flat, "dropout": dropout, "user_weight": user_weight,
        "center": center, "offset": offset, "sparsity": sparsity, "threshold": threshold,
        "novelty": novelty, "rank": rank, "rank_weight": rank_weight,
        "max_neighbors": max_neighbors, "r": r, "mean_constraint": mean_constraint, "dtype": dtype,
    }  # fmt: skip
    typed = {name: value for name, value in parameters.items() if value is not None}
    typed |= {name: parse_value(typed[name]) for name in ("l2", "sparsity", "rank") if name in typed}
    machine = {
        "threads": threads, "memory_limit": memory_limit, "device": device, "checkpoint": checkpoint
    }  # fmt: skip
    spec = with_options(parse_model(only(model), params), typed)
    check_machine(machine, [spec.kind])
    recommender = make(spec, machine)
    with cluster_of(cluster, shared_path, recommender) as workers, progress_bar() as progress:
        if name is not None:
            interactions = datasets.load(name, folder).filtered(**reading.limits())
        else:
            interactions = read_interactions(
                data, reading.user_column, reading.item_column, reading.value_column, title_column,
                items=items, time=reading.time_column, progress=part_of(progress, 0, READING),
                **reading.rows(), **reading.limits(),
            )  # fmt: skip
        note(f"{interactions.n_users:,} users × {interactions.n_items:,} items, {len(interactions):,} pairs")
        note_skipped(interactions.skipped)
        if checkpoint is not None and expanded(checkpoint).exists():
            note(f"continuing from {checkpoint}")
        start = time.perf_counter()
        with resumable(checkpoint):
            recommender.fit(interactions, progress=part_of(progress, READING, 1), **workers)
    seconds = time.perf_counter() - start
    recommender.save(output, include_histories=histories)
    note(f"fitted {spec.kind} in {seconds:.1f} s; wrote {output} ({size_of(output)})")
