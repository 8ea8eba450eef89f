"""The commands: what they take, and what they call. docs/cli.md is generated from the texts here."""

import logging
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from typer import Argument, Option

from mrfrec import __version__
from mrfrec.checks import check_count
from mrfrec.cli import evaluating
from mrfrec.cli.datasets import datasets_app
from mrfrec.errors import DataError, ParameterError

if TYPE_CHECKING:
    from mrfrec.catalogue import Ranked
    from mrfrec.recommender import Recommender

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
Threads = Annotated[int | None, Option(metavar="N", help="Threads to use; all cores if not given.")]


def _file_name(text: str) -> Path:
    """As it was typed; nothing at all would be the folder one is in."""
    if not text:
        raise typer.BadParameter("it must be the name of a file; got ''")
    return Path(text)


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
    first time about half a minute more, to compile.

    \b
    Examples:
      mrfrec demo
      mrfrec demo -o /tmp/debian.mrf
    """
    from mrfrec.cli.demo import run as run_demo

    logging.getLogger("mrfrec").setLevel(logging.WARNING)
    run_demo(output)


@app.command()
def fit(
    context: typer.Context,
    data: Annotated[
        list[str],
        Argument(
            help="Files, or patterns in quotes: CSV, TSV, JSON lines (also .gz, .zst), Parquet, Arrow.",
            metavar="DATA",
        ),
    ],
    output: Annotated[Path, Option("-o", "--output", metavar="FILE", help="The model file to write.")],
    histories: Annotated[
        bool, Option("--histories", help="Keep what each user had: recommend --user and --all need it.")
    ] = False,
    user_column: Annotated[
        str | None, Option(metavar="NAME", help="Column of the users, if its name does not tell.")
    ] = None,
    item_column: Annotated[str | None, Option(metavar="NAME", help="Column of the items.")] = None,
    value_column: Annotated[
        str | None, Option(metavar="NAME", help="Column of the values: ratings, counts, plays.")
    ] = None,
    title_column: Annotated[str | None, Option(metavar="NAME", help="Column of the items' titles.")] = None,
    items: Annotated[
        Path | None, Option(metavar="FILE", help="Another table, of the items and their titles.")
    ] = None,
    min_value: Annotated[
        float | None, Option(metavar="X", help="Leave out pairs with a value below this: 4 for ratings.")
    ] = None,
    values: Annotated[
        bool, Option("--values", help="Learn from the values; else every pair counts 1.")
    ] = False,
    duplicates: Annotated[
        Literal["sum", "last", "error"],
        Option(help="Of several rows of one user and item: add the values, keep the last, or refuse."),
    ] = "sum",
    on_bad: Annotated[
        Literal["refuse", "skip"],
        Option(help="What to do when a row has no id, or a value that is no number."),
    ] = "refuse",
    separator: Annotated[
        str | None,
        Option(metavar="C", help="Between columns of a text file, if not found out."),
    ] = None,
    columns: Annotated[
        str | None,
        Option(metavar="NAMES", help="Columns of a text file without a header: user,item,plays."),
    ] = None,
    model: Annotated[
        list[str] | None,
        Option(
            metavar="MODEL",
            help="Which model: MRF, EASE, EDLAE, Popularity, ItemKNN, SLIM, FsSLIM, WMF, CDAE, MultDAE or "
            "MultVAE, with parameters of its own: 'SLIM: l1=1'. MRF if not given.",
        ),
    ] = None,
    params: Annotated[
        Path | None,
        Option(
            metavar="FILE",
            help="Model and parameters, as mrfrec tune writes them; what is typed wins.",
            parser=_file_name,
        ),
    ] = None,
    l2: Annotated[
        float, Option(metavar="X", help="Ridge, the first thing to tune: more for less data.")
    ] = 6.0,
    alpha: Annotated[float, Option(metavar="X", help="Rescaling: 0 covariances, 1 correlations.")] = 0.75,
    sparsity: Annotated[
        str, Option(metavar="X", help="Share of the weights to keep, such as 0.005; dense for all of them.")
    ] = "auto",
    threshold: Annotated[
        float | None, Option(metavar="X", help="Instead: keep pairs that correlate more than this.")
    ] = None,
    max_neighbors: Annotated[int, Option(metavar="N", help="Sparse: most weights of an item.")] = 1000,
    r: Annotated[float, Option(metavar="X", help="Sparse: from 0, accurate, to 1, faster.")] = 0.0,
    l2_flat: Annotated[float, Option(metavar="X", help="A second ridge, the same for all items.")] = 0.0,
    dropout: Annotated[
        float, Option(metavar="X", help="A third, in proportion to how often items are used; below 1.")
    ] = 0.0,
    user_weight: Annotated[float, Option(metavar="X", help="Above 0, long histories count less.")] = 0.0,
    center: Annotated[bool, Option(help="Subtract each item's mean, or do not.")] = True,
    mean_constraint: Annotated[
        bool, Option("--mean-constraint", help="Dense: fit so that the items' means are reproduced.")
    ] = False,
    offset: Annotated[
        bool, Option("--offset", help="Score by the exact conditional mean; popular items score higher.")
    ] = False,
    dtype: Annotated[Literal["float32", "float64"], Option(help="Precision of the weights.")] = "float32",
    threads: Threads = None,
    memory_limit: Annotated[
        str | None, Option(metavar="SIZE", help="Such as 8GB; what the machine has free if not given.")
    ] = None,
    device: Annotated[
        str | None,
        Option(metavar="NAME", help="Where an autoencoder is trained: cpu, cuda; a GPU if there is one."),
    ] = None,
    checkpoint: Annotated[
        Path | None,
        Option(
            metavar="FILE",
            help="Keep the state of that training here: the same command goes on there.",
            parser=_file_name,
        ),
    ] = None,
) -> None:
    """Learn a model from a table of who used what.

    The table has a row for each time a user used an item. Ids are integers or texts and stay what they are.
    Bad rows are refused with their number; nothing is repaired. A model that would not fit in memory is
    refused before it is begun.

    --l2 to --dtype are parameters of an MRF, and of other models that have the same.

    \b
    Examples:
      mrfrec fit events.csv -o shop.mrf
      mrfrec fit ratings.csv -o movies.mrf --min-value 4 --items movies.csv --histories
      mrfrec fit 'logs/*.parquet' -o songs.mrf --sparsity 0.005 --memory-limit 8GB
      mrfrec fit triplets.txt -o songs.mrf --columns user,song,plays
      mrfrec fit events.csv -o shop.mrf --params best.json
      mrfrec fit events.csv -o shop.mrf --model 'SLIM: l1=1, l2=50'
      mrfrec fit events.csv -o shop.mrf --model MultVAE --device cuda --checkpoint training.ckpt
    """
    from mrfrec.cli.models import check_machine, make, only, parse_model, with_options
    from mrfrec.cli.running import check_output, going_on
    from mrfrec.cli.show import note, note_if_it_compiles, progress_bar, size_of
    from mrfrec.io.atomic import check_writable, expanded, refuse_own_input
    from mrfrec.io.sources import paths_of
    from mrfrec.io.tables import read_interactions

    check_writable(output)
    files = [*([] if items is None else [items]), *(path for name in data for path in paths_of(name))]
    refuse_own_input(output, files)
    if checkpoint is not None and expanded(checkpoint).resolve() == expanded(output).resolve():
        raise ParameterError("--checkpoint", "another file than --output", str(checkpoint))
    check_output("--checkpoint", checkpoint, files)
    parameters = {
        "l2": l2, "alpha": alpha, "l2_flat": l2_flat, "dropout": dropout, "user_weight": user_weight,
        "center": center, "offset": offset, "sparsity": _sparsity(sparsity), "threshold": threshold,
        "max_neighbors": max_neighbors, "r": r, "mean_constraint": mean_constraint, "dtype": dtype,
    }  # fmt: skip
    typed = {n: x for n, x in parameters.items() if "DEFAULT" not in str(context.get_parameter_source(n))}
    machine = {
        "threads": threads, "memory_limit": memory_limit, "device": device, "checkpoint": checkpoint
    }  # fmt: skip
    spec = with_options(parse_model(only(model), params), typed)
    check_machine(machine, [spec.kind])
    made = make(spec, machine)
    with progress_bar() as progress:
        interactions = read_interactions(
            data, user_column, item_column, value_column, title_column,
            items=items, min_value=min_value, binary=not values, duplicates=duplicates, on_bad=on_bad,
            separator=separator.replace("\\t", "\t") if separator else None,
            columns=[name.strip() for name in columns.split(",")] if columns else None,
            progress=progress,
        )  # fmt: skip
        note(f"{interactions.n_users:,} users × {interactions.n_items:,} items, {len(interactions):,} pairs")
        for reason, count in interactions.skipped.items():
            note(f"left out {count:,} rows: {reason}")
        note_if_it_compiles()
        if checkpoint is not None and expanded(checkpoint).exists():
            note(f"going on from {checkpoint}")
        start = time.perf_counter()
        with going_on(checkpoint):
            made.fit(interactions, progress=progress)
    seconds = time.perf_counter() - start
    made.save(output, include_histories=histories)
    note(f"fitted {spec.kind} in {seconds:.1f} s; wrote {output} ({size_of(output)})")


def _sparsity(text: str) -> float | Literal["auto"] | None:
    if text in ("auto", "dense"):
        return "auto" if text == "auto" else None
    try:
        return float(text)
    except ValueError:
        raise ParameterError("--sparsity", "a number above 0 and at most 1, auto, or dense", text) from None


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
    asked = opened.asked(find_users(opened, user, users) if user or users else None, whose)
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
        ranked = opened.ranked(asked, k, **filters, progress=progress if many else None)
        pieces = _until(context.obj, ranked)
        if kind in ("parquet", "csv", "jsonl") and output is not None:
            rows = opened.write(pieces, asked, output, kind, explain=explain)
            note(f"wrote {rows:,} rows for {len(asked):,} users to {output} ({size_of(output)})")
        else:
            show_recommendations(pieces, opened.catalogue, len(asked), explain, kind, output)


def _until(stop: Event | None, pieces: "Iterator[Ranked]") -> "Iterator[Ranked]":
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


# ── what has a file of its own ────────────────────────────────────────────────────────────────────

app.add_typer(evaluating.app)
app.add_typer(datasets_app)


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
    from mrfrec.saving import load

    opened = load(path)
    opened.threads = None if threads is None else check_count("--threads", threads)
    return opened
