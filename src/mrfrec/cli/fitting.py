"""The commands fit, update and forget. Their texts become docs/reference/cli.md."""

import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Annotated, Any, ClassVar

from pydantic import Field

from mrfrec import datasets
from mrfrec.checks import counted
from mrfrec.cli import note, written
from mrfrec.cli.data import data_set_named, refuse
from mrfrec.cli.named import check_machine, find_users, make_models, only_model, parse_model, with_options
from mrfrec.cli.options import (
    Features,
    Machine,
    ModelParameters,
    Reading,
    TableForm,
    UserColumn,
)
from mrfrec.cli.show import check_output, progress_bar
from mrfrec.errors import DataError
from mrfrec.fitted.files import check_model_name
from mrfrec.io.artifact import open_file, read_erasures
from mrfrec.io.atomic import WAIT, expanded, locked
from mrfrec.io.item_table import read_item_table
from mrfrec.io.tables import RowsBefore, read_events
from mrfrec.models.mrf.model import MRF
from mrfrec.models.recommender import Recommender
from mrfrec.models.registry import load
from mrfrec.models.updating import read_more
from mrfrec.options import USUAL, Options, Shell


class FitOptions(Options):
    """What to fit, and where to write it."""

    group: ClassVar[str] = "Data"

    data: Annotated[list[str], Shell(value="DATA", argument=True)] = Field(
        description="Files, or patterns in quotes: CSV, TSV, JSON lines (also .gz, .zst), Parquet, Arrow; a "
        "folder of Parquet files; a database with --query: postgresql:// or sqlite:///; or debian for the "
        "data set of the package."
    )
    output: Annotated[Path, Shell("-o --output")] = Field(description="The model file to write.")


class FittedKind(Options):
    """What model to fit."""

    group: ClassVar[str] = "Model"

    model: Annotated[list[str] | None, Shell(value="MODEL", usual=True)] = Field(
        None,
        description="MRF, EASE, EDLAE, Popularity or ItemKNN, also with parameters: 'EASE: l2=100'.  "
        "[default: MRF]",
    )
    params: Path | None = Field(
        None, description="Model and parameters from mrfrec tune; other options override them."
    )
    histories: Annotated[bool, USUAL] = Field(
        False, description="Store the users' histories: recommend --user and --all need them."
    )


class Rewriting(Options):
    """Where a command that changes a model writes it."""

    output: Annotated[Path | None, Shell("-o --output", usual=True)] = Field(
        None, description="The model file to write.  [default: MODEL]"
    )
    wait: Annotated[float, Shell(value="SECONDS")] = Field(
        WAIT, description="Time to wait for another command that rewrites MODEL."
    )


class UpdateOptions(Options):
    """What to add to which model."""

    group: ClassVar[str] = "Data"

    model: Annotated[Path, Shell(value="MODEL", argument=True)] = Field(
        description="A model file written by mrfrec fit, but for --items with --histories."
    )
    data: Annotated[list[str] | None, Shell(value="DATA", argument=True)] = Field(
        None, description="Files of new events, as for mrfrec fit."
    )
    batch: Annotated[str | None, Shell(value="NAME", usual=True)] = Field(
        None, description="Name of the batch, such as 2026-11-16.  [default: a hash of DATA]"
    )
    again: Annotated[bool, USUAL] = Field(
        False,
        description="Add the batch even if a batch of this name was added before, or pairs of it whose "
        "values add up.",
    )
    measure_again: Annotated[bool, Shell(group="Model", usual=True)] = Field(
        False, description="Measure the parameters that are auto anew."
    )


class ForgetOptions(Options):
    """Whom to remove from which model."""

    group: ClassVar[str] = "Data"

    model: Annotated[Path, Shell(value="MODEL", argument=True)] = Field(
        description="A model file written by mrfrec fit --histories."
    )
    users: Annotated[Path | None, USUAL] = Field(
        None,
        description="User ids, one per line (.txt) or a column of a table.  [default: the users who were "
        "forgotten before]",
    )


