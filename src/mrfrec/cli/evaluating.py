"""The commands evaluate, compare and tune. Their texts become docs/reference/cli.md."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, ClassVar

from pydantic import Field

from mrfrec.checks import check_number, in_words
from mrfrec.cli import note, written
from mrfrec.cli.data import Data, Input, prepared_split, refuse, show, write_per_user
from mrfrec.cli.named import make_models, only_model, parse_model, parse_space
from mrfrec.cli.options import Evaluating, Features, Machine, Models, ReadingToEvaluate, ReportForm, Rules
from mrfrec.errors import ParameterError
from mrfrec.evaluation import other_systems, protocol, results, tuning
from mrfrec.evaluation.questions import Folds, Split, check_split
from mrfrec.evaluation.results import Evaluation, by_column
from mrfrec.figures import write_figure
from mrfrec.models.recommender import Recommender
from mrfrec.options import USUAL, Shell
from mrfrec.shown import Report


class EvaluateOptions(Models):
    """What only mrfrec evaluate does."""

    group: ClassVar[str] = "Data"

    cold_items: float | None = Field(
        None,
        description="Make this share of the items new, which nobody is known to have; rank these alone, and "
        "all items.",
    )
    write_split: Annotated[Path | None, Shell(value="FOLDER")] = Field(
        None, description="Write the split to files, for another library to train on; evaluate nothing."
    )


def evaluate(
    source: Data,
    features: Features,
    reading: ReadingToEvaluate,
    own: EvaluateOptions,
    options: Evaluating,
    rules: Rules,
    machine: Machine,
) -> None:
    """Evaluate how well a model predicts held-out items.

    Trains on one part of the data and tests on the rest: by time where the table has times, else as in Liang
    et al. (2018), unless --split says otherwise. By time, users who come back and users in a visit are
    reported apart, and --folds asks at several cuts. Other splits first leave out users with fewer than 5
    items, unlike mrfrec fit; --min-items changes that. Reports the mean over test users and its standard
    error, beside that of the most popular items. Test users without held-out items are left out and counted.
    What other systems have recommended is compared with the model user by user. With rules, such as --at-most
    or --variety, the model is asked without them and with them, to show what they cost.

    --write-split writes train.parquet, with the pairs to train on; shown.parquet, what the test users show;
    test.parquet, what is to be guessed; and validation-shown.parquet and validation.parquet where there are
    validation users. Compare what another library recommends to the users of shown.parquet by the same data
    and options, and --recommendations.

    \b
    Examples:
      mrfrec evaluate events.csv
      mrfrec evaluate events.csv --split time --at 2026-11-01
      mrfrec evaluate events.csv --folds 3
      mrfrec evaluate ratings.csv --min-value 4 --heldout 1000 --model 'l2=3, sparsity=0.01'
      mrfrec evaluate small.csv --split leave-out --leave 1 --min-items 2
      mrfrec evaluate train.parquet --test test.parquet --metrics recall_all@20,ndcg@20
      mrfrec evaluate debian --model 'ItemKNN: neighbors=50'
      mrfrec evaluate events.csv --items products.csv --at-most brand=2 --variety 0.3 --by brand
      mrfrec evaluate events.csv --recommendations 'als: lists.parquet' --metrics ndcg@10
      mrfrec evaluate events.csv --item-features products.csv --cold-items 0.1
      mrfrec evaluate ratings.csv --min-value 4 --heldout 1000 --write-split folder
    """
    data = Input(source, features, reading)
    if own.write_split is not None:
        typed: dict[str, Any] = {
            "model": own.model,
            "recommendations": own.recommendations,
            "per_user": own.per_user,
        }
        typed |= {"cold_items": own.cold_items, "output": options.output, **rules}
        refuse({name: x for name, x in typed.items() if x}, "--write-split")
        data.refuse_folds("--write-split")
        with prepared_split(data, options) as (made, _, _):
            for path in other_systems.write_split(check_split(made), own.write_split):
                note(written(path))
        return
    if own.cold_items is not None:
        check_number("--cold-items", own.cold_items, "above 0 and below 1", lambda x: 0 < x < 1)
        if features.item_features is None:
            advice = "Give --item-features: of new items nothing else is known."
            raise ParameterError("--cold-items", "left out without features", own.cold_items, advice)
        refuse(
            {} if own.recommendations is None else {"--recommendations": own.recommendations}, "--cold-items"
        )
        refuse(rules, "--cold-items")
        data.refuse_folds("--cold-items")
    spec = parse_model(only_model(own.model))
    (recommender,) = make_models([spec], machine)
    lists = _named_lists(own.recommendations, own.drop_seen, [spec.name])
    _refuse_folds(data, options, lists)
    with prepared_split(data, options, written=[own.per_user], read=lists.values()) as (
        split,
        wanted,
        progress,
    ):
        of_lists = _evaluate_lists(lists, split, wanted, own.drop_seen)  # they fail sooner than a fit
        settings: dict[str, Any] = {"name": spec.name, "progress": progress}
        if rules:
            if options.ties != "popularity":
                raise ParameterError("--ties", '"popularity" with rules', options.ties)
            ruled = protocol.evaluate_rules(recommender, split, rules, wanted, **settings)
            found = [*ruled.evaluations]
        elif own.cold_items is None:
            found = [protocol.evaluate(recommender, split, wanted, ties=options.ties, **settings)]
        else:
            settings |= {"ties": options.ties, "seed": source.seed}
            whole = check_split(split)
            found = [*protocol.evaluate_new_items(recommender, whole, own.cold_items, wanted, **settings)]
        popular = [each.popular for each in found if each.popular is not None]
        found += of_lists
        if of_lists or rules:
            reported = results.of_comparison(results.Comparison([*found, *popular]))
        else:
            reported = results.of_evaluations([*found, *popular])
        show(_with_groups(reported, found, split, options.by), options, data)
        if own.per_user is not None:
            write_per_user(found, own.per_user)


def _with_groups(
    reported: Report, found: Sequence[Evaluation], split: Split | Folds, column: str | None
) -> Report:
    if column is None:
        return reported
    return replace(reported, sections=[*reported.sections, by_column(found, check_split(split), column)])


def _refuse_folds(data: Input, options: Evaluating, lists: Mapping[str, str]) -> None:
    """Refuse several cuts where the items or the lists are those of one."""
    if lists:
        data.refuse_folds("--recommendations")
    if options.by is not None:
        data.refuse_folds("--by")


def _named_lists(typed: list[str] | None, drop_seen: bool, models: Iterable[str]) -> dict[str, str]:
    """Return the files of --recommendations by name; refuse the name of a model, or one that is repeated."""
    if drop_seen and not typed:
        raise ParameterError("--drop-seen", "left out without --recommendations", drop_seen)
    parts = [text.rpartition(": ") for text in typed or ()]
    named = {name.strip() or Path(file).name.partition(".")[0]: file.strip() for name, _, file in parts}
    if len(named) < len(parts) or {*named} & {*models}:
        raise ParameterError(
            "--recommendations", "different names, as in 'als: lists.parquet'", in_words(typed or ())
        )
    return named


def _evaluate_lists(
    lists: dict[str, str], split: Split | Folds, metrics: list[str], drop_seen: bool
) -> list[Evaluation]:
    return [
        other_systems.evaluate_lists(file, check_split(split), metrics, name=name, drop_seen=drop_seen)
        for name, file in lists.items()
    ]


def compare(
    source: Data,
    features: Features,
    reading: ReadingToEvaluate,
    own: Models,
    options: Evaluating,
    rules: Rules,
    machine: Machine,
) -> None:
    """Evaluate several models on the same users, and compare them.

    All models are trained and tested on the same data, split as by mrfrec evaluate. Differences from the
    first model are taken user by user and come with their standard error and the p-value of a paired t-test.

    \b
    Examples:
      mrfrec compare events.csv --model 'dense: sparsity=dense' --model 'sparse: sparsity=0.01'
      mrfrec compare events.csv --model MRF --model Popularity --model EASE --model 'ItemKNN: neighbors=50'
    """
    data = Input(source, features, reading)
    models = models_to_compare(own.model or [], machine)
    lists = _named_lists(own.recommendations, own.drop_seen, models)
    _refuse_folds(data, options, lists)
    with prepared_split(data, options, written=[own.per_user], read=lists.values()) as (
        split,
        wanted,
        progress,
    ):
        of_lists = _evaluate_lists(lists, split, wanted, own.drop_seen)
        comparison = protocol.compare(
            models, split, wanted, ties=options.ties, progress=progress, rules=rules
        )
        comparison = results.Comparison([*comparison.evaluations, *of_lists])
        reported = results.of_comparison(comparison)
        show(_with_groups(reported, comparison.evaluations, split, options.by), options, data)
        if own.per_user is not None:
            write_per_user(comparison.evaluations, own.per_user)


def models_to_compare(texts: list[str], machine: dict[str, Any]) -> dict[str, Recommender]:
    """Build the models of a comparison, by name."""
    specs = [parse_model(only_model([text])) for text in texts]
    named = {spec.name: model for spec, model in zip(specs, make_models(specs, machine), strict=True)}
    if len(named) < len(specs) or len(named) < 2:
        raise ParameterError("--model", "given at least twice, with different names", in_words(texts))
    return named


class TuneOptions(ReportForm):
    """What to vary, and where the best parameters go."""

    group: ClassVar[str] = "Search"

    best: Annotated[Path, Shell("-o --output")] = Field(description="The .json file for the best parameters.")
    model: Annotated[list[str] | None, Shell(value="MODEL", usual=True)] = Field(
        None,
        description="The model and parameters that all trials share: 'EASE: sparsity=0.01'.  [default: MRF]",
    )
    metric: Annotated[str | None, Shell(value="NAME", usual=True)] = Field(
        None, description="The metric to maximise.  [default: ndcg@100]"
    )
    trials: Annotated[int, USUAL] = Field(
        30, description="How many points to try, the first included: the model as it is given."
    )
    vary: Annotated[list[str] | None, Shell(value="NAME=RANGE", usual=True)] = Field(
        None,
        description="What to vary: a range, l2=1:1000, l2=1:1000:log or, as multiples of the first trial's "
        "value, l2=0.1:10:times; values, sparsity=dense,0.01; or no. May be repeated. All other parameters "
        "vary as usual for the model.",
    )
    storage: Annotated[str | None, Shell(value="FILE|URL", usual=True)] = Field(
        None,
        description="Keep the trials here, to continue if interrupted: a file, or sqlite:///trials.db",
    )
    plot: Annotated[Path | None, Shell(group="Results", usual=True)] = Field(
        None, description="Draw the results, as a .png, .svg or .pdf file."
    )


def tune(
    source: Data, features: Features, reading: ReadingToEvaluate, own: TuneOptions, machine: Machine
) -> None:
    """Find good parameters on validation users.

    A split by time validates on a cut before the one of mrfrec evaluate. The test users are not used. The
    first trial is the model with what it measures by itself; Optuna's sampler suggests the others, by --seed.
    Trials share statistics: a new l2 is cheap, a new novelty or rank_weight needs no fit. Works for every
    model. Writes the best parameters for mrfrec fit --params and for --model; prints the best trials.

    \b
    Examples:
      mrfrec tune events.csv -o best.json
      mrfrec tune events.csv -o best.json --trials 100 --storage trials.journal
      mrfrec tune events.csv -o best.json --vary sparsity=dense,0.005,0.01 --vary novelty=no
      mrfrec tune events.csv -o ease.json --model EASE --trials 10
    """  # fmt: skip
    tuning.check_optuna()
    data = Input(source, features, reading)
    spec = parse_model(only_model(own.model))
    settings = Evaluating.of(metrics=own.metric, form=own.form)
    (made,) = make_models([spec], machine)
    space = parse_space(own.vary or ())
    tuning.checked_space(spec.kind, spec.parameters, space)  # refuses bad ranges before the data is read
    kept = None if own.storage is None or "://" in own.storage else Path(own.storage)
    if own.best.suffix.lower() != ".json" or (kept is not None and kept.resolve() == own.best.resolve()):
        raise ParameterError("--output", "a .json file, and another one than --storage", str(own.best))
    data.refuse_folds("mrfrec tune")
    checked = prepared_split(data, settings, own.plot, defaults=["ndcg@100"], written=[own.best, kept])
    with checked as (split, wanted, progress):
        result = tuning.tune(
            made, check_split(split), trials=own.trials, space=space, metric=",".join(wanted),
            storage=own.storage, seed=source.seed, progress=progress,
        )  # fmt: skip
        show(tuning.of_tuning(result), settings, data)
        result.save(own.best)
        note(f"wrote the best parameters to {own.best}; use them with mrfrec fit --params {own.best}")
        if own.plot is not None:
            write_figure(result.plot(), own.plot)
