"""The commands recommend, similar and explain. docs/cli.md is generated from the texts here."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

import typer
from typer import Argument, Option

from mrfrec.checks import check_count
from mrfrec.cli.derived import RankingMachine
from mrfrec.cli.options import Cluster, model_option, output_option, takes_options
from mrfrec.errors import DataError, ParameterError

if TYPE_CHECKING:
    from mrfrec.models.recommender import Recommender

T = TypeVar("T")
_REASONS = 3  # shown for each item with --explain
_TABLE_USERS = 50  # at most this many users are shown as a table

Model = Annotated[Path, Argument(help="A model file written by mrfrec fit.", metavar="MODEL")]
Count = Annotated[int, Option("-k", help="Number of items.", metavar="N")]
Output = Annotated[
    Path | None,
    output_option("-o", "--output", metavar="FILE", help="A .parquet, .csv, .json, .jsonl or .txt file."),
]
Target = Annotated[
    str | None,
    output_option(
        "-o", "--output",
        metavar="FILE",
        help="A .parquet, .csv, .json, .jsonl or .txt file, or a database such as postgresql://host/shop.",
    ),
]  # fmt: skip
Table = Annotated[
    str | None, output_option(metavar="NAME", help="Table of the database, such as recs or shop.recs.")
]
NewNames = Annotated[
    str | None,
    output_option(
        "--columns", metavar="NAMES", help="Other names of columns in the output: user=user_id,item=sku."
    ),
]
Novelty = Annotated[
    float | None,
    model_option(
        metavar="X", help="Above 0, rarer items score higher; below, popular ones.", show_default="as fitted"
    ),
]
Form = Annotated[
    Literal["table", "json", "csv", "parquet"] | None,
    output_option("--format", help="Default: by the name of the output file, or a table."),
]
History = Annotated[
    list[str] | None,
    Option(
        "--history",
        metavar="ITEMS",
        help="Items a user has used, by id or title: a,b,c or @FILE, one per line. Titles may contain "
        "commas. May be repeated.",
    ),
]


@takes_options
def recommend(
    context: typer.Context,
    model: Model,
    machine: RankingMachine,
    history: History = None,
    user: Annotated[
        list[str] | None, Option(metavar="ID", help="A user of the training data, by id. May be repeated.")
    ] = None,
    users: Annotated[
        Path | None, Option(metavar="FILE", help="User ids: one per line (.txt), or a column of a table.")
    ] = None,
    all_users: Annotated[bool, Option("--all", help="All users of the training data.")] = False,
    history_file: Annotated[
        Path | None, Option(metavar="FILE", help="A table of users and items, by id; the users may be new.")
    ] = None,
    user_column: Annotated[str | None, Option(metavar="NAME", help="Column of users in tables.")] = None,
    item_column: Annotated[str | None, Option(metavar="NAME", help="Column of items in tables.")] = None,
    k: Count = 10,
    explain: Annotated[
        bool,
        Option(
            "--explain",
            help="Show the base score and the items of the history that add most; mrfrec explain also shows "
            "those that take away.",
        ),
    ] = False,
    allow: Annotated[
        list[str] | None, Option(metavar="ITEMS", help="Recommend only these items, named as for --history.")
    ] = None,
    exclude: Annotated[
        list[str] | None, Option(metavar="ITEMS", help="Never recommend these items, named as for --history.")
    ] = None,
    exclude_file: Annotated[
        Path | None,
        Option(metavar="FILE", help="A table of users and items, by id, never to recommend to them."),
    ] = None,
    seen: Annotated[bool, Option("--seen", help="Also recommend items of the history.")] = False,
    novelty: Novelty = None,
    form: Form = None,
    output: Target = None,
    table: Table = None,
    columns: NewNames = None,
    cluster: Cluster = None,
) -> None:
    """Recommend items for a history, or for training users.

    Give exactly one of --history, --history-file, --user, --users and --all. The last three need a model
    fitted with --histories. Each user gets k items, or fewer if there are not enough. Items about which the
    history says nothing are ranked by popularity and have the source "popular". A note counts items in
    --allow and --exclude that the model does not know, and users that are given more than once.

    With a database, the rows replace those of --table in one transaction: readers see all old rows or all
    new rows. A table that is missing is created, one with other columns is refused. The
    columns are user, item, title, score, rank and source. As user is a reserved word of SQL, --columns
    user=user_id saves its readers the quotes.

    With --cluster, -o is a new folder, which gets a Parquet file for each 20,000 users: part-00000.parquet
    and so on.

    \b
    Examples:
      mrfrec recommend shop.mrf --history milk,bread --explain
      mrfrec recommend shop.mrf --user 42 -k 5 --format json
      mrfrec recommend shop.mrf --all -k 20 -o recommendations.parquet
      mrfrec recommend shop.mrf --all -o postgresql://shop@db/shop --table recs
      mrfrec recommend shop.mrf --all -o sqlite:///shop.db --table recs --columns user=user_id,item=sku
      mrfrec recommend shop.mrf --all -k 20 -o recommendations --cluster tcp://scheduler:8786
      mrfrec recommend shop.mrf --users newsletter.txt --exclude @sold-out.txt -o today.csv
      mrfrec recommend shop.mrf --all --exclude-file returned.csv -o today.csv
    """
    from mrfrec.cli.names import ItemNames, find_users, read_exclusions, read_histories
    from mrfrec.cli.running import cluster_of
    from mrfrec.cli.show import note, progress_bar, show_recommendations
    from mrfrec.io.atomic import refuse_own_input
    from mrfrec.io.databases import is_database, refuse_url
    from mrfrec.models.answers import recommending
    from mrfrec.models.answers.cluster_parts import recommend_in_parts
    from mrfrec.models.answers.histories import query_of
    from mrfrec.models.answers.question import Question
    from mrfrec.models.answers.recommending import WriteOptions

    ways = {
        "--history": history, "--user": user, "--users": users, "--all": all_users,
        "--history-file": history_file,
    }  # fmt: skip
    given = [name for name, value in ways.items() if value]
    if len(given) != 1:
        raise DataError(f"give exactly one of {', '.join(ways)}; got {' and '.join(given) or 'none'}.")
    if history and exclude_file:
        raise DataError("--exclude-file is for users by their ids: give --exclude with --history.")
    kind, place = ("parts", None) if cluster else _kind_and_place(form, output, table)
    renamed = _new_names(columns, kind, place)
    if cluster and (output is None or is_database(output) or table or form not in (None, "parquet")):
        raise DataError("--cluster writes Parquet files to a folder: give -o FOLDER, and no other --format.")
    if cluster:
        refuse_url(output, "a folder of this machine, not a URL")
    if output is not None and kind != "database":
        refuse_own_input(output, [model, users, history_file, exclude_file])
    opened = _load(model, machine.get("threads"))
    names = ItemNames(opened.catalogue)
    whose: Any = None
    if history:
        whose = names.find_all(history)
    elif history_file:
        binary = opened.data_size_.binary
        whose = read_histories(history_file, opened.items_, binary, user_column, item_column)
    asked = query_of(opened, find_users(opened, user, users) if user or users else None, whose)
    if history_file:
        unknown = (each._replace(parameter="--history-file") for each in asked.unknown)
        asked = replace(asked, unknown=tuple(unknown))
    allowed = names.find_known(allow, "--allow") if allow else None
    excluded: Any = names.find_known(exclude, "--exclude") if exclude else None
    if exclude_file is not None:
        by_user = read_exclusions(
            exclude_file, asked.names, all_users, opened.items_, user_column, item_column
        )
        excluded = by_user if excluded is None else {**by_user, None: excluded}
    many = len(asked) > _TABLE_USERS
    if kind == "table" and many:
        raise DataError(f"{len(asked):,} users are too many for a table: give -o FILE.csv, or --format csv.")
    question = Question(k, not seen, allowed, excluded, novelty, _REASONS if explain else 0)
    if kind == "parts" and output is not None:
        with cluster_of(cluster) as on_cluster, progress_bar() as progress:
            rows = recommend_in_parts(opened, asked, question, output, progress=progress, **on_cluster)
        note(f"wrote {rows:,} rows for {len(asked):,} users to {output}")
        return
    with progress_bar(results=output is None) as progress:
        ranked = recommending.recommend(opened, asked, question, progress=progress if many else None)
        pieces = _until(context.obj, ranked)
        if kind in ("parquet", "csv", "jsonl", "database") and place is not None:
            file_form: Any = None if kind == "database" else kind
            target: WriteOptions = {"form": file_form, "table": table, "columns": renamed}
            with recommending.staged(opened, pieces, asked, place, explain=explain, **target) as rows:
                pass
            note(f"wrote {rows:,} rows for {len(asked):,} users to {_written(place, table)}")
        else:
            show_recommendations(pieces, opened.catalogue, len(asked), explain, kind, place)


def _until(stop: Event | None, pieces: Iterator[T]) -> Iterator[T]:
    """Yield the batches until Ctrl-C, which polars swallows while it consumes them."""
    for piece in pieces:
        if stop is not None and stop.is_set():
            raise KeyboardInterrupt
        yield piece


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
    from mrfrec.cli.show import note, progress_bar, show_similar
    from mrfrec.models.answers import similar as similar_items

    if (item is None) != all_items:
        raise DataError("give either an item or --all.")
    kind, place = _kind_and_place(form, output, table)
    renamed = _new_names(columns, kind if all_items else "table", place)
    if item is not None:
        if kind == "database":
            raise DataError("one item goes to a file or the screen: give --all with a database.")
        opened = _load(model)
        show_similar(opened, ItemNames(opened.catalogue).find(item), k, kind, place)
        return
    if place is None or kind not in ("parquet", "csv", "jsonl", "database"):
        raise DataError("with --all, give -o FILE.parquet, .csv or .jsonl, or the URL of a database.")
    opened = _load(model)
    with progress_bar() as progress:
        batches = _until(context.obj, similar_items.neighbor_batches(opened, k, progress=progress))
        form_: Any = None if kind == "database" else kind
        with similar_items.staged(opened, batches, place, form=form_, table=table, columns=renamed) as rows:
            pass
    note(f"wrote {rows:,} rows for {len(opened.items_):,} items to {_written(place, table)}")


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
    from mrfrec.cli.show import kind_of, show_explanation

    if (history is None) == (user is None):
        raise DataError("give exactly one of --history and --user.")
    kind = kind_of(form, output)
    opened = _load(model)
    names = ItemNames(opened.catalogue)
    whose: dict[str, Any] = {"novelty": novelty}
    if history is not None:
        whose["history"] = names.find_all(history)
    if user is not None:
        whose["user"] = find_users(opened, [user], None, known=True)[0]
    show_explanation(opened, names.find(item), whose, kind, output)


def _kind_and_place(form: str | None, output: str | None, table: str | None) -> tuple[str, Any]:
    """Return the kind of the output, or "database", and its path or URL."""
    from mrfrec.cli.show import kind_of
    from mrfrec.io.databases import is_database, refuse_url

    if output is None or not is_database(output):
        if table is not None:
            rule, advice = "left out without a database", "Give one as -o postgresql://host/shop."
            raise ParameterError("--table", rule, table, advice)
        path = None if output is None else Path(output)
        refuse_url(output)
        return kind_of(form, path), path
    if form is not None:
        raise ParameterError("--format", "left out with a database", form)
    if table is None:
        raise ParameterError("--table", "given with a database", table, "Such as --table recs.")
    from mrfrec.io.staging import parse_table  # loads polars

    parse_table(table)
    return "database", output


def _new_names(text: str | None, kind: str, place: object) -> dict[str, str] | None:
    """Return the names of columns that were typed, as old=new,…"""
    if text is None:
        return None
    if place is None or kind not in ("parquet", "csv", "jsonl", "database"):
        rule = "left out without a database or a .parquet, .csv or .jsonl file for many users or items"
        raise ParameterError("--columns", rule, text)
    pairs = [part.partition("=") for part in text.split(",")]
    if not all(old and new for old, _, new in pairs) or len({old for old, *_ in pairs}) < len(pairs):
        raise ParameterError("--columns", "names such as user=user_id,item=sku", text)
    return {old: new for old, _, new in pairs}


def _written(place: Path | str, table: str | None) -> str:
    """Name a file that was written, and its size, or a table."""
    from mrfrec.cli.show import size_of
    from mrfrec.io.databases import redacted

    return f"{place} ({size_of(place)})" if isinstance(place, Path) else f"table {table} of {redacted(place)}"


def _load(path: Path, threads: int | None = None) -> "Recommender":
    from mrfrec.models.registry import load

    opened = load(path)
    opened.threads = None if threads is None else check_count("--threads", threads)
    return opened
