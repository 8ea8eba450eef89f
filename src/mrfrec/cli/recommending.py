"""The commands recommend, similar and explain. docs/cli.md is generated from the texts here."""

from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from typer import Argument, Option

from mrfrec.checks import check_count
from mrfrec.cli.derived import Asked, RankingMachine, parse_pairs
from mrfrec.cli.options import Cluster, takes_options
from mrfrec.errors import DataError

if TYPE_CHECKING:
    from mrfrec.core.engine import Progress

_REASONS = 3  # shown for each item with --explain
_TABLE_USERS = 50  # at most this many users are shown as a table

Model = Annotated[Path, Argument(help="A model file written by mrfrec fit.", metavar="MODEL")]
Count = Annotated[int, Option("-k", help="Number of items.", metavar="N")]
Output = Annotated[
    Path | None,
    Option("-o", "--output", metavar="FILE", help="A .csv, .json or .txt file.", show_default="stdout"),
]
Target = Annotated[
    str | None,
    Option(
        "-o", "--output",
        metavar="FILE",
        help="A .parquet, .csv, .json, .jsonl or .txt file, or a database such as postgresql://host/shop.",
        show_default="stdout",
    ),
]  # fmt: skip
Table = Annotated[
    str | None, Option(metavar="NAME", help="Table of the database, such as recs or shop.recs.")
]
NewNames = Annotated[
    str | None,
    Option("--columns", metavar="NAMES", help="Other names of columns in the output: user=user_id,item=sku."),
]
Novelty = Annotated[
    float | None, Option(metavar="X", help="Above 0, rarer items score higher; below, popular ones.")
]
Form = Annotated[
    Literal["table", "json", "csv", "parquet"] | None,
    Option("--format", help="Default: by the name of the output file, or a table."),
]
History = Annotated[
    list[str] | None,
    Option(
        "--history",
        metavar="ITEMS",
        help="Items a user has used, by id or title: a,b,c or @FILE, one per line. May be repeated; a "
        "title that contains a comma is given alone: --history 'Alien, the Film' --history b.",
    ),
]


