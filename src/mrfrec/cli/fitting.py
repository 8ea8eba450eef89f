"""The commands fit, update and forget. Their texts become docs/reference/cli.md."""

import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Annotated, Any

from typer import Argument

from mrfrec import datasets
from mrfrec.checks import counted
from mrfrec.cli import note, written
from mrfrec.cli.data import data_set_named, refuse
from mrfrec.cli.models import check_machine, make_models, only_model, parse_model, with_options
from mrfrec.cli.names import find_users
from mrfrec.cli.options import (
    Features,
    Machine,
    ModelFile,
    ModelParameters,
    Reading,
    TableForm,
    UserColumn,
)
from mrfrec.cli.show import check_output, progress_bar
from mrfrec.errors import DataError, ParameterError
from mrfrec.io.artifact import open_file, read_erasures
from mrfrec.io.atomic import WAIT, expanded, locked
from mrfrec.io.item_table import read_item_table
from mrfrec.io.sources import SUFFIXES
from mrfrec.io.tables import RowsBefore, read_events
from mrfrec.models.mrf.model import MRF
from mrfrec.models.recommender import Recommender
from mrfrec.models.registry import load
from mrfrec.models.updating import read_more

Growing = Annotated[Path, Argument(metavar="MODEL", help="A model file written by mrfrec fit --histories.")]
Updated = Annotated[Path | None, "The model file to write.  [default: MODEL]"]
Wait = Annotated[float, "SECONDS", "Time to wait for another command that rewrites MODEL."]


