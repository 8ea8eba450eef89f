"""The commands that measure. docs/cli.md is generated from the texts here."""

import logging
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from typer import Argument, Option

from mrfrec.cli.data import Data, takes_data
from mrfrec.cli.running import check_output, going_on, report_form, running, show, tell_drawn
from mrfrec.errors import ParameterError

__all__ = ["app"]

app = typer.Typer()

_MODEL = (
    "A model, 'SLIM' or 'SLIM: l1=1, l2=50'; parameters of an MRF, 'l2=6, sparsity=0.005' (sparsity=dense "
    "for all weights); or a file (.json), as mrfrec tune writes it. With a name for the table, if wanted: "
    "'small: sparsity=0.001', 'other: model=SLIM, l1=9'."
)
Metrics = Annotated[
    str | None,
    Option(
        metavar="NAMES",
        help="ndcg, recall, recall_all, precision, hit, mrr, map, coverage, popularity, tail; each with @k. "
        "ndcg@100,recall@20,recall@50 if not given.",
    ),
]
Ties = Annotated[
    Literal["index", "popularity"],
    Option(help="Order of items with equal scores: the more popular first, as recommend does, or by index."),
]
Form = Annotated[
    Literal["table", "json", "markdown"] | None,
    Option("--format", help="A table unless said here, or by the name of the output file."),
]
Output = Annotated[
    Path | None, Option("-o", "--output", metavar="FILE", help="Write to .json, .md or .txt instead.")
]
Plot = Annotated[Path | None, Option("--plot", metavar="FILE", help="Also draw it, as PNG and as SVG.")]
PerUser = Annotated[
    Path | None,
    Option("--per-user", metavar="FILE", help="Also write each test user's numbers, as CSV."),
]
Threads = Annotated[int | None, Option(metavar="N", help="Threads to use; all cores if not given.")]
MemoryLimit = Annotated[
    str | None, Option(metavar="SIZE", help="Such as 8GB; what the machine has free if not given.")
]
Device = Annotated[
    str | None,
    Option(metavar="NAME", help="Where autoencoders are trained: cpu, cuda; a GPU if there is one."),
]


@app.command()
@takes_data
def evaluate(
    data: Data,
    model: Annotated[list[str] | None, Option(metavar="MODEL", help=_MODEL)] = None,
    metrics: Metrics = None,
    ties: Ties = "popularity",
    form: Form = None,
    output: Output = None,
    per_user: PerUser = None,
    threads: Threads = None,
    memory_limit: MemoryLimit = None,
    device: Device = None,
) -> None:
    """Measure how well one model guesses what users have that it was not shown.

    Trains on a part of the data and asks about the rest, as Liang et al. (2018) do unless told otherwise; the
    mean over the test users comes with its standard error. Users of whom nothing can be asked are left out
    and counted.

    \b
    Examples:
      mrfrec evaluate events.csv
      mrfrec evaluate ratings.csv --min-value 4 --heldout 1000 --model 'l2=3, sparsity=0.01'
      mrfrec evaluate train.parquet --test test.parquet --metrics recall_all@20,ndcg@20
      mrfrec evaluate ml-20m --model best.json -o ml-20m.md
      mrfrec evaluate ml-20m --model 'WMF: factors=200'
    """
    from mrfrec.cli.models import check_machine, make, only, parse_model
    from mrfrec.cli.show import write_per_user
    from mrfrec.evaluation import protocol, report

    spec = parse_model(only(model))
    machine = {"threads": threads, "memory_limit": memory_limit, "device": device}
    check_machine(machine, [spec.kind])
    made = make(spec, machine)
    written = {"--per-user": per_user}
    with running(data, form, output, metrics, written=written) as (split, wanted, progress):
        found = protocol.evaluate(made, split, wanted, name=spec.name, ties=ties, progress=progress)
        show(report.of_evaluations([found]), form, output, data)
        if per_user is not None:
            write_per_user([found], per_user)


