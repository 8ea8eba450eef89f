"""The application and the commands that use models. docs/cli.md is generated from the texts here."""

import logging
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from typer import Argument, Option

from mrfrec import __version__
from mrfrec.checks import check_count
from mrfrec.cli.evaluating import compare, evaluate, tune
from mrfrec.cli.fitting import fit
from mrfrec.cli.options import Cluster, Command, ModelFile, Threads, new_app
from mrfrec.cli.paper import paper_app
from mrfrec.cli.updating import forget, update
from mrfrec.errors import DataError, ParameterError

if TYPE_CHECKING:
    from mrfrec.data.catalogue import Recommendations
    from mrfrec.models.recommender import Recommender

_ABOUT = """Learn which items are used together, and recommend items.

Results go to stdout, everything else to stderr. Errors are one line, with exit code 2.

\b
Try:   mrfrec demo
Then:  mrfrec fit events.csv -o shop.mrf
       mrfrec recommend shop.mrf --history milk,bread
"""
app = new_app(None, _ABOUT)
_command_of = cache(typer.main.get_command)  # 30 ms each time

_REASONS = 3  # shown for each item with --explain
_TABLE_USERS = 50  # at most this many users are shown as a table

Model = Annotated[Path, Argument(help="A model file written by mrfrec fit.", metavar="MODEL")]
Count = Annotated[int, Option("-k", help="Number of items.", metavar="N")]
Output = Annotated[
    Path | None,
    Option("-o", "--output", metavar="FILE", help="A .parquet, .csv, .json, .jsonl or .txt file."),
]
Novelty = Annotated[
    float | None,
    Option(
        metavar="X", help="Above 0, rarer items score higher; below, popular ones.", show_default="as fitted"
    ),
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
        help="Items a user has used, by id or title: a,b,c or @FILE, one per line. May be repeated.",
    ),
]


def run(arguments: list[str], stop: Event) -> None:
    """Run a command. Errors, a closed pipe and Ctrl-C, which sets `stop`, are left to the caller."""
    command = _command_of(app)
    # --help raises Exit.
    with suppress(typer.Exit), command.make_context("mrfrec", arguments, obj=stop) as context:
        command.invoke(context)


@app.callback(invoke_without_command=True)
def _about(
    context: typer.Context,
    version: Annotated[bool, Option("--version", help="Print the version and exit.")] = False,
    debug: Annotated[bool, Option("--debug", help="Show the traceback of an error (any command).")] = False,
) -> None:
    if version:
        typer.echo(f"mrfrec {__version__}")
    elif context.invoked_subcommand is None:
        typer.echo(context.get_help())


@app.command(cls=Command)
def demo(output: ModelFile = Path("debian.mrf")) -> None:
    """Fit, compare, recommend and explain on built-in data.

    Users are the source packages of Debian 12, items the packages they are built with. Takes a few seconds,
    and about ten seconds more the first time, to compile. Ends with commands to try next.

    \b
    Examples:
      mrfrec demo
      mrfrec demo -o /tmp/debian.mrf
    """
    from mrfrec.cli.demo import run as run_demo

    logging.getLogger("mrfrec").setLevel(logging.WARNING)
    run_demo(output)


for command in (fit, update, forget):
    app.command(cls=Command)(command)


@app.command(cls=Command)
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
        Path | None, Option(metavar="FILE", help="A table of users and items; the users may be new.")
    ] = None,
    user_column: Annotated[str | None, Option(metavar="NAME", help="Column of its users.")] = None,
    item_column: Annotated[str | None, Option(metavar="NAME", help="Column of its items.")] = None,
    k: Count = 10,
    explain: Annotated[
        bool, Option("--explain", help="Show which items of the history contribute most.")
    ] = False,
    allow: Annotated[
        list[str] | None, Option(metavar="ITEMS", help="Recommend only these items, named as for --history.")
    ] = None,
    exclude: Annotated[
        list[str] | None, Option(metavar="ITEMS", help="Never recommend these items, named as for --history.")
    ] = None,
    seen: Annotated[bool, Option("--seen", help="Also recommend items of the history.")] = False,
    novelty: Novelty = None,
    form: Form = None,
    output: Output = None,
    threads: Threads = None,
    device: Annotated[
        str | None,
        Option(
            metavar="NAME", help="Rank by dense weights on: cpu, cuda, cuda:1 or auto.", show_default="cpu"
        ),
    ] = None,
    cluster: Cluster = None,
) -> None:
    """Recommend items for a history, or for training users.

    Give exactly one of --history, --history-file, --user, --users and --all. The last three need a model
    fitted with --histories. Each user gets k items, or fewer if there are not enough. Items about which the
    history says nothing are ranked by popularity and have the source "popular".

    With --cluster, -o is a folder, which gets a Parquet file for each 20,000 users, part-00000.parquet and so
    on. If that was interrupted, the same command goes on with the files that are missing.

    \b
    Examples:
      mrfrec recommend shop.mrf --history milk,bread --explain
      mrfrec recommend shop.mrf --user 42 -k 5 --format json
      mrfrec recommend shop.mrf --all -k 20 -o recommendations.parquet
      mrfrec recommend shop.mrf --all -k 20 -o recommendations --cluster tcp://scheduler:8786
      mrfrec recommend shop.mrf --users newsletter.txt --exclude @sold-out.txt -o today.csv
    """
    from mrfrec.cli.names import ItemNames, find_users, read_histories
    from mrfrec.cli.running import cluster_of, resumable
    from mrfrec.cli.show import kind_of, note, progress_bar, show_recommendations, size_of
    from mrfrec.io.atomic import refuse_own_input

    ways = {
        "--history": history, "--user": user, "--users": users, "--all": all_users,
        "--history-file": history_file,
    }  # fmt: skip
    given = [name for name, value in ways.items() if value]
    if len(given) != 1:
        raise DataError(f"give exactly one of {', '.join(ways)}; got {' and '.join(given) or 'none'}.")
    if cluster is None:
        kind = kind_of(form, output)
    elif output is None or form not in (None, "parquet"):
        raise DataError("--cluster writes Parquet files to a folder: give -o FOLDER, and no other --format.")
    else:
        kind = "parts"
    refuse_own_input(output, [model, users, history_file])
    opened = _load(model, threads)
    if device is not None:
        _rank_on(device, opened)
    names = ItemNames(opened.catalogue)
    whose: Any = None
    if history:
        whose = names.find_all(history)
    elif history_file:
        binary = bool(opened._facts["binary"])
        whose = read_histories(history_file, opened.items_, binary, user_column, item_column)
    asked = opened._query(find_users(opened, user, users) if user or users else None, whose)
    allowed, excluded = (names.find_all(texts) if texts else None for texts in (allow, exclude))
    many = len(asked) > _TABLE_USERS
    if kind == "table" and many:
        raise DataError(f"{len(asked):,} users are too many for a table: give -o FILE.csv, or --format csv.")
    options: dict[str, Any] = {
        "exclude_seen": not seen, "allow": allowed, "exclude": excluded, "novelty": novelty,
        "explain": _REASONS if explain else 0,
    }  # fmt: skip
    if kind == "parts" and output is not None:
        with cluster_of(cluster) as on_cluster, progress_bar() as progress, resumable(output):
            rows = opened._write_parts(asked, k, output, progress=progress, **on_cluster, **options)
        note(f"wrote {rows:,} rows for {len(asked):,} users to {output}")
        return
    with progress_bar(results=output is None) as progress:
        ranked = opened._batches(asked, k, progress=progress if many else None, **options)
        pieces = _until(context.obj, ranked)
        if kind in ("parquet", "csv", "jsonl") and output is not None:
            with opened._staged(pieces, asked, output, kind, None, explain) as rows:
                pass
            note(f"wrote {rows:,} rows for {len(asked):,} users to {output} ({size_of(output)})")
        else:
            show_recommendations(pieces, opened.catalogue, len(asked), explain, kind, output)


