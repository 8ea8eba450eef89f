"""The commands: what they take, and what they call. docs/cli.md is generated from the texts here."""

import logging
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from typer import Argument, Option

from mrfrec import __version__
from mrfrec.checks import check_count
from mrfrec.cli.evaluating import compare, evaluate, tune
from mrfrec.cli.fitting import fit
from mrfrec.cli.options import GroupedCommand, Threads
from mrfrec.cli.paper import paper_app
from mrfrec.errors import DataError

if TYPE_CHECKING:
    from mrfrec.data.catalogue import Recommendations
    from mrfrec.models.recommender import Recommender

__all__ = ["app", "run"]

app = typer.Typer(
    add_completion=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)

_REASONS = 3  # with --explain
_READABLE = 50  # users whose recommendations somebody may want to read in one table

Model = Annotated[Path, Argument(help="A model file, as mrfrec fit writes it.", metavar="MODEL")]
Count = Annotated[int, Option("-k", help="How many items.", metavar="N")]
Output = Annotated[
    Path | None,
    Option("-o", "--output", metavar="FILE", help="Write to .parquet, .csv, .json, .jsonl or .txt instead."),
]
Form = Annotated[
    Literal["table", "json", "csv", "parquet"] | None,
    Option("--format", help="A table unless said here, or by the name of the output file."),
]
History = Annotated[
    list[str] | None,
    Option(
        "--history",
        metavar="ITEMS",
        help="What somebody has used, by id or by title: a,b,c or @FILE, one to a line. May be repeated.",
    ),
]


def run(arguments: list[str], stop: Event) -> None:
    """Run a command; its errors, a closed pipe and Ctrl-C, which sets `stop`, are left to the caller."""
    command = typer.main.get_command(app)
    # --help exits.
    with suppress(typer.Exit), command.make_context("mrfrec", arguments, obj=stop) as context:
        command.invoke(context)


@app.callback(invoke_without_command=True)
def _about(
    context: typer.Context,
    version: Annotated[bool, Option("--version", help="Print the version and exit.")] = False,
    debug: Annotated[bool, Option("--debug", help="Show the traceback of an error (any command).")] = False,
) -> None:
    """Learn which items go together from a table of who used what, and recommend with it.

    Results go to stdout, everything else to stderr. An error is one line, and exit code 2.

    \b
    Try:   mrfrec demo
    Then:  mrfrec fit events.csv -o shop.mrf
           mrfrec recommend shop.mrf --history milk,bread
    """
    if version:
        typer.echo(f"mrfrec {__version__}")
    elif context.invoked_subcommand is None:
        typer.echo(context.get_help())


# ── demo, fit ─────────────────────────────────────────────────────────────────────────────────────


@app.command()
def demo(
    output: Annotated[Path, Option("-o", "--output", metavar="FILE", help="Where to save the model.")] = Path(
        "debian.mrf"
    ),
) -> None:
    """See all of it at work, on data that comes along.

    Fits models, compares their accuracy, recommends, explains, and says what to try next. The users are the
    source packages of Debian 12, the items are the packages they are built with. Takes a few seconds; the
    first time about ten seconds more, to compile.

    \b
    Examples:
      mrfrec demo
      mrfrec demo -o /tmp/debian.mrf
    """
    from mrfrec.cli.demo import run as run_demo

    logging.getLogger("mrfrec").setLevel(logging.WARNING)
    run_demo(output)


app.command(cls=GroupedCommand)(fit)


# ── recommend, similar, explain ───────────────────────────────────────────────────────────────────