@app.command()
@takes_data
def compare(
    data: Data,
    model: Annotated[list[str], Option(metavar="MODEL", help=_MODEL + " Twice or more.")],
    metrics: Metrics = None,
    ties: Ties = "popularity",
    form: Form = None,
    output: Output = None,
    per_user: PerUser = None,
    exposure: Annotated[
        bool, Option("--exposure", help="Also by popularity: the shares of each tenth of the items.")
    ] = False,
    plot: Annotated[
        Path | None, Option("--plot", metavar="FILE", help="Draw these shares, as PNG and as SVG.")
    ] = None,
    threads: Threads = None,
    memory_limit: MemoryLimit = None,
    device: Device = None,
) -> None:
    """Measure several models on the same users, and by how much they differ.

    All are trained on the same data and asked the same. The differences from the first model are taken user
    by user, with their standard error and the p-value of the paired t-test.

    \b
    Examples:
      mrfrec compare events.csv --model 'dense: sparsity=dense' --model 'sparse: sparsity=0.01'
      mrfrec compare events.csv --model MRF --model Popularity --model SLIM --model 'WMF: factors=64'
      mrfrec compare ml-20m --model dense.json --model sparse.json --metrics ndcg@100,tail@100
    """
    from mrfrec.cli.models import check_machine, make, parse_models
    from mrfrec.cli.show import write_per_user
    from mrfrec.evaluation import protocol, report, side_checks

    machine = {"threads": threads, "memory_limit": memory_limit, "device": device}
    specs = parse_models(model)
    check_machine(machine, [spec.kind for spec in specs])
    names = [spec.name for spec in specs]
    if len(set(names)) < len(names) or len(names) < 2:
        raise ParameterError("--model", "given at least twice, with different names", ", ".join(names))
    made = {spec.name: make(spec, machine) for spec in specs}
    written = {"--per-user": per_user}
    with running(data, form, output, metrics, plot, written=written) as (split, wanted, progress):
        found = protocol.compare(made, split, wanted, ties=ties, progress=progress)
        page = report.of_comparison(found)
        shares = side_checks.exposure(found, split.test)
        show(report.joined(page, report.of_exposure(shares)) if exposure else page, form, output, data)
        if per_user is not None:
            write_per_user(found.evaluations, per_user)
        if plot is not None:
            from mrfrec.evaluation.plots import plot_exposure

            tell_drawn(plot_exposure(shares, plot))