@takes_options
def recommend(
    context: typer.Context,
    model: Model,
    history: History = None,
    user: Annotated[
        list[str] | None, Option(metavar="ID", help="A user of the training data, by id. May be repeated.")
    ] = None,
    users: Annotated[
        Path | None, Option(metavar="FILE", help="User ids: one per line (.txt), or a column of a table.")
    ] = None,
    all_users: Annotated[bool, Option("--all", help="All users of the training data.")] = False,
    history_file: Annotated[
        Path | None,
        Option(metavar="FILE", help="A table of users and items, as for mrfrec fit; the users may be new."),
    ] = None,
    user_column: Annotated[str | None, Option(metavar="NAME", help="Column of users in tables.")] = None,
    item_column: Annotated[str | None, Option(metavar="NAME", help="Column of items in tables.")] = None,
    value_column: Annotated[str | None, Option(metavar="NAME", help="Column of values in histories.")] = None,
    event_column: Annotated[str | None, Option(metavar="NAME", help="Column of kinds of events.")] = None,
    time_column: Annotated[str | None, Option(metavar="NAME", help="Column of times.")] = None,
    *,
    asking: Asked,
    exclude_file: Annotated[
        Path | None,
        Option(metavar="FILE", help="A table of users and items, by id, never to recommend to them."),
    ] = None,
    explain: Annotated[
        bool,
        Option(
            "--explain",
            help="Show the base score and the items of the history that add most; mrfrec explain also shows "
            "those that take away.",
        ),
    ] = False,
    form: Form = None,
    output: Target = None,
    table: Table = None,
    columns: NewNames = None,
    machine: RankingMachine,
    cluster: Cluster = None,
) -> None:
    """Recommend items for a history, or for training users.

    Give exactly one of --history, --history-file, --user, --users and --all. The last three need a model
    fitted with --histories. Each user gets k items, or fewer if there are not enough. Items about which the
    history says nothing are ranked by popularity and have the source "popular". --allow and --exclude name
    items as --history does; a note counts those that the model does not know.

    --history-file is read by the rules by which the data of the fit was (values, weights of events, times,
    duplicates), which the model keeps; users without a row that counts are left out.

    With a database, the rows replace those of --table in one transaction. A table that is missing is
    created, one with other columns is refused. The columns are user, item, title, score, rank and source.

    With --cluster, -o is a new folder, which gets a Parquet file for each 20,000 users: part-00000.parquet
    and so on.

    \b
    Examples:
      mrfrec recommend shop.mrf --history milk,bread --explain
      mrfrec recommend shop.mrf --user 42 -k 5 --format json
      mrfrec recommend shop.mrf --all -k 20 -o recommendations.parquet
      mrfrec recommend shop.mrf --all -o sqlite:///shop.db --table recs --columns user=user_id,item=sku
      mrfrec recommend shop.mrf --all -k 20 -o recommendations --cluster tcp://scheduler:8786
      mrfrec recommend shop.mrf --users newsletter.txt --exclude @sold-out.txt -o today.csv
      mrfrec recommend shop.mrf --all --exclude-file returned.csv -o today.csv
      mrfrec recommend films.mrf --history 'Good, the Bad and the Ugly, The' --history Alien
    """
    from mrfrec.cli.names import ItemNames, find_users, read_exclusions, typed_as, users_of
    from mrfrec.cli.running import cluster_of
    from mrfrec.cli.show import kind_of, note, progress_bar, show_recommendations
    from mrfrec.models.answers import recommending
    from mrfrec.models.answers.histories import query_of, read_histories
    from mrfrec.models.answers.question import Question
    from mrfrec.models.registry import load

    ways = {
        "--history": history, "--user": user, "--users": users, "--all": all_users,
        "--history-file": history_file,
    }  # fmt: skip
    given = [name for name, value in ways.items() if value]
    if len(given) != 1:
        raise DataError(f"give exactly one of {', '.join(ways)}; got {' and '.join(given) or 'none'}.")
    if history and exclude_file:
        raise DataError("--exclude-file is for users by their ids: give --exclude with --history.")
    inputs = [model, users, history_file, exclude_file]
    target = _target(form, output, table, columns, inputs, folder=cluster is not None)
    opened = load(model)
    opened.threads = check_count("threads", machine["threads"]) if "threads" in machine else None
    if "device" in machine:
        opened.set_params(device=machine["device"]).check_ready()
    names = ItemNames(opened.catalogue)
    whose: dict[str, Any] = {}
    if history:
        whose["history"] = names.find_all(history)
    elif history_file:
        columns_read = {"value": value_column, "event": event_column, "time": time_column}
        read = read_histories(opened, history_file, user=user_column, item=item_column, **columns_read)
        whose["history"] = typed_as(opened.items_, read, history_file)
    elif not all_users:
        whose["users"] = find_users(opened, user, users)
    chosen: dict[str, Any] = {
        name: names.find_known(x, name) for name, x in asking.items() if isinstance(x, list)
    }
    if exclude_file:
        ids = whose["history"].users if history_file else users_of(opened)
        by_user = read_exclusions(
            exclude_file, ids, whose.get("users", ids), opened.items_, user_column, item_column
        )
        chosen["exclude"] = {**by_user, None: chosen.get("exclude")}
    question = Question(**(asking | chosen), explain=_REASONS if explain else 0)
    with progress_bar(results=output is None) as progress:
        if target is not None:
            with cluster_of(cluster) as workers:
                report = _until(context.obj, progress)
                rows = opened.recommend_to(**target, **whose, **vars(question), **workers, progress=report)
            note(f"wrote {rows:,} rows to {_written(target)}")
            return
        asked = query_of(opened, **whose, once=True)
        kind, file = kind_of(form, output), None if output is None else Path(output)
        if kind == "table" and len(asked) > _TABLE_USERS:
            raise DataError(f"{len(asked):,} users are too many for a table: give -o FILE.csv.")
        pieces = recommending.recommend(opened, asked, question)
        show_recommendations(pieces, opened.catalogue, len(asked), explain, kind, file)


def _until(stop: Event | None, progress: "Progress | None") -> "Progress":
    """Report progress until Ctrl-C, which polars swallows while it consumes the rows."""

    def report(stage: str, done: int, total: int) -> None:
        if stop is not None and stop.is_set():
            raise KeyboardInterrupt
        if progress is not None:
            progress(stage, done, total)

    return report