def fit(
    data: Annotated[
        list[str],
        Argument(
            metavar="DATA",
            help="Files, or patterns in quotes: CSV, TSV, JSON lines (also .gz, .zst), Parquet, Arrow; a "
            "folder of Parquet files; a database with --query: postgresql:// or sqlite:///; or debian for "
            "the data set of the package.",
        ),
    ],
    output: ModelFile,
    *,
    reading: Reading,
    model: Annotated[
        list[str] | None,
        "MODEL",
        "MRF, EASE, EDLAE, Popularity or ItemKNN, also with parameters: 'EASE: l2=100'.  [default: MRF]",
    ] = None,
    params: Annotated[
        Path | None, "Model and parameters from mrfrec tune; other options override them."
    ] = None,
    features: Features,
    parameters: ModelParameters,
    machine: Machine,
    histories: Annotated[bool, "Store the users' histories: recommend --user and --all need them."] = False,
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
      mrfrec fit clicks.csv -o shop.mrf --event-weights view=0.2,cart=0.5,buy=1 --half-life 90d
      mrfrec fit postgresql://db/shop --query 'select user_id, sku from orders' -o shop.mrf
      mrfrec fit events.csv -o shop.mrf --params best.json
      mrfrec fit events.csv -o shop.mrf --model 'EDLAE: dropout=0.5, l2=50'
      mrfrec fit events.csv -o shop.mrf --item-features products.csv --histories
    """
    name = data_set_named(data, reading)
    _check_model_file(output)
    check_output(output, *(data if name is None else ()), reading.get("items"), features.item_features)
    spec = with_options(parse_model(only_model(model), params), parameters)
    (recommender,) = make_models([spec], machine)
    with progress_bar() as progress:
        if name is not None:
            interactions = datasets.load(name).filtered(**reading)
        else:
            before = RowsBefore(erased=read_erasures(output))
            interactions = read_events(data, before, progress=progress, **reading)
        note(str(interactions.size))
        start = time.perf_counter()
        recommender.fit(interactions, progress=progress, item_features=features.read())
    seconds = time.perf_counter() - start
    recommender.save(output, include_histories=histories)
    note(f"fitted {spec.kind} in {seconds:.1f} s; {written(output)}")


def update(
    model: Annotated[
        Path,
        Argument(
            metavar="MODEL", help="A model file written by mrfrec fit, but for --items with --histories."
        ),
    ],
    data: Annotated[
        list[str] | None, Argument(help="Files of new events, as for mrfrec fit.", metavar="DATA")
    ] = None,
    *,
    reading: TableForm,
    features: Features,
    machine: Machine,
    output: Updated = None,
    batch: Annotated[
        str | None, "NAME", "Name of the batch, such as 2026-11-16.  [default: a hash of DATA]"
    ] = None,
    again: Annotated[
        bool, "Add the batch even if one of that name was added before, or pairs of it whose values add up."
    ] = False,
    measure_again: Annotated[bool, "Measure the parameters anew that are auto."] = False,
    wait: Wait = WAIT,
) -> None:
    """Add new events to a model, and fit it again.

    Gives the same model, to the bit, as a fit on all events, with the parameters of MODEL and the values that
    were measured for it. The events are read by the rules of its data (values, weights, duplicates, since,
    until); users and items may be new. A batch that was added before is refused. The model file is replaced
    when the new one is whole, and locked meanwhile: another command that rewrites it waits.

    Without DATA nothing is fitted. --item-features then adds the new items of its table: each gets the
    weights that a fit with it would give it, and nothing else changes. Items that the model knows are left as
    they are, with a note; if all are known, MODEL is not written again. MODEL was fitted with
    --item-features.

    Without DATA, --items replaces the table of items, whose columns --where of mrfrec recommend goes by:
    stock and prices change by the hour, and a service reloads the file. --query is then for this table. Its
    columns keep their types; in a text file the values tell them. Items that the model does not know are
    passed over. Items without a title take the one in the table; nothing else changes.

    \b
    Examples:
      mrfrec update shop.mrf today.csv
      mrfrec update shop.mrf 'logs/2026-11-16-*.parquet' --batch 2026-11-16 -o new.mrf
      mrfrec update shop.mrf --item-features arrivals.csv
      mrfrec update shop.mrf --items products.csv
      mrfrec update shop.mrf --items postgresql://db/shop --query 'select sku, price, stock from products'
    """
    _check_model_file(output)
    check_output(output or model, *(data or ()), reading.get("items"), features.item_features)
    if not data:
        flags = {"batch": batch, "again": again, "measure_again": measure_again}
        typed = {**reading, **machine, **{name: x for name, x in flags.items() if x}}
        _update_items(model, output, features, machine, wait, typed)
        return
    with _rewriting(model, output, "update", machine, wait) as opened, progress_bar() as progress:
        events = read_more(opened.fitted_, data, progress=progress, **reading)
        opened.update(
            events, batch=batch, again=again, measure_again=measure_again, progress=progress,
            item_features=features.read(),
        )  # fmt: skip
        note(f"added {opened.batches_[-1]}: now {opened.fitted_.size}")


def _update_items(
    model: Path,
    output: Path | None,
    features: Features,
    machine: dict[str, Any],
    wait: float,
    typed: dict[str, Any],
) -> None:
    """Add items by their features, or replace the table of items, without a fit; `typed` are all options."""
    used = {"item"}
    table, new = typed.get("items"), features.item_features
    if table is not None:
        used |= {"items", "query"}
    if new is not None:
        used |= {*machine, "features_query"}
    of_features = {name: getattr(features, name) for name in ("feature_columns", "features_query")}
    typed = {**typed, **{name: x for name, x in of_features.items() if x is not None}}
    refuse({name: x for name, x in typed.items() if name not in used}, "an update without DATA")
    if table is None and new is None:
        raise DataError("nothing to update: give DATA, --item-features or --items.")
    item = typed.get("item")
    with _rewriting(model, output, None if new is None else "add_items", machine, wait) as opened:
        if new is not None:
            if not isinstance(opened, MRF):
                raise DataError(f"{model} is a {type(opened).__name__}: only an MRF knows features of items.")
            count = opened.add_items(new, item=item, query=features.features_query)
            note(f"added {counted(count, 'item')}: now {opened.fitted_.size}")
        if table is not None:
            kept = opened.set_items(read_item_table(table, item, query=typed.get("query"))).catalogue.table
            assert kept is not None
            columns = ", ".join(f"{name} ({kind})" for name, kind in kept.types.items())
            note(f"{kept.described:,} of {counted(len(kept), 'item')} have values; columns: {columns}")


def forget(
    model: Growing,
    users: Annotated[
        Path | None,
        "User ids, one per line (.txt) or a column of a table.  [default: those who were forgotten before]",
    ] = None,
    *,
    reading: UserColumn,
    machine: Machine,
    output: Updated = None,
    wait: Wait = WAIT,
) -> None:
    """Remove users from a model, and fit it again without them.

    Nothing of them is left in the file that is written: neither their ids, nor their histories, nor items
    that nobody else used, unless features name them. Copies that a killed mrfrec nightly left beside it are
    removed. Other copies of the model and the tables it was fitted to are not touched. The model file is
    locked meanwhile, as by mrfrec update.

    A salted hash of each id and the day are kept, in the file and in MODEL.erased beside it: mrfrec update,
    fit and nightly leave out rows of these people up to that day. Without --users, an older MODEL that was
    restored is fitted again without them. A MODEL without histories stays as it is until the next fit.

    \b
    Examples:
      mrfrec forget shop.mrf --users erased.txt
      mrfrec forget shop.mrf --users erased.csv -o new.mrf
      mrfrec forget shop.mrf
    """
    _check_model_file(output)
    check_output(output or model, users)
    with _rewriting(model, output, "forget", machine, wait) as opened:
        before = opened.fitted_
        erased = [] if users is None else find_users(
            opened, None, users, reading.get("user"), or_texts=True
        )  # fmt: skip
        known = opened.users_
        if users is not None and not len(erased):
            raise DataError(f"nothing was changed: there is no user in {users}.")
        with progress_bar() as progress:
            opened.forget(erased, progress=progress)
        if known is not None:
            note(f"forgot {counted(before.size.users - opened.fitted_.size.users, 'user')}")


def _check_model_file(output: Path | None) -> None:
    """Refuse a name that a table has, which a model must not replace."""
    if output is not None and output.suffix.lower() in SUFFIXES:
        raise ParameterError("--output", "the name of a model, such as shop.mrf", str(output))


@contextmanager
def _rewriting(
    path: Path, output: Path | None, command: str | None, machine: dict[str, Any], wait: float
) -> Iterator[Recommender]:
    """Open a model, and write it at the end; locked in between if its own file is written.

    A command that is named needs histories, but for forget.
    """
    open_file(path)  # before there is a lock beside a name that was misspelt
    target = output or path
    is_rewritten = expanded(target).exists() and expanded(target).samefile(expanded(path))
    with locked(path, wait=wait) if is_rewritten else nullcontext():
        if command == "forget" and is_rewritten:
            from mrfrec.nightly.publishing import remove_unpublished

            for copy in remove_unpublished(expanded(path)):
                note(f"removed {copy}, which a killed nightly run had left")
        opened = load(path)
        keeps_notes = command is None or (command == "forget" and not opened.fitted_.has_histories)
        if not keeps_notes:
            opened.fitted_.origin_for(str(command))  # raises if histories are missing
        check_machine(machine, [type(opened).__name__])
        known = opened.get_params()
        yield opened.set_params(**{name: x for name, x in machine.items() if name in known})
        if opened.fitted_.file_hash and output is None:  # nothing was changed
            return
        notes = opened.notes_ if keeps_notes else None
        opened.save(target, include_histories=opened.fitted_.has_histories, notes=notes)
    note(written(target))
