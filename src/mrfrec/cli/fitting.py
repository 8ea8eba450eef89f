"""The command fit. docs/cli.md is generated from the texts here."""

import time
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from mrfrec.cli.data import data_set_named, note_skipped
from mrfrec.cli.derived import Machine, ModelParameters, Reading
from mrfrec.cli.options import (
    Cluster,
    Features,
    Folder,
    ModelFile,
    takes_options,
)


@takes_options
def fit(
    data: Annotated[
        list[str],
        Argument(
            help="Files, or patterns in quotes: CSV, TSV, JSON lines (also .gz, .zst), Parquet, Arrow; a "
            "database with --query: postgresql:// or sqlite:///; or the name of a data set "
            "(mrfrec paper datasets list).",
            metavar="DATA",
        ),
    ],
    output: ModelFile,
    *,
    reading: Reading,
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
    features: Features,
    parameters: ModelParameters,
    machine: Machine,
    cluster: Cluster = None,
    histories: Annotated[
        bool,
        Option("--histories", help="Store the users' histories: recommend --user and --all need them."),
    ] = False,
) -> None:
    """Fit a model to a table of users and items.

    The table has a row for each interaction. Ids may be integers or texts and keep their type. Bad rows are
    refused with their line number. A fit that would not fit in memory is refused before it starts.

    The options from --l2 to --dtype are parameters of the MRF and of other models that have them.

    \b
    Examples:
      mrfrec fit events.csv -o shop.mrf
      mrfrec fit ratings.csv -o movies.mrf --min-value 4 --items movies.csv --histories
      mrfrec fit 'logs/*.parquet' -o songs.mrf --sparsity 0.005 --memory-limit 8GB
      mrfrec fit clicks.csv -o shop.mrf --event-weights view=0.2,cart=0.5,buy=1 --half-life 30d
      mrfrec fit postgresql://db/shop --query 'select user_id, sku from orders' -o shop.mrf
      mrfrec fit events.csv -o shop.mrf --params best.json
      mrfrec fit events.csv -o shop.mrf --model 'SLIM: l1=1, l2=50'
      mrfrec fit events.csv -o shop.mrf --model MultVAE --device cuda
      mrfrec fit events.csv -o shop.mrf --item-features products.csv --histories
    """
    from mrfrec import datasets
    from mrfrec.cli.models import make, only, parse_model, with_options
    from mrfrec.cli.running import check_output, cluster_of
    from mrfrec.cli.show import note, progress_bar, size_of
    from mrfrec.io.sources import paths_of
    from mrfrec.io.tables import read_interactions

    name = data_set_named(data, reading)
    files = [] if name is not None else [path for source in data for path in paths_of(source)]
    files += [Path(reading["items"])] if "items" in reading else []
    check_output(output, files)
    spec = with_options(parse_model(only(model), params), parameters)
    (recommender,) = make([spec], machine)
    with cluster_of(cluster, recommender) as workers, progress_bar() as progress:
        if name is not None:
            interactions = datasets.load(name, folder).filtered(**reading)
        else:
            interactions = read_interactions(data, progress=progress, **reading)
        note(f"{interactions.n_users:,} users × {interactions.n_items:,} items, {len(interactions):,} pairs")
        note_skipped(interactions.skipped)
        start = time.perf_counter()
        recommender.fit(interactions, progress=progress, item_features=features.read(), **workers)
    seconds = time.perf_counter() - start
    recommender.save(output, include_histories=histories)
    note(f"fitted {spec.kind} in {seconds:.1f} s; wrote {output} ({size_of(output)})")