@app.command()
def recommend(
    context: typer.Context,
    model: Model,
    history: History = None,
    user: Annotated[
        list[str] | None, Option(metavar="ID", help="A user of the training data, by id. May be repeated.")
    ] = None,
    users: Annotated[
        Path | None, Option(metavar="FILE", help="Users by id: one to a line (.txt), or a table of them.")
    ] = None,
    all_users: Annotated[bool, Option("--all", help="Every user of the training data.")] = False,
    history_file: Annotated[
        Path | None, Option(metavar="FILE", help="A table of users and items: people who may be new.")
    ] = None,
    user_column: Annotated[
        str | None, Option(metavar="NAME", help="Column of the users in that table, if not obvious.")
    ] = None,
    item_column: Annotated[str | None, Option(metavar="NAME", help="Column of the items in it.")] = None,
    k: Count = 10,
    explain: Annotated[
        bool, Option("--explain", help="Say which items of the history speak for each.")
    ] = False,
    allow: Annotated[
        list[str] | None, Option(metavar="ITEMS", help="Recommend only these; named as for --history.")
    ] = None,
    exclude: Annotated[
        list[str] | None, Option(metavar="ITEMS", help="Never recommend these; named as for --history.")
    ] = None,
    seen: Annotated[bool, Option("--seen", help="Also recommend what the history holds.")] = False,
    form: Form = None,
    output: Output = None,
    threads: Threads = None,
) -> None:
    """Recommend to anybody by what they have used, or to known users.

    Say for whom in one of five ways: --history, --user, --users, --all, --history-file. Those that name users
    of the training data need a model fitted with --histories. Everybody gets exactly k items, fewer only
    where no more exist. Where a history says nothing, the most popular items come, with source "popular".

    \b
    Examples:
      mrfrec recommend shop.mrf --history milk,bread --explain
      mrfrec recommend shop.mrf --user 42 -k 5 --format json
      mrfrec recommend shop.mrf --all -k 20 -o recommendations.parquet
      mrfrec recommend shop.mrf --users newsletter.txt --exclude @sold-out.txt -o today.csv
    """
    from mrfrec.cli.names import ItemNames, find_users, read_histories
    from mrfrec.cli.show import kind_of, note, progress_bar, show_recommendations, size_of
    from mrfrec.io.atomic import refuse_own_input

    ways = {
        "--history": history, "--user": user, "--users": users, "--all": all_users,
        "--history-file": history_file,
    }  # fmt: skip
    given = [name for name, value in ways.items() if value]
    if len(given) != 1:
        raise DataError(f"say for whom: one of {', '.join(ways)}; got {' and '.join(given) or 'none'}.")
    kind = kind_of(form, output)
    refuse_own_input(output, [model, users, history_file])
    opened = _load(model, threads)
    names = ItemNames(opened.catalogue)
    whose: Any = None
    if history:
        whose = names.find_all(history)
    elif history_file:
        binary = bool(opened._facts["binary"])
        whose = read_histories(history_file, opened.items_, binary, user_column, item_column)
    asked = opened._query(find_users(opened, user, users) if user or users else None, whose)
    filters: dict[str, Any] = {
        "exclude_seen": not seen,
        "allow": names.find_all(allow) if allow else None,
        "exclude": names.find_all(exclude) if exclude else None,
        "explain": _REASONS if explain else 0,
    }
    many = len(asked) > _READABLE
    if kind == "table" and many:
        raise DataError(f"{len(asked):,} users are too many for a table: give -o FILE.csv, or --format csv.")
    with progress_bar(results=output is None) as progress:
        ranked = opened._batches(asked, k, **filters, progress=progress if many else None)
        pieces = _until(context.obj, ranked)
        if kind in ("parquet", "csv", "jsonl") and output is not None:
            rows = opened._write(pieces, asked, output, kind, explain)
            note(f"wrote {rows:,} rows for {len(asked):,} users to {output} ({size_of(output)})")
        else:
            show_recommendations(pieces, opened.catalogue, len(asked), explain, kind, output)


def _until(stop: Event | None, pieces: "Iterator[Recommendations]") -> "Iterator[Recommendations]":
    """Piece by piece, until Ctrl-C; also where polars, which asks for the pieces, has not heard of it."""
    for piece in pieces:
        if stop is not None and stop.is_set():
            raise KeyboardInterrupt
        yield piece