def similar(
    context: typer.Context,
    model: Model,
    item: Annotated[str | None, Argument(help="An item, by id or title.", metavar="ITEM")] = None,
    all_items: Annotated[bool, Option("--all", help="The nearest of each item.")] = False,
    k: Count = 10,
    form: Form = None,
    output: Target = None,
    table: Table = None,
    columns: NewNames = None,
) -> None:
    """List the items with the largest weights for an item.

    There are fewer than k if fewer items have a weight.

    With --all, -o is a .parquet, .csv or .jsonl file, or a database with --table, as for mrfrec recommend.
    The column similar_to has each item, and the column item those nearest to it.

    \b
    Examples:
      mrfrec similar shop.mrf milk
      mrfrec similar movies.mrf 'Toy Story (1995)' -k 20 --format json
      mrfrec similar shop.mrf --all -o similar.parquet
      mrfrec similar shop.mrf --all -o sqlite:///shop.db --table neighbors
    """
    from mrfrec.cli.names import ItemNames
    from mrfrec.cli.show import ONE_FORMATS, kind_of, note, progress_bar, show_similar
    from mrfrec.models.registry import load

    if (item is None) != all_items:
        raise DataError("give either an item or --all.")
    if item is not None:
        if table is not None or columns is not None:
            raise DataError("one item goes to a file or the screen: give --all with --table or --columns.")
        opened = load(model)
        kind, file = kind_of(form, output, ONE_FORMATS), None if output is None else Path(output)
        show_similar(opened, ItemNames(opened.catalogue).find(item), k, kind, file)
        return
    target = _target(form, output, table, columns, [model])
    if target is None:
        raise DataError("with --all, give -o FILE.parquet, .csv or .jsonl, or the URL of a database.")
    with progress_bar() as progress:
        rows = load(model).similar_items_to(**target, k=k, progress=_until(context.obj, progress))
    note(f"wrote {rows:,} rows to {_written(target)}")


def explain(
    model: Model,
    item: Annotated[str, Option(help="The item whose score to explain, by id or title.", metavar="ITEM")],
    history: History = None,
    user: Annotated[
        str | None, Option(help="A user of the training data, by id, instead of --history.", metavar="ID")
    ] = None,
    novelty: Novelty = None,
    form: Form = None,
    output: Output = None,
) -> None:
    """Show how the items of a history add up to a score.

    A contribution is the value of the item in the history times its weight. With the base score they
    sum to the score. The base score is what the item has for somebody who used other items, but none that has
    a weight for it; for an empty history, the mean of the item.

    \b
    Examples:
      mrfrec explain shop.mrf --history milk,bread --item butter
      mrfrec explain shop.mrf --user 42 --item butter --format json
    """
    from mrfrec.cli.names import ItemNames, find_users
    from mrfrec.cli.show import ONE_FORMATS, kind_of, show_explanation
    from mrfrec.models.registry import load

    if (history is None) == (user is None):
        raise DataError("give exactly one of --history and --user.")
    kind = kind_of(form, output, ONE_FORMATS)
    opened = load(model)
    names = ItemNames(opened.catalogue)
    whose: dict[str, Any] = {"novelty": novelty}
    if history is not None:
        whose["history"] = names.find_all(history)
    if user is not None:
        (whose["user"],) = find_users(opened, [user], None)
    show_explanation(opened, names.find(item), whose, kind, output)


def _target(
    form: str | None,
    output: str | None,
    table: str | None,
    columns: str | None,
    inputs: list[Path | None],
    *,
    folder: bool = False,
) -> dict[str, Any] | None:
    """Return parameters of `recommend_to`; None for results on the screen, and in .json and .txt files."""
    from mrfrec.cli.show import kind_of
    from mrfrec.io.atomic import refuse_own_input
    from mrfrec.io.databases import is_database, refuse_url

    if output is not None and not is_database(output):
        refuse_url(output)
        refuse_own_input(output, inputs)
        if not folder and kind_of(form, output) not in ("parquet", "csv", "jsonl"):
            output = None
    if output is None:
        if table or columns or folder:
            raise DataError("--table, --columns and --cluster are for a database, or a file with -o.")
        return None
    if not folder:
        from mrfrec.io.frames import check_target  # loads polars

        check_target(output, form, table)
    renamed = None if columns is None else parse_pairs("--columns", columns)
    return {"path": output, "form": form, "table": table, "columns": renamed}


def _written(target: dict[str, Any]) -> str:
    """Name a file or a table that was written."""
    from mrfrec.io.databases import redacted

    path = redacted(target["path"])
    return path if target["table"] is None else f"table {target['table']} of {path}"