@app.command()
@takes_data
def tune(
    data: Data,
    best: Annotated[
        Path, Option("-o", "--output", metavar="FILE", help="Where to write the best parameters (.json).")
    ],
    method: Annotated[
        Literal["grid", "search"],
        Option(help="Try all combinations, or let Optuna choose (needs the extra tune)."),
    ] = "grid",
    metric: Annotated[
        str | None, Option(metavar="NAME", help="What to maximise; ndcg@100 if not given.")
    ] = None,
    model: Annotated[
        list[str] | None,
        Option(metavar="MODEL", help="Which model, MRF if not given; what all trials share: 'SLIM: l1=1'."),
    ] = None,
    vary: Annotated[
        list[str] | None,
        Option(
            metavar="NAME=LIST",
            help="Values of any parameter: l1=0.5,5; for search also a range: l1=0.1..10. May be repeated. "
            "The others vary as usual for the model, unless --model fixes them.",
        ),
    ] = None,
    alpha: Annotated[
        str | None, Option(metavar="LIST", help="Values of alpha; 0,0.25,0.5,0.75,1 if not given.")
    ] = None,
    l2: Annotated[
        str | None, Option(metavar="LIST", help="Values of l2; for each alpha its own few, if not given.")
    ] = None,
    sparsity: Annotated[
        str | None,
        Option(metavar="LIST", help="Sparsity levels, dense, or auto, as for mrfrec fit."),
    ] = None,
    r: Annotated[str | None, Option(metavar="LIST", help="Values of r, for sparse models.")] = None,
    trials: Annotated[
        int | None, Option(metavar="N", help="search: how many points to try; 50 if not given.")
    ] = None,
    max_seconds: Annotated[
        float | None, Option(metavar="X", help="What the best may take to train, on this machine.")
    ] = None,
    study: Annotated[
        Path | None,
        Option(metavar="FILE", help="Keep the trials here (.jsonl): the same command goes on from there."),
    ] = None,
    ties: Ties = "popularity",
    form: Form = None,
    plot: Plot = None,
    threads: Threads = None,
    memory_limit: MemoryLimit = None,
    device: Device = None,
) -> None:
    """Find good parameters on validation users; the test users are never looked at.

    Of an MRF, or of any other model, over values that are usual for it or given. Statistics are shared
    between trials, so that a new l2 costs the solution alone. What is printed are the best trials; what
    is written, mrfrec fit --params and --model take.

    \b
    Examples:
      mrfrec tune events.csv -o best.json
      mrfrec tune events.csv -o best.json --sparsity 0.005,0.01 --alpha 0.5,0.75 --l2 1,3,6,10
      mrfrec tune ml-20m -o best.json --method search --trials 60 --sparsity 0.002,0.01 --study ml.jsonl
      mrfrec tune events.csv -o slim.json --model SLIM
      mrfrec tune events.csv -o wmf.json --model 'WMF: factors=64' --vary weight=1,5,20
    """
    from mrfrec.cli.models import check_machine, make, numbers, only, parse_model, parse_vary, refuse_option
    from mrfrec.cli.show import note
    from mrfrec.evaluation import grids, report, tuning
    from mrfrec.evaluation.chooser import Chooser

    spec = parse_model(only(model))
    machine = {"threads": threads, "memory_limit": memory_limit, "device": device}
    check_machine(machine, [spec.kind])
    make(spec, machine)
    searched = method == "search"
    varied: dict[str, Any] = dict(
        parse_vary(vary or (), spec.kind, searched=searched, fixed=spec.parameters)
    )  # fmt: skip
    given = {
        "sparsity": numbers("--sparsity", sparsity, {"auto": "auto", "dense": None}),
        "r": numbers("--r", r),
        "alpha": numbers("--alpha", alpha),
        "l2": numbers("--l2", l2),
    }
    for name, values in given.items():
        if values is not None:
            refuse_option(spec.kind, name, ",".join(map(str, values)))
            if name in varied:
                raise ParameterError("--vary", f"without {name} when --{name} is given", name)
            try:
                grids.check_values(spec.kind, name, values, spec.parameters)
            except ParameterError as error:
                typed = ",".join(map(str, values))
                raise error.named(f"--{name} {typed}: {error.name}") from None
            varied[name] = values
    for name in varied.keys() & spec.parameters.keys():
        how = f"--{name}" if given.get(name) else f"--vary {name}"
        raise ParameterError("--model", f"without {name} when {how} is given", only(model))
    try:
        axes = grids.axes_of(spec.kind, varied, spec.parameters, searched=searched)
    except ParameterError as error:
        raise error.named("--r" if error.name == "r" and r is not None else "--vary") from None
    if axes and searched:
        Chooser(grids.space_of(axes), seed=0)  # says what is missing
    if not axes and searched:
        raise ParameterError("--method", f"grid with {spec.kind}, of which nothing varies", method)
    if plot is not None and not grids.has_numbers(axes):
        raise ParameterError("--plot", "left out where no number varies", str(plot))
    if trials is not None and method == "grid":
        raise ParameterError("--trials", "left out with --method grid, which tries all points", trials)
    if study is not None and study.resolve() == best.resolve():
        raise ParameterError("--study", "another file than --output", str(study))
    if best.suffix.lower() != ".json":
        raise ParameterError("--output", "a name that ends in .json", str(best))
    written = {"--output": best, "--study": study}
    with running(data, form, None, metric, plot, usual=("ndcg@100",), written=written) as begun:
        split, (aim, *_), progress = begun
        shared: dict[str, Any] = {
            "model": spec.kind, "fixed": spec.parameters, "max_seconds": max_seconds, "study": study,
            "ties": ties, "machine": machine, "progress": progress,
        }  # fmt: skip
        with going_on(study):
            if searched:
                count = 50 if trials is None else trials
                found = tuning.search(split, grids.space_of(axes), count, aim, **shared)
            else:
                points = grids.usual_points(split, spec.kind, varied, spec.parameters)
                found = tuning.tune(split, points, aim, **shared)
        show(report.of_tuning(found), form, None, data)
        found.save(best)
        note(f"wrote the best parameters to {best}; use them with mrfrec fit --params {best}")
        if plot is not None:
            from mrfrec.evaluation.plots import plot_tuning

            tried = list(tuning.points_of(found.trials))
            tell_drawn(plot_tuning(tried, found.metric, plot, title=found.split))


