"""The commands evaluate, compare and tune. docs/cli.md is generated from the texts here."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from mrfrec.checks import check_number
from mrfrec.cli import options as opt
from mrfrec.cli.data import Data
from mrfrec.cli.derived import Machine
from mrfrec.cli.options import Measuring, takes_options
from mrfrec.cli.running import cluster_of, measuring, resumable, show
from mrfrec.errors import DataError, ParameterError

if TYPE_CHECKING:
    from mrfrec.models.recommender import Recommender

_TRIALS = 50


@takes_options
def evaluate(
    data: Data, options: Measuring, model: opt.MeasuredModel = None, per_user: opt.PerUser = None
) -> None:
    """Measure how well a model predicts held-out items.

    Trains on one part of the data and tests on the rest, split as in Liang et al. (2018) unless --split says
    otherwise. Users with fewer than 5 items are left out first (--min-items), which mrfrec fit does not do.
    Reports the mean over test users and its standard error. Test users without held-out items are left out
    and counted.

    \b
    Examples:
      mrfrec evaluate events.csv
      mrfrec evaluate ratings.csv --min-value 4 --heldout 1000 --model 'l2=3, sparsity=0.01'
      mrfrec evaluate small.csv --split leave-out --leave 1 --min-items 2
      mrfrec evaluate train.parquet --test test.parquet --metrics recall_all@20,ndcg@20
      mrfrec evaluate ml-20m --model best.json -o ml-20m.md
      mrfrec evaluate ml-20m --model 'WMF: factors=200'
    """
    from mrfrec.cli.models import check_machine, make, only, parse_model
    from mrfrec.cli.show import write_per_user
    from mrfrec.evaluation import protocol, report

    spec = parse_model(only(model))
    check_machine(options.machine, [spec.kind])
    recommender = make(spec, options.machine)
    with measuring(data, options, written={"--per-user": per_user}) as (split, wanted, progress):
        result = protocol.evaluate(
            recommender, split, wanted, name=spec.name, ties=options.ties, progress=progress
        )
        show(report.of_evaluations([result]), options, data)
        if per_user is not None:
            write_per_user([result], per_user)


@takes_options
def compare(data: Data, options: Measuring, model: opt.MeasuredModels, per_user: opt.PerUser = None) -> None:
    """Measure several models on the same users, and compare them.

    All models are trained and tested on the same data. Differences from the first model are taken user by
    user and come with their standard error and the p-value of a paired t-test.

    \b
    Examples:
      mrfrec compare events.csv --model 'dense: sparsity=dense' --model 'sparse: sparsity=0.01'
      mrfrec compare events.csv --model MRF --model Popularity --model SLIM --model 'WMF: factors=64'
      mrfrec compare ml-20m --model dense.json --model sparse.json --metrics ndcg@100,tail@100
    """
    from mrfrec.cli.show import write_per_user
    from mrfrec.evaluation import protocol, report

    models = models_to_compare(model, options.machine)
    with measuring(data, options, written={"--per-user": per_user}) as (split, wanted, progress):
        comparison = protocol.compare(models, split, wanted, ties=options.ties, progress=progress)
        show(report.of_comparison(comparison), options, data)
        if per_user is not None:
            write_per_user(comparison.evaluations, per_user)


def models_to_compare(texts: list[str], machine: dict[str, Any]) -> "dict[str, Recommender]":
    """Build the models of a comparison, by name."""
    from mrfrec.cli.models import check_machine, make, parse_models

    specs = parse_models(texts)
    check_machine(machine, [spec.kind for spec in specs])
    names = [spec.name for spec in specs]
    if len(set(names)) < len(names) or len(names) < 2:
        raise ParameterError("--model", "given at least twice, with different names", ", ".join(names))
    return {spec.name: make(spec, machine) for spec in specs}


@takes_options
def tune(
    data: Data,
    machine: Machine,
    best: Annotated[
        Path | None,
        opt.output_option(
            "-o", "--output", metavar="FILE", help="Required: the .json file for the best parameters."
        ),
    ] = None,
    model: Annotated[
        list[str] | None,
        opt.model_option(
            metavar="MODEL",
            help="The model and parameters that all trials share: 'SLIM: l1=1'.",
            show_default="MRF",
        ),
    ] = None,
    metric: Annotated[
        str | None, opt.output_option(metavar="NAME", help="The metric to maximise.", show_default="ndcg@100")
    ] = None,
    method: Annotated[
        Literal["climb", "grid", "search"],
        opt.model_option(
            help="climb: change one parameter at a time, from the defaults on, while that helps. grid: try "
            "all combinations, then climb from the best. search: let Optuna choose (needs the extra tune)."
        ),
    ] = "climb",
    vary: Annotated[
        list[str] | None,
        opt.model_option(
            metavar="NAME=LIST",
            help="Values of a parameter: l1=0.5,5; with --method search also a range: l1=0.1..10. May be "
            "repeated. Parameters that are neither varied nor fixed by --model vary as usual for the model.",
        ),
    ] = None,
    minutes: Annotated[
        float | None,
        opt.machine_option(
            metavar="X", help="Time for all trials.", show_default="10 to climb, else no limit"
        ),
    ] = None,
    trials: Annotated[
        int | None, opt.model_option(metavar="N", help="search: number of trials.", show_default=str(_TRIALS))
    ] = None,
    max_seconds: Annotated[
        float | None,
        opt.machine_option(metavar="X", help="Longest training time of the best model, in seconds."),
    ] = None,
    study: Annotated[
        Path | None,
        opt.output_option(
            metavar="FILE", help="Keep the trials in this .jsonl file, to continue if interrupted."
        ),
    ] = None,
    ties: opt.TieRule = "popularity",
    form: opt.ReportFormat = None,
    plot: opt.Plot = None,
    cluster: opt.Cluster = None,
) -> None:
    """Find good parameters on validation users.

    Does not measure on the test users. Works for every model. Trials share statistics: a new l2 is cheap, a
    new novelty or rank_weight needs no fit. Where the best value is the last of its list, values beyond it
    are tried. Writes the best parameters, whenever better ones are found, for mrfrec fit --params and for
    --model; prints the best trials. With --cluster, the trials of a grid run at the same time; those that
    follow each other share the workers, if the model is an MRF.

    \b
    Examples:
      mrfrec tune events.csv -o best.json
      mrfrec tune events.csv -o best.json --minutes 60 --study trials.jsonl
      mrfrec tune events.csv -o best.json --method grid --vary sparsity=0.005,0.01 --vary l2=1,3,10
      mrfrec tune events.csv -o best.json --method grid --cluster local:4 --study trials.jsonl
      mrfrec tune ml-20m -o best.json --method search --trials 60 --vary sparsity=0.002,0.01
      mrfrec tune events.csv -o slim.json --model SLIM
      mrfrec tune events.csv -o wmf.json --model 'WMF: factors=64' --vary weight=1,5,20
    """  # fmt: skip
    from mrfrec.cli.models import check_machine, make, only, parse_model, parse_vary
    from mrfrec.cli.show import note, note_plots
    from mrfrec.evaluation import climbing, grids, report, tuning
    from mrfrec.evaluation.chooser import Chooser

    spec = parse_model(only(model))
    settings = Measuring(metrics=metric, ties=ties, form=form)
    check_machine(machine, [spec.kind])
    made = make(spec, machine)
    searched = method == "search"
    varied = parse_vary(vary or (), spec, searched=searched)
    try:
        axes = grids.axes_of(spec.kind, varied, spec.parameters, searched=searched)
    except ParameterError as error:
        raise error.named("--vary") from None
    if axes and searched:
        Chooser(grids.space_of(axes), seed=0)  # raises if Optuna is not installed
    if not axes and searched:
        raise ParameterError("--method", f"climb with {spec.kind}, which has nothing to vary", method)
    if plot is not None and not grids.has_numbers(axes):
        raise ParameterError("--plot", "left out where no number varies", str(plot))
    if trials is not None and not searched:
        raise ParameterError("--trials", f"left out with --method {method}", trials)
    if minutes is not None:
        check_number("--minutes", minutes, "above 0", lambda x: x > 0)
    if best is None:
        raise DataError("give -o FILE.json, where the best parameters are written.")
    if study is not None and study.resolve() == best.resolve():
        raise ParameterError("--study", "another file than --output", str(study))
    if best.suffix.lower() != ".json":
        raise ParameterError("--output", "a name that ends in .json", str(best))
    written = {"--output": best, "--study": study}
    checked = measuring(data, settings, plot, aim="ndcg@100", written=written)
    workers = cluster_of(cluster, None if method == "grid" else made)
    with workers as on_cluster, checked as (split, (aim, *_), progress):
        shared: dict[str, Any] = {
            "model": spec.kind, "fixed": spec.parameters, "minutes": minutes, "max_seconds": max_seconds,
            "study": study, "improved": lambda found: found.save(best), "ties": ties, "machine": machine,
            "progress": progress, **on_cluster,
        }  # fmt: skip
        with resumable(study, best):
            if searched:
                count = _TRIALS if trials is None else trials
                result = tuning.search(split, grids.space_of(axes), count, aim, **shared)
            else:
                if minutes is None and method == "climb":
                    shared["minutes"] = climbing.MINUTES
                result = climbing.climb(split, aim, vary=varied, grid=method == "grid", **shared)
        show(report.of_tuning(result), settings, data)
        result.save(best)
        note(f"wrote the best parameters to {best}; use them with mrfrec fit --params {best}")
        if plot is not None:
            from mrfrec.evaluation.plots import plot_tuning

            tried = list(tuning.points_of(result.trials))
            note_plots(plot_tuning(tried, result.metric, plot, title=data.title(result.split)))
