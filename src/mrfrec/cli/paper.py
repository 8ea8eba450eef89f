"""`mrfrec paper`: the experiments of the paper. Their texts become docs/reference/cli.md."""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from typer import Argument, Context

from mrfrec import datasets
from mrfrec.checks import check_count
from mrfrec.cli import note, written
from mrfrec.cli import options as opt
from mrfrec.cli.data import Data, check_output, prepared_split, show
from mrfrec.cli.derived import takes_options
from mrfrec.cli.evaluating import models_to_compare
from mrfrec.cli.options import Evaluating, add_commands, new_app
from mrfrec.core.memory import human_bytes
from mrfrec.errors import DataError, ParameterError

_ABOUT = """Reproduce the paper's experiments, on its data or on yours.

Steck, "Markov Random Fields for Collaborative Filtering", NeurIPS 2019.
"""


def reproduce(
    what: Annotated[
        Literal["table1", "table2", "lowrank", "exposure"],
        Argument(help="A table of the paper, or one of its side checks.", metavar="WHAT"),
    ],
    machine: opt.Machine,
    data: Annotated[list[str] | None, "NAME", "Only this data set of the paper. May be repeated."] = None,
    folder: opt.Folder = None,
    model: Annotated[
        list[str] | None, "KIND", "Tables: only this model, such as SLIM. May be repeated."
    ] = None,
    params: Annotated[
        list[Path] | None,
        "FILE",
        'Parameters by data set and model: {"ml-20m": {"SLIM": {"l1": 1, "l2": 10}}}; or, with one --data, a '
        "file from mrfrec tune. May be repeated.",
    ] = None,
    form: opt.ReportFormat = None,
    output: opt.ReportFile = None,
    plot: opt.Plot = None,
) -> None:
    """Run the paper's experiments on its data.

    Shows published next to measured numbers. table1: all models on ML-20M, Netflix and MSD. table2: sparse
    MRFs on MSD. lowrank: weights cut to a low rank. exposure: how often the MRF and Mult-VAE recommend
    popular and rare items.

    Uses the published parameters where there are any, and breaks ties by index.
    Runs on the data sets that are prepared (mrfrec paper datasets prepare) and says how to get the others. If
    the counts of a data set are not the published ones, its published numbers are left out. A model that
    cannot be trained here is skipped with a note. --plot is for all but table1.

    \b
    Examples:
      mrfrec paper reproduce table1
      mrfrec paper reproduce table1 --data ml-20m --model MRF --model SLIM
      mrfrec paper reproduce table1 --data ml-20m --model WMF --params wmf.json
      mrfrec paper reproduce table2 -o table2.md --plot table2.png
    """  # fmt: skip
    from mrfrec.cli.models import check_machine
    from mrfrec.cli.show import REPORT_FORMATS, kind_of, progress_bar, show_report
    from mrfrec.models.registry import MODELS
    from mrfrec.paper.reproduce import reproduce as run

    check_machine(machine, MODELS)
    kind_of(form, output, REPORT_FORMATS)
    check_output(output, *(params or ()))
    logging.getLogger("mrfrec").setLevel(logging.WARNING)
    parameters = _by_data_set(params or (), data or ())
    with progress_bar() as progress:
        page = run(
            what, data, models=model, parameters=parameters, folder=folder, machine=machine, plot=plot,
            progress=progress, tell=note,
        )  # fmt: skip
        show_report(page, form, output)


_OF_TABLE = ("epochs", "patience")  # parameters of autoencoders that are the same in a whole table