def fit(
    own: FitOptions,
    reading: Reading,
    fitted: FittedKind,
    features: Features,
    parameters: ModelParameters,
    machine: Machine,
) -> None:
    """Fit a model to a table of users and items.

    The table has a row for each interaction. Ids may be integers or texts and keep their type. Bad rows are
    refused with their line number. A fit that would not fit in memory is refused before it starts.

    The options from --sparsity on are parameters of the MRF, and of other models that have them.

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
    name = data_set_named(own.data, reading)
    _check_model_file(own.output)
    check_output(
        own.output, *(own.data if name is None else ()), reading.get("items"), features.item_features
    )
    spec = with_options(parse_model(only_model(fitted.model), fitted.params), parameters)
    (recommender,) = make_models([spec], machine)
    with progress_bar() as progress:
        if name is not None:
            interactions = datasets.load(name).filtered(**reading)
        else:
            before = RowsBefore(erased=read_erasures(own.output))
            interactions = read_events(own.data, before, progress=progress, **reading)
        note(str(interactions.size))
        start = time.perf_counter()
        recommender.fit(interactions, progress=progress, item_features=features.read())
    seconds = time.perf_counter() - start
    recommender.save(own.output, include_histories=fitted.histories)
    note(f"fitted {spec.kind} in {seconds:.1f} s; {written(own.output)}")


def update(
    own: UpdateOptions, reading: TableForm, features: Features, machine: Machine, target: Rewriting
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
    _check_model_file(target.output)
    check_output(target.output or own.model, *(own.data or ()), reading.get("items"), features.item_features)
    if not own.data:
        flags = {"batch": own.batch, "again": own.again, "measure_again": own.measure_again}
        typed = {**reading, **machine, **{name: x for name, x in flags.items() if x}}
        _update_items(own.model, target, features, machine, typed)
        return
    with _rewriting(own.model, target, "update", machine) as opened, progress_bar() as progress:
        events = read_more(opened.fitted_, own.data, progress=progress, **reading)
        opened.update(
            events, batch=own.batch, again=own.again, measure_again=own.measure_again, progress=progress,
            item_features=features.read(),
        )  # fmt: skip
        note(f"added {opened.batches_[-1]}: now {opened.fitted_.size}")


def _update_items(
    model: Path,
    target: Rewriting,
    features: Features,
    machine: dict[str, Any],
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
    with _rewriting(model, target, None if new is None else "add_items", machine) as opened:
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


def forget(own: ForgetOptions, reading: UserColumn, machine: Machine, target: Rewriting) -> None:
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
    _check_model_file(target.output)
    check_output(target.output or own.model, own.users)
    with _rewriting(own.model, target, "forget", machine) as opened:
        before = opened.fitted_
        erased = [] if own.users is None else find_users(
            opened, None, own.users, reading.get("user"), or_texts=True
        )  # fmt: skip
        known = opened.users_
        if own.users is not None and not len(erased):
            raise DataError(f"nothing was changed: there is no user in {own.users}.")
        with progress_bar() as progress:
            opened.forget(erased, progress=progress)
        if known is not None:
            note(f"forgot {counted(before.size.users - opened.fitted_.size.users, 'user')}")


def _check_model_file(output: Path | None) -> None:
    """Refuse a name that a table has, before long work starts."""
    if output is not None:
        check_model_name(output, "--output")


@contextmanager
def _rewriting(
    path: Path, options: Rewriting, command: str | None, machine: dict[str, Any]
) -> Iterator[Recommender]:
    """Open a model, and write it at the end; locked in between if its own file is written.

    A command that is named needs histories, but for forget.
    """
    open_file(path)  # before there is a lock beside a name that was misspelt
    target = options.output or path
    is_rewritten = expanded(target).exists() and expanded(target).samefile(expanded(path))
    with locked(path, wait=options.wait) if is_rewritten else nullcontext():
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
        if opened.fitted_.file_hash and options.output is None:  # nothing was changed
            return
        notes = opened.notes_ if keeps_notes else None
        opened.save(target, include_histories=opened.fitted_.has_histories, notes=notes)
    note(written(target))
