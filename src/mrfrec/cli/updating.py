"""The commands update, forget and add-items. docs/cli.md is generated from the texts here."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from mrfrec.cli.data import note_skipped
from mrfrec.cli.derived import Machine, TableForm
from mrfrec.cli.options import Features, takes_options
from mrfrec.errors import DataError

if TYPE_CHECKING:
    from mrfrec.models.recommender import Recommender

Model = Annotated[Path, Argument(help="A model file written by mrfrec fit --histories.", metavar="MODEL")]
Updated = Annotated[
    Path | None,
    Option("-o", "--output", metavar="FILE", help="The model file to write.", show_default="MODEL"),
]


@takes_options
def update(
    model: Model,
    data: Annotated[list[str], Argument(help="Files of new events, as for mrfrec fit.", metavar="DATA")],
    reading: TableForm,
    features: Features,
    machine: Machine,
    output: Updated = None,
    batch: Annotated[
        str | None,
        Option(metavar="NAME", help="Name of the batch, such as 2026-11-16.", show_default="a hash of DATA"),
    ] = None,
    again: Annotated[
        bool, Option("--again", help="Add the batch even if one of that name was added before.")
    ] = False,
    measure_again: Annotated[
        bool, Option("--measure-again", help="Measure the parameters anew that are auto.")
    ] = False,
) -> None:
    """Add new events to a model, and fit it again.

    Gives the same model, to the bit, as a fit on all events, with the parameters of MODEL and the values that
    were measured for it. The events are read by the rules of its data (values, weights, duplicates, since,
    until); users and items may be new. A batch that was added before is refused. The model file is replaced
    when the new one is whole.

    \b
    Examples:
      mrfrec update shop.mrf today.csv
      mrfrec update shop.mrf 'logs/2026-11-16-*.parquet' --batch 2026-11-16 -o new.mrf
    """
    from mrfrec.cli.running import check_output
    from mrfrec.cli.show import note, progress_bar
    from mrfrec.io.sources import paths_of
    from mrfrec.models.storage.updating import read_more

    items = [Path(reading["items"])] if "items" in reading else []
    check_output(output or model, [*(path for name in data for path in paths_of(name)), *items])
    opened = _opened(model, "update", machine)
    with progress_bar() as progress:
        events = read_more(opened, data, progress=progress, **reading)
        note_skipped(events.skipped)
        opened.update(
            events, batch=batch, again=again, measure_again=measure_again, progress=progress,
            item_features=features.read(),
        )  # fmt: skip
    note(f"added {opened.batches_[-1]}: now {opened.data_size_}")
    _saved(opened, output or model)


@takes_options
def forget(
    model: Model,
    users: Annotated[
        Path, Option(metavar="FILE", help="Required: user ids, one per line (.txt) or a column of a table.")
    ],
    machine: Machine,
    output: Updated = None,
) -> None:
    """Remove users from a model, and fit it again without them.

    Nothing of them is left in the file that is written: neither their ids, nor their histories, nor items
    that nobody else used, unless features name them. Other copies of the model and the tables it was fitted
    to are not touched.

    \b
    Examples:
      mrfrec forget shop.mrf --users erased.txt
      mrfrec forget shop.mrf --users erased.csv -o new.mrf
    """
    from mrfrec.cli.names import find_users
    from mrfrec.cli.running import check_output
    from mrfrec.cli.show import note, progress_bar

    check_output(output or model, [users])
    opened = _opened(model, "forget", machine)
    known = opened.users_
    assert known is not None
    erased = find_users(opened, None, users)
    if (known.find(erased, "user") < 0).all():
        raise DataError(
            f"nothing was changed: none of the {len(erased):,} users in {users} is in {model}. Are the ids "
            "the same?"
        )
    with progress_bar() as progress:
        opened.forget(erased, progress=progress)
    note(f"forgot {len(known) - opened.data_size_.users:,} users")
    _saved(opened, output or model)


@takes_options
def add_items(
    model: Model,
    table: Annotated[str, Argument(help="A table of new items, with the columns of --item-features.")],
    machine: Machine,
    output: Updated = None,
    features_query: Annotated[
        str | None, Option(metavar="SQL", help="Query for the table, if TABLE names a database.")
    ] = None,
) -> None:
    """Add new items to a model by their features, without a new fit.

    Each new item gets the weights that a fit with it would give it; nothing else changes. Items that the
    model knows are left as they are. MODEL was fitted with --item-features and --histories.

    \b
    Examples:
      mrfrec add-items shop.mrf new.csv
      mrfrec add-items shop.mrf new.parquet -o shop-today.mrf
    """
    from mrfrec.cli.running import check_output
    from mrfrec.cli.show import note
    from mrfrec.io.sources import paths_of
    from mrfrec.models.mrf import MRF

    check_output(output or model, paths_of(table))
    opened = _opened(model, "add_items", machine)
    if not isinstance(opened, MRF):
        raise DataError(f"{model} is a {type(opened).__name__}: only an MRF knows features of items.")
    count = opened.add_items(table, query=features_query)
    note(f"added {count:,} items: now {opened.data_size_}")
    _saved(opened, output or model)


def _opened(path: Path, command: str, machine: dict[str, Any]) -> "Recommender":
    from mrfrec.cli.models import check_machine
    from mrfrec.models.registry import load
    from mrfrec.models.storage.updating import origin_of

    opened = load(path)
    origin_of(opened, command)  # raises if histories are missing
    check_machine(machine, [type(opened).__name__])
    known = opened.get_params()
    return opened.set_params(**{name: x for name, x in machine.items() if name in known})


def _saved(model: "Recommender", path: Path) -> None:
    from mrfrec.cli.show import note, size_of

    model.save(path, include_histories=True)
    note(f"wrote {path} ({size_of(path)})")