def _by_data_set(files: Sequence[Path], names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Read parameters by data set and model; those of mrfrec tune belong to the one data set chosen."""
    from mrfrec.cli.models import read_object, read_parameters

    by_data_set: dict[str, dict[str, Any]] = {}
    for path in files:
        content = read_object(path)
        if "parameters" in content:
            if len(names) != 1:
                rule = "used with one --data: a file from mrfrec tune is of one data set"
                raise ParameterError("--params", rule, str(path))
            kind, parameters = read_parameters(path)
            tuned = {n: x for n, x in parameters.items() if n not in _OF_TABLE}
            content = {names[0]: {kind or "MRF": tuned}}
        for name, models in content.items():
            if not isinstance(models, dict):
                rule = 'a file such as {"ml-20m": {"SLIM": {"l1": 1}}}, or one from mrfrec tune'
                raise ParameterError("--params", rule, str(path))
            by_data_set[name] = {**by_data_set.get(name, {}), **models}
    return by_data_set


def tradeoff(
    context: Context,
    data: Data,
    options: Evaluating,
    sparsity: Annotated[str | None, "LIST", "Shares of the weights to keep.  [default: 0.001,0.005]"] = None,
    r: Annotated[str, "LIST", "Values of r."] = "0,0.1,0.5",
    dense: Annotated[
        str, "MODEL", "Parameters of the dense model, or a .json file; none leaves it out."
    ] = "",
    sparse: Annotated[
        str,
        "MODEL",
        "Parameters of the sparse models, or a .json file; its sparsity and r are ignored.",
    ] = "",
    preset: Annotated[
        Literal["paper"] | None,
        "The settings of Table 2: l2=3 for the dense model, l2=1 for the sparse ones, ties by index. "
        "--dense, --sparse and --ties override them.",
    ] = None,
    plot: opt.Plot = None,
) -> None:
    """Evaluate accuracy against training time, as in Table 2.

    Trains an MRF from scratch for each sparsity and each r, and compares it with the dense model. The report
    tells the settings of both.

    \b
    Examples:
      mrfrec paper tradeoff events.csv --plot tradeoff.png
      mrfrec paper tradeoff msd --preset paper
      mrfrec paper tradeoff ml-20m --sparsity 0.002,0.01 --r 0,0.5 --dense l2=6 --sparse l2=3 -o table2.md
    """  # fmt: skip
    from mrfrec.cli.models import check_machine, numbers
    from mrfrec.paper.results import of_tradeoff, plot_times
    from mrfrec.paper.tradeoff import AS_PUBLISHED
    from mrfrec.paper.tradeoff import tradeoff as run

    check_machine(options.machine, ["MRF"])
    with_dense = dense.strip().lower() != "none"
    source = context.get_parameter_source("ties")
    is_typed = source is not None and source.name != "DEFAULT"
    settings = dict(AS_PUBLISHED) if preset is not None else {"dense": {}, "sparse": {}}
    if preset is None or is_typed:
        settings["ties"] = options.ties
    for name, text in (("dense", dense if with_dense else ""), ("sparse", sparse)):
        settings[name] = {**settings[name], **_mrf_parameters(text), **options.machine}
    levels = numbers("--sparsity", sparsity) or None
    with prepared_split(data, options, plot, by_time=False) as (split, wanted, progress):
        comparison = run(
            split, levels, numbers("--r", r), with_dense=with_dense, metrics=wanted, progress=progress,
            **settings,
        )  # fmt: skip
        show(of_tradeoff(comparison), options, data)
        if plot is not None:
            plot_times(comparison.evaluations, wanted[0], plot)


def _mrf_parameters(text: str) -> dict[str, Any]:
    """Return the parameters of an MRF except sparsity and r; refuse other models."""
    from mrfrec.cli.models import parse_model

    spec = parse_model(text)
    if spec.kind != "MRF":
        raise ParameterError("model", "an MRF, since models of several sparsities are compared", text)
    own = {n: x for n, x in spec.parameters.items() if n not in ("sparsity", "r")}
    return {n: x for n, x in own.items() if (n, x) != ("threshold", None)}  # tune writes all parameters


def lowrank(
    data: Data,
    options: Evaluating,
    ranks: Annotated[str | None, "LIST", "Ranks to cut the weights to.  [default: 200,1000,3000]"] = None,
    model: Annotated[
        list[str] | None, "MODEL", f"{opt.EVALUATED_MODEL}  [default: the paper's, dense]"
    ] = None,
    plot: opt.Plot = None,
) -> None:
    """Evaluate the accuracy of weights cut to a low rank.

    Replaces B by its best approximation of each rank (singular value decomposition) and evaluates again.

    \b
    Examples:
      mrfrec paper lowrank events.csv --ranks 50,200 --plot lowrank.png
    """  # fmt: skip
    from mrfrec.cli.models import make_models, numbers, only_model, parse_model
    from mrfrec.core.progress import part_of
    from mrfrec.models.mrf.field import GaussianField
    from mrfrec.paper.results import of_low_rank, plot_low_rank
    from mrfrec.paper.side_checks import low_rank

    text = only_model(model) or "preset=paper, sparsity=dense"
    typed = numbers("--ranks", ranks)
    cuts = [check_count("--ranks", int(x) if x.is_integer() else x) for x in typed] or None
    (recommender,) = make_models([parse_model(text)], options.machine)
    if not isinstance(recommender, GaussianField):
        raise ParameterError("--model", "an MRF, EASE or EDLAE, whose weights can be cut", text)
    with prepared_split(data, options, plot, by_time=False) as (split, wanted, progress):
        recommender.fit(split.training, progress=part_of(progress, 0, 0.5))
        rest = part_of(progress, 0.5, 1)
        comparison = low_rank(
            recommender, split.test, cuts, wanted, ties=options.ties, split=split.name, progress=rest
        )
        show(of_low_rank(comparison), options, data)
        if plot is not None:
            plot_low_rank(comparison, wanted[0], plot)


def exposure(data: Data, options: Evaluating, model: opt.EvaluatedModels, plot: opt.Plot = None) -> None:
    """Compare how often models recommend popular and rare items.

    Adds to the report of mrfrec compare the share of recommendations that each tenth of the items gets.

    \b
    Examples:
      mrfrec paper exposure events.csv --model MRF --model MultVAE --plot exposure.png
    """
    from mrfrec.evaluation.protocol import compare
    from mrfrec.paper.results import of_exposure, plot_exposure
    from mrfrec.paper.side_checks import exposure as shares_of

    models = models_to_compare(model, options.machine)
    with prepared_split(data, options, plot, by_time=False) as (split, wanted, progress):
        comparison = compare(models, split, wanted, ties=options.ties, progress=progress)
        shares = shares_of(comparison, split.test)
        show(of_exposure(comparison, shares), options, data)
        if plot is not None:
            plot_exposure(shares, plot)


# ── data sets ─────────────────────────────────────────────────────────────────────────────────────

Name = Annotated[str, Argument(help="A name from mrfrec paper datasets list.", metavar="NAME")]


def list_data_sets(folder: opt.Folder = None) -> None:
    """List the data sets, and which of them are prepared.

    \b
    Examples:
      mrfrec paper datasets list
    """
    from mrfrec.cli.show import print_table

    rows = [
        (one.name, one.title, "yes" if one.prepared else "no", one.size and human_bytes(one.size))
        for one in datasets.available(folder)
    ]
    print_table(rows, ["name", "title", "prepared", "size"])


def prepare(
    name: Name,
    source: Annotated[
        Path | None, "PATH", "The archive, the folder it unpacks to, or the ratings file."
    ] = None,
    folder: opt.Folder = None,
    vae_cf: Annotated[
        Path | None, "FOLDER", "Also write the split in the format of vae_cf's notebook."
    ] = None,
) -> None:
    """Prepare a data set for use.

    Reads the original files, filters as in the published experiments, and writes one Parquet file. Without
    --from the archive is downloaded if its owner allows it. A data set that is already prepared is kept.

    \b
    Examples:
      mrfrec paper datasets prepare ml-20m
      mrfrec paper datasets prepare ml-20m --from ml-20m.zip --vae-cf pro_sg
      mrfrec paper datasets prepare netflix --from nf_prize_dataset.tar.gz
    """
    from mrfrec.cli.show import progress_bar

    with progress_bar() as progress:
        path = datasets.prepare(name, source, folder, progress)
    note(f"{name} is prepared: {path} ({human_bytes(path.stat().st_size)})")
    if vae_cf is not None:
        for file in datasets.write_vae_cf(name, vae_cf, folder):
            note(written(file))


def verify(name: Name, folder: opt.Folder = None) -> None:
    """Compare a prepared data set with published numbers.

    Checks the counts after filtering, the items of the training users and the files of the split, as far as
    these are published.

    \b
    Examples:
      mrfrec paper datasets verify ml-20m
    """
    from mrfrec.cli.show import print_table

    checks = datasets.verify(name, folder)
    rows = [(check.what, *check.texts, "yes" if check.ok else "NO") for check in checks]
    print_table(rows, ["", "expected", "found", "same"])
    wrong = [check.what for check in checks if not check.ok]
    if wrong:
        raise DataError(
            f"{len(wrong)} of {len(checks)} checks of {name} failed, the first: {wrong[0]}. Prepare it again "
            "from its archive: mrfrec paper datasets prepare."
        )
    if not any(isinstance(check.expected, str) or check.expected for check in checks):
        note(f"nothing is published about {name}: only its consistency was checked")


paper_app = new_app("paper", _ABOUT)
datasets_app = new_app("datasets", "List, prepare and verify the data sets of the paper.")
paper_app.add_typer(datasets_app)
add_commands(paper_app, reproduce, tradeoff, lowrank, exposure)
datasets_app.command("list")(takes_options(list_data_sets))
add_commands(datasets_app, prepare, verify)