@app.command()
def similar(
    model: Model,
    item: Annotated[str, Argument(help="An item, by id or by title.", metavar="ITEM")],
    k: Count = 10,
    form: Form = None,
    output: Output = None,
) -> None:
    """List the items that go with an item most strongly.

    Fewer than k come where fewer go with it at all.

    \b
    Examples:
      mrfrec similar shop.mrf milk
      mrfrec similar movies.mrf 'Toy Story (1995)' -k 20 --format json
    """
    from mrfrec.cli.names import ItemNames
    from mrfrec.cli.show import kind_of, show_similar

    kind = kind_of(form, output)
    opened = _load(model)
    show_similar(opened, ItemNames(opened.catalogue).find(item), k, kind, output)


@app.command()
def explain(
    model: Model,
    item: Annotated[str, Option(help="The item whose score to explain, by id or by title.", metavar="ITEM")],
    history: History = None,
    user: Annotated[
        str | None, Option(help="Instead: a user of the training data, by id.", metavar="ID")
    ] = None,
    form: Form = None,
    output: Output = None,
) -> None:
    """Show what each item of a history adds to the score of one item.

    A contribution is the item's value in the history times its weight. They add up to the score.

    \b
    Examples:
      mrfrec explain shop.mrf --history milk,bread --item butter
      mrfrec explain shop.mrf --user 42 --item butter --format json
    """
    from mrfrec.cli.names import ItemNames, find_users
    from mrfrec.cli.show import kind_of, show_explanation

    if (history is None) == (user is None):
        raise DataError("say whose score: exactly one of --history and --user.")
    kind = kind_of(form, output)
    opened = _load(model)
    names = ItemNames(opened.catalogue)
    whose: dict[str, Any] = {}
    if history is not None:
        whose["history"] = names.find_all(history)
    if user is not None:
        whose["user"] = find_users(opened, [user], None, known=True)[0]
    show_explanation(opened, names.find(item), whose, kind, output)


# ── info, doctor ──────────────────────────────────────────────────────────────────────────────────


@app.command()
def info(
    model: Model,
    form: Annotated[
        Literal["table", "json"], Option("--format", help="For people, or for programs.")
    ] = "table",
) -> None:
    """Tell what a model file holds.

    The data it was trained on, its parameters, whether it holds histories, its arrays and its size.

    \b
    Examples:
      mrfrec info shop.mrf
      mrfrec info shop.mrf --format json
    """
    from mrfrec.cli.show import show_facts
    from mrfrec.io.artifact import describe

    show_facts(describe(model), str(model), form)


for command in (evaluate, compare, tune):
    app.command(cls=GroupedCommand)(command)
app.add_typer(paper_app)


@app.command("compile")
def compile_kernels(
    to: Annotated[
        Path | None, Option(metavar="FOLDER", help="Keep the machine code here, not with the package.")
    ] = None,
    dtype: Annotated[
        Literal["float32", "float64", "both"], Option(help="Precision of the fits to compile for.")
    ] = "float32",
) -> None:
    """Compile ahead, so that the first fit need not: for container images.

    The machine code is kept beside the package if that can be written, else in ~/.cache/mrfrec/kernels; fits
    find it there, also where nothing can be written any more. For a folder given by --to, set
    NUMBA_CACHE_DIR to that folder when fitting. Machine code is for this model of processor: another one
    compiles for itself.

    \b
    Examples:
      mrfrec compile
      mrfrec compile --to /opt/kernels --dtype both
    """
    from mrfrec.cli.running import naming
    from mrfrec.models.ahead import compile_ahead

    logging.getLogger("mrfrec").setLevel(logging.WARNING)
    with naming("--to"):
        kept = compile_ahead(to, dtypes=("float32", "float64") if dtype == "both" else (dtype,))
    typer.echo(str(kept))


@app.command()
def doctor() -> None:
    """Check this machine and this installation.

    Versions, cores, memory, BLAS, the cache of compiled code, and two small fits against plain numpy. Send
    what it says along with a report of a problem.

    \b
    Examples:
      mrfrec doctor
    """
    from mrfrec.cli.doctor import report

    logging.getLogger("mrfrec").setLevel(logging.WARNING)
    report()


# ── shared ────────────────────────────────────────────────────────────────────────────────────────


def _load(path: Path, threads: int | None = None) -> "Recommender":
    from mrfrec.models.registry import load

    opened = load(path)
    opened.threads = None if threads is None else check_count("--threads", threads)
    return opened
