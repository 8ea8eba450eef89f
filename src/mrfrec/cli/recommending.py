"""The commands recommend, similar and explain. Their texts become docs/reference/cli.md."""

from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from mrfrec.answers.people import people_of, read_histories
from mrfrec.answers.question import Question
from mrfrec.answers.ranking import nearest
from mrfrec.answers.recommending import PreparedQuestion, explanation
from mrfrec.answers.tables import neighbor_columns, reason_table, recommended_rows, rows_of, table_names
from mrfrec.checks import check_count, counted, in_words
from mrfrec.cli import note
from mrfrec.cli.derived import parse_pairs
from mrfrec.cli.named import ItemNames, find_users, read_exclusions, typed_as, users_of
from mrfrec.cli.options import Asked, HistoryForm, ModelFile, NoveltyAndBoost, RankingMachine
from mrfrec.cli.show import ONE_FORMATS, kind_of, progress_bar, write_rows
from mrfrec.errors import DataError, ParameterError
from mrfrec.fitted.state import Runtime
from mrfrec.io.atomic import refuse_own_input
from mrfrec.io.databases import is_database, redacted
from mrfrec.io.frames import check_target
from mrfrec.models.registry import load
from mrfrec.options import USUAL, Options, Shell, Whole

_REASONS = 3  # shown for each item with --explain
_TABLE_USERS = 50  # at most this many users are shown as a table


class OnePerson(Options):
    """A history, item by item."""

    group: ClassVar[str] = "People"

    history: Annotated[list[str] | None, Shell(value="ITEMS", usual=True)] = Field(
        None,
        description="Items a user has used, by id or title: a,b,c or @FILE, one per line. May be repeated; a "
        "title that contains a comma is given alone: --history 'Alien, the Film' --history b.",
    )
    dislike: Annotated[list[str] | None, Shell(value="ITEMS")] = Field(
        None, description="Items the user dislikes, named as in --history: what goes with them scores lower."
    )


class RecommendOptions(OnePerson):
    """To whom to recommend."""

    user: Annotated[list[str] | None, Shell(value="ID", usual=True)] = Field(
        None, description="A user of the training data, by id. May be repeated."
    )
    users: Annotated[Path | None, USUAL] = Field(
        None, description="User ids: one per line (.txt), or a column of a table."
    )
    all_users: Annotated[bool, Shell("--all", usual=True)] = Field(
        False, description="All users of the training data."
    )
    history_file: Path | None = Field(
        None, description="A table of users and items, as for mrfrec fit; the users may be new."
    )
    exclude_file: Annotated[Path | None, Shell(group="Rules")] = Field(
        None, description="A table of users and items, by id, never to recommend to them."
    )
    explain: Annotated[bool, Shell(group="Results", usual=True)] = Field(
        False,
        description="Show the base score and the items of the history that add most; mrfrec explain also "
        "shows the items that take away.",
    )


class Results(Options):
    """Where results go."""

    group: ClassVar[str] = "Results"

    form: Annotated[Literal["table", "json", "csv", "parquet"] | None, Shell("--format", usual=True)] = Field(
        None, description="Format of the results.  [default: by the name of the output file, or a table]"
    )
    output: Annotated[str | None, Shell("-o --output", "FILE", usual=True)] = Field(
        None,
        description="A .parquet, .csv, .json, .jsonl or .txt file, or a database such as "
        "postgresql://host/shop.  [default: stdout]",
    )
    table: Annotated[str | None, Shell(value="NAME")] = Field(
        None, description="Table of the database, such as recs or shop.recs."
    )
    columns: Annotated[str | None, Shell(value="NAMES")] = Field(
        None, description="Other names of columns in the output: user=user_id,item=sku."
    )

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
    model: ModelFile,
    own: RecommendOptions,
    reading: HistoryForm,
    asking: Asked,
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
    created; one with other columns is refused, as is a file that is such a table. The columns are user,
    item, title, score, rank and source.

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
        "--history": own.history, "--user": own.user, "--users": own.users, "--all": own.all_users,
        "--history-file": own.history_file,
    }  # fmt: skip
    chosen = [name for name, value in ways.items() if value]
    if len(chosen) != 1:
        raise DataError(f"give exactly one of {', '.join(ways)}; got {in_words(chosen or ['none'])}.")
    if own.dislike and not own.history:
        raise ParameterError("--dislike", "left out without --history", in_words(own.dislike))
    if own.history and own.exclude_file:
        raise DataError("--exclude-file is for users by their ids: give --exclude with --history.")
    target = results.target([model.model, own.users, own.history_file, own.exclude_file])
    opened = load(model.model)
    opened.threads = check_count("threads", machine["threads"]) if "threads" in machine else None
    if "device" in machine:
        opened.set_params(device=machine["device"]).check_ready()
    names = ItemNames(opened.catalogue)
    whose: dict[str, Any] = {}
    if own.history:
        whose["history"] = names.history(own.history, own.dislike, opened.fitted_.usual_value)
    elif own.history_file:
        data = read_histories(opened.fitted_, own.history_file, **reading)
        whose["history"] = typed_as(opened.items_, data, own.history_file)
    elif not own.all_users:
        whose["users"] = find_users(opened, own.user, own.users, reading.get("user"))
    filters: dict[str, Any] = {
        name: names.find_known(x, name) for name, x in asking.items() if isinstance(x, list)
    }
    if own.exclude_file:
        ids = whose["history"].users if own.history_file else users_of(opened)
        form = {name: x for name, x in reading.items() if name not in ("value", "event", "time")}
        by_user = read_exclusions(own.exclude_file, whose.get("users", ids), ids, opened.items_, form)
        filters["exclude"] = {**by_user, None: filters.get("exclude")}
    question = Question.of(**(asking | filters), explain=_REASONS if own.explain else 0)
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
        lines = recommended_rows(catalogue, prepared.answers(Runtime.of(opened)))
        write_rows(lines, [*table_names(question)], catalogue, kind, results.output, len(people) == 1)