def _until(stop: Event | None, pieces: "Iterator[Recommendations]") -> "Iterator[Recommendations]":
    """Yield the batches until Ctrl-C, which polars swallows while it consumes them."""
    for piece in pieces:
        if stop is not None and stop.is_set():
            raise KeyboardInterrupt
        yield piece


@app.command(cls=Command)
def similar(
    model: Model,
    item: Annotated[str, Argument(help="An item, by id or title.", metavar="ITEM")],
    k: Count = 10,
    form: Form = None,
    output: Output = None,
) -> None:
    """List the items with the largest weights for an item.

    There are fewer than k if fewer items have a weight.

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


@app.command(cls=Command)
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

    A contribution is the value of the item in the history times its weight. Contributions sum to the score.

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


@app.command(cls=Command)
def info(
    model: Model,
    form: Annotated[
        Literal["table", "json"], Option("--format", help="A table for people, or JSON for programs.")
    ] = "table",
) -> None:
    """Describe a model file.

    Shows its training data, parameters, arrays and size, and whether it holds the users' histories.

    \b
    Examples:
      mrfrec info shop.mrf
      mrfrec info shop.mrf --format json
    """
    from mrfrec.cli.show import show_facts
    from mrfrec.io.artifact import describe

    show_facts(describe(model), str(model), form)


for command in (evaluate, compare, tune):
    app.command(cls=Command)(command)
app.add_typer(paper_app)


@app.command("compile", cls=Command)
def compile_kernels(
    to: Annotated[Path | None, Option(metavar="FOLDER", help="Folder for the machine code.")] = None,
    dtype: Annotated[
        Literal["float32", "float64", "both"], Option(help="Precision of the fits to compile for.")
    ] = "float32",
) -> None:
    """Compile the kernels ahead of the first fit.

    Saves a container the seconds of compiling. The machine code is stored next to the package if that is
    writable, otherwise in ~/.cache/mrfrec/kernels; fits find it there, also on a read-only file system.
    After --to FOLDER, set NUMBA_CACHE_DIR to that folder when fitting. The code is specific to this
    processor model; another one compiles again.

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


@app.command(cls=Command)
def doctor() -> None:
    """Check the machine and the installation.

    Shows versions, cores, memory, BLAS and the cache of compiled code, and compares two small fits with plain
    numpy. Include the output in bug reports.

    \b
    Examples:
      mrfrec doctor
    """
    from mrfrec.cli.doctor import print_findings

    logging.getLogger("mrfrec").setLevel(logging.WARNING)
    print_findings()


def _load(path: Path, threads: int | None = None) -> "Recommender":
    from mrfrec.models.registry import load

    opened = load(path)
    opened.threads = None if threads is None else check_count("--threads", threads)
    return opened


def _rank_on(device: str, model: "Recommender") -> None:
    """Let a device rank, if the model has weights for that."""
    from mrfrec.cli.show import note
    from mrfrec.engines.devices import check_device
    from mrfrec.models.mrf import MRF

    if not isinstance(model, MRF):
        rule = f"left out with {type(model).__name__}, which ranks on the CPU"
        raise ParameterError("--device", rule, device)
    model.set_params(device=device)
    check_device(device)
    if model.is_sparse and device != "cpu":
        note("the weights are sparse: they are ranked on the CPU")
