"""The commands recommend, similar and explain. Their texts become docs/reference/cli.md."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from typer import Argument

from mrfrec.answers.people import people_of, read_histories
from mrfrec.answers.question import Question
from mrfrec.answers.ranking import nearest
from mrfrec.answers.recommending import PreparedQuestion, explanation
from mrfrec.answers.tables import neighbor_columns, reason_table, recommended_rows, rows_of, table_names
from mrfrec.checks import check_count, counted, in_words
from mrfrec.cli import note
from mrfrec.cli.derived import parse_pairs, parse_weights
from mrfrec.cli.names import ItemNames, find_users, read_exclusions, typed_as, users_of
from mrfrec.cli.options import Asked, HistoryForm, Model, RankingMachine
from mrfrec.cli.show import ONE_FORMATS, kind_of, progress_bar, write_rows
from mrfrec.errors import DataError, ParameterError
from mrfrec.io.atomic import refuse_own_input
from mrfrec.io.databases import is_database, redacted
from mrfrec.io.frames import check_target
from mrfrec.models.parameters import runtime_of
from mrfrec.models.registry import load

_REASONS = 3  # shown for each item with --explain
_TABLE_USERS = 50  # at most this many users are shown as a table

Form = Annotated[
    Literal["table", "json", "csv", "parquet"] | None,
    "Format of the results.  [default: by the name of the output file, or a table]",
]
OneForm = Annotated[
    Literal["table", "json", "csv"] | None,
    "Format of the results.  [default: by the name of the output file, or a table]",
]
History = Annotated[
    list[str] | None,
    "ITEMS",
    "Items a user has used, by id or title: a,b,c or @FILE, one per line. May be repeated; a title that "
    "contains a comma is given alone: --history 'Alien, the Film' --history b.",
]
Dislike = Annotated[
    list[str] | None,
    "ITEMS",
    "Items the user dislikes, named as in --history: what goes with them scores lower.",
]


@dataclass(frozen=True, kw_only=True)
class Results:
    """Where results go, as typed."""

    form: Form = None
    output: Annotated[
        str | None,
        "FILE",
        "A .parquet, .csv, .json, .jsonl or .txt file, or a database such as postgresql://host/shop.  "
        "[default: stdout]",
    ] = None
    table: Annotated[str | None, "NAME", "Table of the database, such as recs or shop.recs."] = None
    columns: Annotated[
        str | None, "NAMES", "Other names of columns in the output: user=user_id,item=sku."
    ] = None

    def target(self, inputs: list[Path | None]) -> dict[str, Any] | None:
        """Return parameters of `recommend_to`; None for the screen, and for .json and .txt files."""
        output = self.output
        if output is not None and not is_database(output):
            refuse_own_input(output, inputs)
            if kind_of(self.form, output) not in ("parquet", "csv", "jsonl"):
                output = None
        if output is None:
            if self.table or self.columns:
                raise DataError("--table and --columns are for a database, or a file with -o.")
            return None
        check_target(output, self.form, self.table)
        renamed = None if self.columns is None else parse_pairs("--columns", self.columns)
        return {"path": output, "form": self.form, "table": self.table, "columns": renamed}

    def note_rows(self, rows: int) -> None:
        """Say how many rows were written, and where."""
        path = redacted(self.output or "")
        where = path if self.table is None else f"table {self.table} of {path}"
        note(f"wrote {counted(rows, 'row')} to {where}")


def recommend(
    model: Model,
    history: History = None,
    dislike: Dislike = None,
    user: Annotated[list[str] | None, "ID", "A user of the training data, by id. May be repeated."] = None,
    users: Annotated[Path | None, "User ids: one per line (.txt), or a column of a table."] = None,
    all_users: Annotated[bool, "All users of the training data."] = False,
    history_file: Annotated[
        Path | None, "A table of users and items, as for mrfrec fit; the users may be new."
    ] = None,
    *,
    reading: HistoryForm,
    asking: Asked,
    exclude_file: Annotated[
        Path | None, "A table of users and items, by id, never to recommend to them."
    ] = None,
    explain: Annotated[
        bool,
        "Show the base score and the items of the history that add most; mrfrec explain also shows those "
        "that take away.",
    ] = False,
    results: Results,
    machine: RankingMachine,
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

    \b
    Examples:
      mrfrec recommend shop.mrf --history milk,bread --explain
      mrfrec recommend shop.mrf --user 42 -k 5 --format json
      mrfrec recommend shop.mrf --all -k 20 -o recommendations.parquet
      mrfrec recommend shop.mrf --all -o sqlite:///shop.db --table recs --columns user=user_id,item=sku
      mrfrec recommend shop.mrf --users newsletter.txt --exclude @sold-out.txt -o today.csv
      mrfrec recommend shop.mrf --all --exclude-file returned.csv -o today.csv
      mrfrec recommend films.mrf --history 'Good, the Bad and the Ugly, The' --history Alien
    """
    ways = {
        "--history": history, "--user": user, "--users": users, "--all": all_users,
        "--history-file": history_file,
    }  # fmt: skip
    chosen = [name for name, value in ways.items() if value]
    if len(chosen) != 1:
        raise DataError(f"give exactly one of {', '.join(ways)}; got {in_words(chosen or ['none'])}.")
    if dislike and not history:
        raise ParameterError("--dislike", "left out without --history", in_words(dislike))
    if history and exclude_file:
        raise DataError("--exclude-file is for users by their ids: give --exclude with --history.")
    target = results.target([model, users, history_file, exclude_file])
    opened = load(model)
    opened.threads = check_count("threads", machine["threads"]) if "threads" in machine else None
    if "device" in machine:
        opened.set_params(device=machine["device"]).check_ready()
    names = ItemNames(opened.catalogue)
    whose: dict[str, Any] = {}
    if history:
        whose["history"] = names.history(history, dislike, opened.fitted_.usual_value)
    elif history_file:
        data = read_histories(opened.fitted_, history_file, **reading)
        whose["history"] = typed_as(opened.items_, data, history_file)
    elif not all_users:
        whose["users"] = find_users(opened, user, users, reading.get("user"))
    filters: dict[str, Any] = {
        name: names.find_known(x, name) for name, x in asking.items() if isinstance(x, list)
    }
    if exclude_file:
        ids = whose["history"].users if history_file else users_of(opened)
        form = {name: x for name, x in reading.items() if name not in ("value", "event", "time")}
        by_user = read_exclusions(exclude_file, whose.get("users", ids), ids, opened.items_, form)
        filters["exclude"] = {**by_user, None: filters.get("exclude")}
    question = Question.of(**(asking | filters), explain=_REASONS if explain else 0)
    with progress_bar(results=results.output is None) as progress:
        if target is not None:
            rows = opened.recommend_to(**target, **whose, **vars(question), progress=progress)
            results.note_rows(rows)
            return
        people = people_of(opened.fitted_, **whose)
        kind = kind_of(results.form, results.output)
        catalogue = opened.catalogue
        if kind == "table" and len(people) > _TABLE_USERS:
            raise DataError(f"{len(people):,} users are too many for a table: give -o FILE.csv.")
        prepared = PreparedQuestion.of(opened.fitted_, people, question)
        prepared.warn()
        lines = recommended_rows(catalogue, prepared.answers(runtime_of(opened)))
        write_rows(lines, [*table_names(question)], catalogue, kind, results.output, len(people) == 1)