class SimilarOptions(Options):
    """Of which items, and how many."""

    item: Annotated[str | None, Shell(value="ITEM", argument=True)] = Field(
        None, description="An item, by id or title."
    )
    all_items: Annotated[bool, Shell("--all", usual=True)] = Field(
        False, description="The nearest of each item."
    )
    k: Annotated[Whole, Shell("-k", usual=True)] = Field(10, ge=1, description="Number of items.")


def similar(model: ModelFile, own: SimilarOptions, results: Results) -> None:
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
    if (own.item is None) != own.all_items:
        raise DataError("give either an item or --all.")
    if own.item is not None:
        if results.table is not None or results.columns is not None:
            raise DataError("one item goes to a file or the screen: give --all with --table or --columns.")
        opened = load(model.model)
        kind = kind_of(results.form, results.output, ONE_FORMATS)
        catalogue = opened.catalogue
        known = ItemNames(catalogue).find(own.item)
        found = nearest(opened.fitted_, catalogue.index_of(known), own.k)
        columns = neighbor_columns(catalogue, *found)
        if not columns["item"]:
            note(f"no item goes with {known}, says this {type(opened).__name__}")
        write_rows(rows_of(columns), list(columns), catalogue, kind, results.output)
        return
    target = results.target([model.model])
    if target is None:
        raise DataError("with --all, give -o FILE.parquet, .csv or .jsonl, or the URL of a database.")
    with progress_bar() as progress:
        rows = load(model.model).similar_items_to(**target, k=own.k, progress=progress)
    results.note_rows(rows)


class ExplainOptions(OnePerson):
    """Which score to explain."""

    item: Annotated[str, Shell(value="ITEM")] = Field(
        description="The item whose score to explain, by id or title."
    )
    user: Annotated[str | None, Shell(value="ID", usual=True)] = Field(
        None, description="A user of the training data, by id, instead of --history."
    )
    form: Annotated[
        Literal["table", "json", "csv"] | None, Shell("--format", usual=True, group="Results")
    ] = Field(
        None, description="Format of the results.  [default: by the name of the output file, or a table]"
    )
    output: Annotated[Path | None, Shell("-o --output", usual=True, group="Results")] = Field(
        None, description="A .csv, .json or .txt file.  [default: stdout]"
    )


def explain(model: ModelFile, own: ExplainOptions, asking: NoveltyAndBoost) -> None:
    """Show how the items of a history add up to a score.

    A contribution is the value of the item in the history times its weight. With the base score they
    sum to the score. The base score is what the item has for somebody who used other items, but none that has
    a weight for it; for an empty history, the mean of the item. A boost is a part of its own.

    \b
    Examples:
      mrfrec explain shop.mrf --history milk,bread --item butter
      mrfrec explain shop.mrf --user 42 --item butter --format json
    """
    if (own.history is None) == (own.user is None):
        raise DataError("give exactly one of --history and --user.")
    if own.dislike and own.history is None:
        raise ParameterError("--dislike", "left out without --history", in_words(own.dislike))
    kind = kind_of(own.form, own.output, ONE_FORMATS)
    opened = load(model.model)
    catalogue = opened.catalogue
    names = ItemNames(catalogue)
    whose: dict[str, Any] = {**asking}
    if own.history is not None:
        whose["history"] = names.history(own.history, own.dislike, opened.fitted_.usual_value)
    if own.user is not None:
        (whose["user"],) = find_users(opened, [own.user], None)
    known = names.find(own.item)
    parts = explanation(opened.fitted_, known, **whose)
    columns = reason_table(catalogue, catalogue.index_of(known), parts)
    if kind == "table":
        # Rows without an item show their title in its place.
        for row in range(len(parts.contributions), len(columns["item"])):
            columns["item"][row], columns["title"][row] = columns["title"][row], None
        last = {"item": "(score)", "contribution": parts.score}
        columns = {name: [*values, last.get(name)] for name, values in columns.items()}
    write_rows(rows_of(columns), list(columns), catalogue, kind, own.output)
