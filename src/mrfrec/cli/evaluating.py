"""The commands evaluate, compare and tune. docs/cli.md is generated from the texts here."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from mrfrec.checks import check_number, in_words
from mrfrec.cli import note
from mrfrec.cli import options as opt
from mrfrec.cli.data import Data, cluster_of, prepared_split, show
from mrfrec.cli.options import Evaluating
from mrfrec.errors import ParameterError

if TYPE_CHECKING:
    from mrfrec.models.recommender import Recommender


def evaluate(
    data: Data,
    options: Evaluating,
    model: opt.EvaluatedModel = None,
    per_user: opt.PerUser = None,
    cold_items: Annotated[
        float | None,
        "Make this share of the items new, which nobody is known to have; rank these alone, and all items.",
    ] = None,
) -> None:
    """Evaluate how well a model predicts held-out items.

    Trains on one part of the data and tests on the rest: by time where the table has times, else as in Liang
    et al. (2018), unless --split says otherwise. By time, users who come back and users in a visit are
    reported apart. Other splits first leave out users with fewer than 5 items, unlike mrfrec fit;
    --min-items changes that. Reports the mean over test users and its standard error. Test users without
    held-out items are left out and counted.

    \b
    Examples:
      mrfrec evaluate events.csv
      mrfrec evaluate events.csv --split time --at 2026-11-01
      mrfrec evaluate ratings.csv --min-value 4 --heldout 1000 --model 'l2=3, sparsity=0.01'
      mrfrec evaluate small.csv --split leave-out --leave 1 --min-items 2
      mrfrec evaluate train.parquet --test test.parquet --metrics recall_all@20,ndcg@20
      mrfrec evaluate ml-20m --model 'WMF: factors=200'
      mrfrec evaluate events.csv --item-features products.csv --cold-items 0.1
    """
    from mrfrec.cli.models import make_models, only_model, parse_model
    from mrfrec.cli.show import write_per_user
    from mrfrec.evaluation import protocol, report

    if cold_items is not None:
        check_number("--cold-items", cold_items, "above 0 and below 1", lambda x: 0 < x < 1)
        if data.features.item_features is None:
            advice = "Give --item-features: of new items nothing else is known."
            raise ParameterError("--cold-items", "left out without features", cold_items, advice)
    spec = parse_model(only_model(model))
    (recommender,) = make_models([spec], options.machine)
    with prepared_split(data, options, written=[per_user]) as (split, wanted, progress):
        settings: dict[str, Any] = {"name": spec.name, "ties": options.ties, "progress": progress}
        if cold_items is None:
            results = [protocol.evaluate(recommender, split, wanted, **settings)]
        else:
            settings["seed"] = data.seed
            results = [*protocol.evaluate_new_items(recommender, split, cold_items, wanted, **settings)]
        show(report.of_evaluations(results), options, data)
        if per_user is not None:
            write_per_user(results, per_user)


def compare(
    data: Data, options: Evaluating, model: opt.EvaluatedModels, per_user: opt.PerUser = None
) -> None:
    """Evaluate several models on the same users, and compare them.

    All models are trained and tested on the same data, split as by mrfrec evaluate. Differences from the
    first model are taken user by user and come with their standard error and the p-value of a paired t-test.

    \b
    Examples:
      mrfrec compare events.csv --model 'dense: sparsity=dense' --model 'sparse: sparsity=0.01'
      mrfrec compare events.csv --model MRF --model Popularity --model SLIM --model 'WMF: factors=64'
    """
    from mrfrec.cli.show import write_per_user
    from mrfrec.evaluation import protocol, report

    models = models_to_compare(model, options.machine)
    with prepared_split(data, options, written=[per_user]) as (split, wanted, progress):
        comparison = protocol.compare(models, split, wanted, ties=options.ties, progress=progress)
        show(report.of_comparison(comparison), options, data)
        if per_user is not None:
            write_per_user(comparison.evaluations, per_user)


def models_to_compare(texts: list[str], machine: dict[str, Any]) -> "dict[str, Recommender]":
    """Build the models of a comparison, by name."""
    from mrfrec.cli.models import make_models, only_model, parse_model

    specs = [parse_model(only_model([text])) for text in texts]
    named = {spec.name: model for spec, model in zip(specs, make_models(specs, machine), strict=True)}
    if len(named) < len(specs) or len(named) < 2:
        raise ParameterError("--model", "given at least twice, with different names", in_words(texts))
    return named


def tune(
    data: Data,
    best: Annotated[Path, "The .json file for the best parameters."],
    model: Annotated[
        list[str] | None,
        "MODEL",
        "The model and parameters that all trials share: 'SLIM: l1=1'.  [default: MRF]",
    ] = None,
    metric: Annotated[str | None, "NAME", "The metric to maximise.  [default: ndcg@100]"] = None,
    method: Annotated[
        Literal["climb", "grid"],
        "climb: change one parameter at a time, from the defaults on, while that helps. grid: try all "
        "combinations, then climb from the best.",
    ] = "climb",
    vary: Annotated[
        list[str] | None,
        "NAME=LIST",
        "Values of a parameter: l1=0.5,5. May be repeated. Parameters that are neither varied nor fixed by "
        "--model vary as usual for the model.",
    ] = None,
    minutes: Annotated[float | None, "Time for all trials.  [default: 10 to climb, else no limit]"] = None,
    study: Annotated[Path | None, "Keep the trials in this .jsonl file, to continue if interrupted."] = None,
    ties: opt.TieRule = "popularity",
    form: opt.ReportFormat = None,
    plot: opt.Plot = None,
    *,
    machine: opt.Machine,
    cluster: opt.Cluster = None,
) -> None:
    """Find good parameters on validation users, or by time on a cut before the one of mrfrec evaluate.

    Does not evaluate on the test users. Works for every model. Trials share statistics: a new l2 is cheap, a
    new novelty or rank_weight needs no fit. Where the best value is the last of its list, values beyond it
    are tried. Writes the best parameters, whenever better ones are found, for mrfrec fit --params and for
    --model; prints the best trials. With --cluster, its workers share each fit of an MRF.

    \b
    Examples:
      mrfrec tune events.csv -o best.json
      mrfrec tune events.csv -o best.json --minutes 60 --study trials.jsonl
      mrfrec tune events.csv -o best.json --method grid --vary sparsity=0.005,0.01 --vary l2=1,3,10
      mrfrec tune events.csv -o slim.json --model SLIM
      mrfrec tune events.csv -o wmf.json --model 'WMF: factors=64' --vary weight=1,5,20
    """  # fmt: skip
    from mrfrec.cli.models import make_models, only_model, parse_model, parse_vary
    from mrfrec.evaluation import report, tuning
    from mrfrec.evaluation.figures import plot_tuning
    from mrfrec.evaluation.grids import axes_of

    spec = parse_model(only_model(model))
    settings = Evaluating(metrics=metric, ties=ties, form=form)
    (made,) = make_models([spec], machine)
    varied = parse_vary(vary or (), spec.kind)
    axes_of(spec.kind, varied, spec.parameters)  # refuses bad values before the data is read
    if best.suffix.lower() != ".json" or (study is not None and study.resolve() == best.resolve()):
        raise ParameterError("--output", "a .json file, and another one than --study", str(best))
    if minutes is None and method == "climb":
        minutes = tuning.MINUTES
    checked = prepared_split(data, settings, plot, defaults=["ndcg@100"], written=[best, study])
    workers = cluster_of(cluster, made)
    with workers as on_cluster, checked as (split, wanted, progress):
        result = tuning.climb(
            split, ",".join(wanted), model=spec.kind, fixed=spec.parameters, vary=varied,
            grid=method == "grid", minutes=minutes, study=study, improved=lambda so_far: so_far.save(best),
            ties=ties, machine=machine, progress=progress, **on_cluster,
        )  # fmt: skip
        show(report.of_tuning(result), settings, data)
        result.save(best)
        note(f"wrote the best parameters to {best}; use them with mrfrec fit --params {best}")
        if plot is not None:
            plot_tuning(result, plot)
