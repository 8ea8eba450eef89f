"""The commands: what they take, and what they call. docs/cli.md is generated from the texts here."""

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from mrfrec.errors import DataError, ParameterError

if TYPE_CHECKING:
    from mrfrec.catalogue import Catalogue, Ranked
    from mrfrec.ids import Id
    from mrfrec.recommender import Recommender

__all__ = ["app"]

app = typer.Typer(
    add_completion=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)

_REASONS = 3  # with --explain
_READABLE = 50  # users whose recommendations somebody may want to read in one table

Format = Literal["table", "json", "csv", "parquet"]
Model = Annotated[Path, typer.Argument(help="A model file, as `mrfrec fit` writes it.", metavar="MODEL")]
Count = Annotated[int, typer.Option("-k", help="How many items.", min=1)]
Output = Annotated[
    Path | None, typer.Option("-o", "--output", help="Write to this file instead of the screen.")
]
Form = Annotated[
    Format | None, typer.Option("--format", help="By default a table, or what the name of the output says.")
]
History = Annotated[
    list[str] | None,
    typer.Option(
        "--history",
        help="Items somebody has used, by id or by title: a,b,c; or several times; or @FILE, one to a line.",
        metavar="ITEMS",
    ),
]


@app.callback(invoke_without_command=True)
def _about(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    """Learn which items go together from a table of who-used-what, and recommend with it.

    \b
    Try:  mrfrec demo
    Then: mrfrec fit events.csv -o shop.mrf
          mrfrec recommend shop.mrf --history milk,bread
    """
    if version:
        from mrfrec import __version__

        typer.echo(f"mrfrec {__version__}")
    elif context.invoked_subcommand is None:
        typer.echo(context.get_help())


# ── fit ───────────────────────────────────────────────────────────────────────────────────────────


@app.command()
def fit(
    data: Annotated[
        list[str],
        typer.Argument(
            help="Files or patterns: CSV, TSV, JSON lines (.gz, .zst), Parquet, Arrow.", metavar="DATA..."
        ),
    ],
    output: Annotated[Path, typer.Option("-o", "--output", help="The model file to write.")],
    user_column: Annotated[str | None, typer.Option(help="Column of the users, if not obvious.")] = None,
    item_column: Annotated[str | None, typer.Option(help="Column of the items, if not obvious.")] = None,
    value_column: Annotated[str | None, typer.Option(help="Column of the values, if not obvious.")] = None,
    title_column: Annotated[str | None, typer.Option(help="Column of the titles, if not obvious.")] = None,
    items: Annotated[Path | None, typer.Option(help="A table of items with their titles.")] = None,
    min_value: Annotated[float | None, typer.Option(help="Leave out pairs with a lower value.")] = None,
    values: Annotated[
        bool, typer.Option("--values", help="Use the values; without, a pair counts 1.")
    ] = False,
    duplicates: Annotated[
        Literal["sum", "last", "error"], typer.Option(help="Several rows of one user and item.")
    ] = "sum",
    on_bad: Annotated[
        Literal["refuse", "skip"], typer.Option(help="Rows without ids or with a value that is no number.")
    ] = "refuse",
    separator: Annotated[str | None, typer.Option(help="Of a text file; found out by itself.")] = None,
    columns: Annotated[
        str | None, typer.Option(help="Names of the columns of a text file without a header: a,b,c.")
    ] = None,
    histories: Annotated[
        bool,
        typer.Option(
            "--histories", help="Keep the users' histories in the model: needed for --user and --all."
        ),
    ] = False,
    l2: Annotated[float, typer.Option(help="Ridge. More for less data.")] = 6.0,
    alpha: Annotated[float, typer.Option(help="Rescaling: 0 covariances, 1 correlations.")] = 0.75,
    sparsity: Annotated[
        str, typer.Option(help='Share of the weights to keep, such as 0.005; "auto", or "dense" for all.')
    ] = "auto",
    threshold: Annotated[float | None, typer.Option(help="Keep what is above this, instead.")] = None,
    max_neighbors: Annotated[int, typer.Option(help="Most weights of an item, if sparse.")] = 1000,
    r: Annotated[float, typer.Option(help="Sparse: 0 accurate, up to 1 faster.")] = 0.0,
    l2_flat: Annotated[float, typer.Option(help="A second ridge, the same for all items.")] = 0.0,
    user_weight: Annotated[float, typer.Option(help="Above 0, long histories count less.")] = 0.0,
    center: Annotated[bool, typer.Option(help="Subtract the means.")] = True,
    mean_constraint: Annotated[
        bool, typer.Option("--mean-constraint", help="Fit under the mean constraint; dense.")
    ] = False,
    offset: Annotated[bool, typer.Option("--offset", help="Score by the exact conditional mean.")] = False,
    dtype: Annotated[Literal["float32", "float64"], typer.Option(help="Of the weights.")] = "float32",
    threads: Annotated[int | None, typer.Option(help="All cores, if not given.")] = None,
    memory_limit: Annotated[str | None, typer.Option(help="Such as 8GB; what is free, if not given.")] = None,
) -> None:
    """Learn a model from a table with a row for each time a user used an item.

    Users may be integers or texts, and so may items; what they are they stay. Bad rows are refused with
    their number, nothing is repaired.

    \b
    mrfrec fit events.csv -o shop.mrf
    mrfrec fit ratings.csv -o movies.mrf --min-value 4 --items movies.csv --histories
    mrfrec fit 'logs/*.parquet' -o songs.mrf --sparsity 0.005 --memory-limit 8GB
    mrfrec fit triplets.txt -o songs.mrf --columns user,song,plays
    """
    from mrfrec.cli.show import progress_bar
    from mrfrec.io.tables import read_interactions
    from mrfrec.model import MRF

    if (output.exists() and not output.is_file()) or not output.expanduser().parent.is_dir():
        raise ParameterError("--output", "a file in a folder that exists", str(output))
    model = MRF(
        l2=l2,
        alpha=alpha,
        l2_flat=l2_flat,
        user_weight=user_weight,
        center=center,
        sparsity=_sparsity(sparsity),
        threshold=threshold,
        max_neighbors=max_neighbors,
        r=r,
        mean_constraint=mean_constraint,
        offset=offset,
        dtype=dtype,
        threads=threads,
        memory_limit=memory_limit,
    )
    with progress_bar() as progress:
        interactions = read_interactions(
            data,
            user_column,
            item_column,
            value_column,
            title_column,
            items=items,
            min_value=min_value,
            binary=not values,
            duplicates=duplicates,
            on_bad=on_bad,
            separator=separator.replace("\\t", "\t") if separator else None,
            columns=columns.split(",") if columns else None,
            progress=progress,
        )
        _note(f"{interactions.n_users:,} users × {interactions.n_items:,} items, {len(interactions):,} pairs")
        for reason, count in interactions.skipped.items():
            _note(f"left out {count:,} rows: {reason}")
        model.fit(interactions, progress=progress)
    model.save(output, include_histories=histories)
    _note(f"fitted in {model.timings_['total']:.1f} s; wrote {output} ({_size(output)})")


def _sparsity(text: str) -> float | Literal["auto"] | None:
    if text in ("auto", "dense"):
        return "auto" if text == "auto" else None
    try:
        return float(text)
    except ValueError:
        raise ParameterError(
            "--sparsity", 'a number above 0 and at most 1, "auto" or "dense"', text
        ) from None


# ── recommend, similar, explain ───────────────────────────────────────────────────────────────────


@app.command()
def recommend(
    model: Model,
    user: Annotated[
        list[str] | None,
        typer.Option(help="Id of a user of the training data; may be repeated.", metavar="ID"),
    ] = None,
    history: History = None,
    users: Annotated[
        Path | None,
        typer.Option(help="A file of user ids: one to a line (.txt), or a table with a user column."),
    ] = None,
    all_users: Annotated[bool, typer.Option("--all", help="Every user of the training data.")] = False,
    history_file: Annotated[
        Path | None,
        typer.Option(help="A table of users and items: histories of people the model need not know."),
    ] = None,
    k: Count = 10,
    explain: Annotated[
        bool, typer.Option("--explain", help="Say which items of the history speak for it.")
    ] = False,
    allow: Annotated[
        list[str] | None, typer.Option(help="Recommend only these items; as for --history.", metavar="ITEMS")
    ] = None,
    exclude: Annotated[
        list[str] | None, typer.Option(help="Never recommend these items; as for --history.", metavar="ITEMS")
    ] = None,
    seen: Annotated[bool, typer.Option("--seen", help="Also recommend what the history holds.")] = False,
    form: Form = None,
    output: Output = None,
    threads: Annotated[int | None, typer.Option(help="All cores, if not given.", min=1)] = None,
) -> None:
    """Recommend items to users of the training data, or to anybody by what they have used.

    Exactly k for everybody, fewer only where no more exist. Where a history says nothing, the most popular
    items come, marked as such.

    \b
    mrfrec recommend shop.mrf --history milk,bread --explain
    mrfrec recommend shop.mrf --user 42 -k 5 --format json
    mrfrec recommend shop.mrf --all -k 20 -o recommendations.parquet
    mrfrec recommend shop.mrf --users newsletter.txt --exclude @sold-out.txt -o today.csv
    """
    from mrfrec.cli.names import find_items
    from mrfrec.cli.show import progress_bar, write_rows

    ways = {
        "--user": user,
        "--history": history,
        "--users": users,
        "--all": all_users,
        "--history-file": history_file,
    }
    given = [name for name, value in ways.items() if value]
    if len(given) != 1:
        raise DataError(
            f"say for whom: exactly one of {', '.join(ways)}; got {' and '.join(given) or 'none'}."
        )
    kind = _kind(form, output)
    opened = _load(model, threads)
    catalogue = opened.catalogue
    asked = opened.asked(
        _user_ids(opened, user, users) if user or users else None,
        find_items(history, catalogue) if history else str(history_file) if history_file else None,
    )
    filters: dict[str, Any] = {
        "exclude_seen": not seen,
        "allow": find_items(allow, catalogue) if allow else None,
        "exclude": find_items(exclude, catalogue) if exclude else None,
        "explain": _REASONS if explain else 0,
    }
    with progress_bar() as progress:
        pieces = opened.ranked(asked, k, **filters, progress=progress if len(asked) > _READABLE else None)
        if kind in ("parquet", "csv", "jsonl") and output is not None:
            rows = opened.write(pieces, asked, output, kind, explain=explain)
            _note(f"wrote {rows:,} rows for {len(asked):,} users to {output} ({_size(output)})")
            return
        if kind == "table" and len(asked) > _READABLE:
            raise DataError(
                f"a table of {len(asked):,} users is not for reading: give -o FILE, or --format csv."
            )
        names = ["user", "item", "title", "score", "rank", "source", *(["because"] if explain else [])]
        drop = [] if kind != "table" else _needless(names, catalogue, one_user=len(asked) == 1)
        chosen = [place for place, name in enumerate(names) if name not in drop]
        lines = ([row[place] for place in chosen] for row in _rows(pieces, catalogue))
        write_rows(lines, [names[place] for place in chosen], kind, output)


def _needless(names: list[str], catalogue: "Catalogue", one_user: bool) -> list[str]:
    """Columns that tell a reader nothing."""
    return [*(["user"] if one_user else []), *(["title"] if catalogue.titles is None else [])]


def _rows(pieces: "Iterator[Ranked]", catalogue: "Catalogue") -> Iterator[list[Any]]:
    from mrfrec.catalogue import because_text

    for ranked in pieces:
        for u, name in enumerate(ranked.users):
            for place, item in enumerate(ranked.items[u].tolist()):
                if item >= 0:
                    row = [
                        name,
                        catalogue.items[item],
                        catalogue.title(item),
                        float(ranked.scores[u, place]),
                        place + 1,
                        "model" if ranked.informed[u, place] else "popular",
                    ]
                    reasons = (
                        [] if ranked.because is None else [because_text(ranked.because[u][place], catalogue)]
                    )
                    yield row + reasons


def _user_ids(model: "Recommender", users: list[str] | None, path: Path | None) -> "list[Id]":
    known = model.users_
    if known is None:
        model.asked()  # says what is missing
    assert known is not None
    if users is not None:
        return [known.parse(text, "user") for text in users]
    assert path is not None
    if path.suffix.lower() in (".txt", ""):
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except UnicodeDecodeError as error:
            raise DataError(f"{path} cannot be read: {error}.") from error
        return [known.parse(line.strip(), "user") for line in lines if line.strip()]
    from mrfrec.io.tables import read_users

    return read_users(path, known)


@app.command()
def similar(
    model: Model,
    item: Annotated[str, typer.Argument(help="An item, by id or by title.", metavar="ITEM")],
    k: Count = 10,
    form: Form = None,
    output: Output = None,
) -> None:
    """The items that go with an item most strongly.

    \b
    mrfrec similar shop.mrf milk
    mrfrec similar movies.mrf 'Toy Story (1995)' -k 20 --format json
    """
    from mrfrec.cli.names import find_item

    opened = _load(model)
    catalogue = opened.catalogue
    found = opened.neighbors(find_item(item, catalogue), k)
    names = ["item", "title", "score", "rank"]
    rows = [
        [catalogue.items[i], catalogue.title(i), score, place + 1] for place, (i, score) in enumerate(found)
    ]
    _small_table(rows, names, form, output, catalogue)


@app.command()
def explain(
    model: Model,
    item: Annotated[str, typer.Option(help="The item, by id or by title.", metavar="ITEM")],
    history: History = None,
    user: Annotated[str | None, typer.Option(help="Id of a user of the training data.", metavar="ID")] = None,
    form: Form = None,
    output: Output = None,
) -> None:
    """What each item of a history adds to the score of one item.

    The contributions add up to the score.

    \b
    mrfrec explain shop.mrf --history milk,bread --item butter
    mrfrec explain shop.mrf --user 42 --item butter --format json
    """
    from math import fsum

    from mrfrec.cli.names import find_item, find_items

    if (history is None) == (user is None):
        raise DataError("say whose score: exactly one of --history and --user.")
    opened = _load(model)
    catalogue = opened.catalogue
    found, base = opened.reasons(
        find_item(item, catalogue),
        user=None if user is None else _user_ids(opened, [user], None)[0],
        history=None if history is None else find_items(history, catalogue),
    )
    names = ["item", "title", "value", "weight", "contribution"]
    rows: list[list[Any]] = [
        [catalogue.items[c.item], catalogue.title(c.item), c.value, c.weight, c.amount] for c in found
    ]
    if base:
        rows.append([None, "(base score)", None, None, base])
    if _kind(form, output) == "table":
        rows.append(["score", None, None, None, fsum([base, *(c.amount for c in found)])])
    _small_table(rows, names, form, output, catalogue)


def _small_table(
    rows: list[list[Any]], names: list[str], form: Format | None, output: Path | None, catalogue: "Catalogue"
) -> None:
    from mrfrec.cli.show import write_rows

    kind = _kind(form, output)
    if kind in ("parquet", "jsonl"):
        from mrfrec.io.frames import write_table

        assert output is not None
        write_table(dict(zip(names, map(list, zip(*rows, strict=True)), strict=True)), output, kind)
        return
    chosen = [
        i
        for i, name in enumerate(names)
        if kind != "table" or name != "title" or catalogue.titles is not None
    ]
    write_rows([[row[i] for i in chosen] for row in rows], [names[i] for i in chosen], kind, output)


# ── info, doctor, demo ────────────────────────────────────────────────────────────────────────────


@app.command()
def info(model: Model, form: Annotated[Literal["table", "json"], typer.Option("--format")] = "table") -> None:
    """What a model file holds: the data it was trained on, its parameters, its size.

    \b
    mrfrec info shop.mrf
    """
    import json

    from mrfrec.cli.show import print_table
    from mrfrec.io.artifact import describe

    facts = describe(model)
    if form == "json":
        typer.echo(json.dumps(facts, indent=2, ensure_ascii=False))
    else:
        print_table([[name, value] for name, value in _flat(facts)], ["", str(model)])


def _flat(facts: dict[str, Any], before: str = "") -> Iterator[tuple[str, str]]:
    for name, value in facts.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{before}{name}.")
        else:
            yield before + name, f"{value:,}" if type(value) is int else str(value)


@app.command()
def doctor() -> None:
    """Whether this machine has what mrfrec needs: versions, cores, memory, BLAS, the cache of compiled code.

    \b
    mrfrec doctor
    """
    from mrfrec.cli.doctor import examine
    from mrfrec.cli.show import print_table

    logging.getLogger("mrfrec").setLevel(logging.WARNING)
    findings = list(examine())
    print_table([[finding.name, finding.value, finding.advice or "ok"] for finding in findings], ["", "", ""])
    if any(finding.advice for finding in findings):
        raise DataError("something here needs a look: see the last column.")


@app.command()
def demo(
    output: Annotated[Path, typer.Option("-o", "--output", help="Where to save the model.")] = Path(
        "debian.mrf"
    ),
) -> None:
    """Fit, compare, recommend and explain on data that comes with the package.

    Source packages of Debian 12 are the users, what they are built with are the items.
    """
    from mrfrec.cli.demo import run

    logging.getLogger("mrfrec").setLevel(logging.WARNING)
    run(output)


# ── shared ────────────────────────────────────────────────────────────────────────────────────────


def _load(path: Path, threads: int | None = None) -> "Recommender":
    from mrfrec.saving import load

    opened = load(path)
    opened.threads = threads
    return opened


def _kind(form: Format | None, output: Path | None) -> str:
    """The format asked for, by name or by the name of the file."""
    by_name = {".parquet": "parquet", ".csv": "csv", ".json": "json", ".jsonl": "jsonl", ".txt": "table"}
    if output is None:
        if form == "parquet":
            raise ParameterError(
                "--format", "table, json or csv on the screen", form, "Give -o FILE for Parquet."
            )
        return form or "table"
    found = form or by_name.get(output.suffix.lower())
    if found is None:
        raise ParameterError(
            "--output", f"a name that ends in {', '.join(by_name)}", str(output), "Or give --format."
        )
    return found


def _note(message: str) -> None:
    typer.echo(f"mrfrec: {message}", err=True)


def _size(path: Path) -> str:
    from mrfrec.core.resources import human_bytes

    return human_bytes(path.stat().st_size)