@app.command()
@takes_data
def tradeoff(
    data: Data,
    sparsity: Annotated[
        str | None, Option(metavar="LIST", help="Shares of the weights to keep; 0.001,0.005 if not given.")
    ] = None,
    r: Annotated[str, Option(metavar="LIST", help="Values of r.")] = "0,0.1,0.5",
    dense: Annotated[
        str, Option(metavar="MODEL", help="Parameters of the dense model, or a file; none leaves it out.")
    ] = "",
    sparse: Annotated[
        str,
        Option(metavar="MODEL", help="Parameters of the sparse models, or a file; sparsity and r give way."),
    ] = "",
    metrics: Metrics = None,
    ties: Ties = "popularity",
    form: Form = None,
    output: Output = None,
    plot: Plot = None,
    threads: Threads = None,
    memory_limit: MemoryLimit = None,
) -> None:
    """Measure accuracy against training time: the paper's Table 2, for your data.

    Each sparsity level is trained with each r, from scratch, and held against the dense model.

    \b
    Examples:
      mrfrec tradeoff events.csv --plot tradeoff.png
      mrfrec tradeoff ml-20m --sparsity 0.002,0.01 --r 0,0.5 --dense l2=6 --sparse l2=3 -o table2.md
    """
    from mrfrec.cli.models import check_limits, numbers
    from mrfrec.evaluation import report
    from mrfrec.evaluation.tradeoff import tradeoff as run

    machine = {"threads": threads, "memory_limit": memory_limit}
    check_limits(machine)
    without = dense.strip().lower() == "none"
    reference = {} if without else {**_of_mrf("--dense", dense), **machine}
    others = {**_of_mrf("--sparse", sparse), **machine}
    levels = numbers("--sparsity", sparsity)
    with running(data, form, output, metrics, plot) as (split, wanted, progress):
        m = split.training.n_items
        if levels is None:
            levels = [level for level in (0.001, 0.005) if level * m >= 5]
            levels = levels or sorted({max(0.1, min(2 / m, 1.0)), max(0.3, min(3 / m, 1.0))})
        found = run(
            split, levels, numbers("--r", r) or [], dense=reference, sparse=others,
            with_dense=not without, metrics=wanted, ties=ties, progress=progress,
        )  # fmt: skip
        show(report.of_tradeoff(found), form, output, data)
        if plot is not None:
            from mrfrec.evaluation.plots import plot_tradeoff

            tell_drawn(plot_tradeoff(found, wanted[0], plot))


def _of_mrf(option: str, text: str) -> dict[str, Any]:
    """The parameters of an MRF, and of nothing else; without those that vary."""
    from mrfrec.cli.models import make, parse_model

    spec = parse_model(text, option=option)
    if spec.kind != "MRF":
        raise ParameterError(option, "an MRF, whose levels of sparsity are what is compared", text)
    shared = {n: x for n, x in spec.parameters.items() if n not in ("sparsity", "r")}
    make(spec._replace(parameters=shared), {})
    return shared