def similar(
    model: Model,
    item: Annotated[str | None, Argument(metavar="ITEM", help="An item, by id or title.")] = None,
    all_items: Annotated[bool, "The nearest of each item."] = False,
    k: Annotated[int, "Number of items."] = 10,
    *,
    results: Results,
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
    if (item is None) != all_items:
        raise DataError("give either an item or --all.")
    if item is not None:
        if results.table is not None or results.columns is not None:
            raise DataError("one item goes to a file or the screen: give --all with --table or --columns.")
        opened = load(model)
        kind = kind_of(results.form, results.output, ONE_FORMATS)
        catalogue = opened.catalogue
        known = ItemNames(catalogue).find(item)
        found = nearest(opened.fitted_, catalogue.index_of(known), check_count("k", k))
        columns = neighbor_columns(catalogue, *found)
        if not columns["item"]:
            note(f"no item goes with {known}, says this {type(opened).__name__}")
        write_rows(rows_of(columns), list(columns), catalogue, kind, results.output)
        return
    target = results.target([model])
    if target is None:
        raise DataError("with --all, give -o FILE.parquet, .csv or .jsonl, or the URL of a database.")
    with progress_bar() as progress:
        rows = load(model).similar_items_to(**target, k=k, progress=progress)
    results.note_rows(rows)


def explain(
    model: Model,
    item: Annotated[str, "ITEM", "The item whose score to explain, by id or title."],
    history: History = None,
    dislike: Dislike = None,
    user: Annotated[str | None, "ID", "A user of the training data, by id, instead of --history."] = None,
    novelty: Annotated[float | None, "Above 0, rarer items score higher; below, popular ones."] = None,
    boost: Annotated[
        str | None, "LIST", "Columns to add to the score or to multiply it by, as for recommend: add=margin."
    ] = None,
    form: OneForm = None,
    output: Annotated[Path | None, "A .csv, .json or .txt file.  [default: stdout]"] = None,
) -> None:
    """Show how the items of a history add up to a score.

    A contribution is the value of the item in the history times its weight. With the base score they
    sum to the score. The base score is what the item has for somebody who used other items, but none that has
    a weight for it; for an empty history, the mean of the item. A boost is a part of its own.

    \b
    Examples:
      mrfrec explain shop.mrf --history milk,bread --item butter
      mrfrec explain shop.mrf --user 42 --item butter --format json
    """
    if (history is None) == (user is None):
        raise DataError("give exactly one of --history and --user.")
    if dislike and history is None:
        raise ParameterError("--dislike", "left out without --history", in_words(dislike))
    kind = kind_of(form, output, ONE_FORMATS)
    opened = load(model)
    catalogue = opened.catalogue
    names = ItemNames(catalogue)
    whose: dict[str, Any] = {"novelty": novelty}
    if boost is not None:
        whose["boost"] = parse_weights("boost", boost)
    if history is not None:
        whose["history"] = names.history(history, dislike, opened.fitted_.usual_value)
    if user is not None:
        (whose["user"],) = find_users(opened, [user], None)
    known = names.find(item)
    parts = explanation(opened.fitted_, known, **whose)
    columns = reason_table(catalogue, catalogue.index_of(known), parts)
    if kind == "table":
        for row in range(len(parts.contributions), len(columns["item"])):  # of no item: show its title there
            columns["item"][row], columns["title"][row] = columns["title"][row], None
        last = {"item": "(score)", "contribution": parts.score}
        columns = {name: [*values, last.get(name)] for name, values in columns.items()}
    write_rows(rows_of(columns), list(columns), catalogue, kind, output)