@app.command()
@takes_data
def lowrank(
    data: Data,
    ranks: Annotated[
        str | None, Option(metavar="LIST", help="Ranks to cut the weights to; 200,1000,3000 if not given.")
    ] = None,
    model: Annotated[
        list[str] | None, Option(metavar="MODEL", help=_MODEL + " A dense MRF if not given.")
    ] = None,
    metrics: Metrics = None,
    ties: Ties = "popularity",
    form: Form = None,
    output: Output = None,
    threads: Threads = None,
    memory_limit: MemoryLimit = None,
) -> None:
    """Measure what is lost when the weights are cut to a low rank.

    A check of the paper: B is replaced by the nearest matrix of that rank (SVD), and measured again.

    \b
    Examples:
      mrfrec lowrank events.csv --ranks 50,200
    """
    from mrfrec.cli.models import check_limits, make, numbers, only, parse_model
    from mrfrec.evaluation import report, side_checks
    from mrfrec.models.mrf import MRF

    text = only(model) or "sparsity=dense"
    spec = parse_model(text)
    machine = {"threads": threads, "memory_limit": memory_limit}
    check_limits(machine)
    cuts = [int(rank) if rank == int(rank) else rank for rank in numbers("--ranks", ranks) or []]
    made = make(spec, machine)
    if not isinstance(made, MRF):
        raise ParameterError("--model", "an MRF, EASE or EDLAE, whose weights can be cut", text)
    with running(data, form, output, metrics) as (split, wanted, progress):
        m = split.training.n_items
        cuts = cuts or [rank for rank in (200, 1000, 3000) if rank < m] or [max(m // 2, 1)]
        made.fit(split.training, progress=progress)
        found = side_checks.low_rank(made, split.test, cuts, wanted, ties=ties, progress=progress)
        show(report.of_low_rank(found, split.name), form, output, data)


@app.command()
def reproduce(
    what: Annotated[
        Literal["table1", "table2", "lowrank", "exposure"],
        Argument(help="A table of the paper, or one of its two side checks.", metavar="WHAT"),
    ],
    data: Annotated[
        list[str] | None,
        Option("--data", metavar="NAME", help="Only on this data set of the paper. May be repeated."),
    ] = None,
    model: Annotated[
        list[str] | None,
        Option("--model", metavar="KIND", help="table1: only this model, such as SLIM. May be repeated."),
    ] = None,
    folder: Annotated[
        Path | None, Option(metavar="FOLDER", help="Where data sets are prepared, if not the usual place.")
    ] = None,
    form: Form = None,
    output: Output = None,
    threads: Threads = None,
    memory_limit: MemoryLimit = None,
    device: Device = None,
) -> None:
    """Reproduce the paper on its data: published beside measured.

    With the published parameters, where there are any. table1: all models on ML-20M, Netflix and MSD.
    table2: the sparse MRFs on MSD. lowrank: the drop when the weights are cut to a low rank. exposure: how
    often items are recommended, by popularity, by the MRF and by Mult-VAE. Runs on the data sets that are
    prepared (mrfrec datasets prepare) and says of the others which file to put where. A model that cannot be
    trained here is passed over, with a note that says why.

    \b
    Examples:
      mrfrec reproduce table1
      mrfrec reproduce table1 --data ml-20m --model MRF --model SLIM
      mrfrec reproduce table2 -o table2.md
    """
    from mrfrec.cli.models import check_limits
    from mrfrec.cli.show import note, progress_bar
    from mrfrec.paper.reproduce import reproduce as run

    machine = {"threads": threads, "memory_limit": memory_limit, "device": device}
    check_limits(machine)
    report_form(form, output)
    check_output("--output", output)
    logging.getLogger("mrfrec").setLevel(logging.WARNING)
    with progress_bar() as progress:
        found = run(what, data, models=model, folder=folder, machine=machine, progress=progress, tell=note)
        show(found, form, output, None)
