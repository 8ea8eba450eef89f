"""A nightly job: a TOML file, checked before anything is read or written."""

import math
import re
import time
import tomllib
from contextlib import suppress
from datetime import date, timedelta
from glob import escape
from os import PathLike
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

import numpy as np
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, ValidationInfo
from pydantic import model_validator as check_section

from mrfrec.answers.question import Question
from mrfrec.answers.tables import RECOMMENDATION_COLUMNS, SIMILAR_COLUMNS
from mrfrec.checks import in_words
from mrfrec.data.pairs import Origin
from mrfrec.data.reading_options import TableOptions
from mrfrec.errors import DataError, MrfrecError, ParameterError
from mrfrec.evaluation.metrics import parse
from mrfrec.io.atomic import check_writable, expanded, file_path
from mrfrec.io.databases import database_file, is_database, redacted
from mrfrec.io.frames import check_target, new_names
from mrfrec.io.sources import paths_of
from mrfrec.io.tables import check_reading
from mrfrec.models.recommender import Recommender
from mrfrec.models.registry import build
from mrfrec.nightly.ranges import (
    BEGINNING,
    DATE,
    DAY,
    SINCE,
    YESTERDAY,
    check_range,
    day_of,
    filled,
    with_batch,
)

# ── types of values ───────────────────────────────────────────────────────────────────────────────


def _place(name: object, info: ValidationInfo) -> str:
    """Return a path relative to the folder of the job; URLs and standard input stay as they are."""
    if not isinstance(name, str) or not name or "\0" in name:
        raise ParameterError("", "the name of a file or the URL of a database", name)
    file: Any = info.context
    folder = file.parent
    scheme, mark, rest = name.partition("://")
    if scheme == "sqlite" and mark and rest[:2] != "//":
        return f"sqlite:///{folder.resolve() / rest.lstrip('/')}"
    if not mark and (unknown := re.search(r"\{\w*\}", name)):
        rule = "a name in which only {date}, {yesterday} and {since} stand for something else"
        raise ParameterError("", rule, name, f"{unknown[0]} is none of them.")
    path = expanded(name)
    if mark or name == "-" or path.is_absolute():
        return name if mark or name == "-" else str(path)
    is_pattern = any(sign in name for sign in "*?[") and not (folder / path).exists()
    return str(Path(escape(str(folder.resolve())) if is_pattern else folder) / path)


def _places(names: object) -> object:
    """Return a list of places, which one alone may stand for."""
    if isinstance(names, str):
        return [names]
    if not isinstance(names, list) or not names:
        raise ParameterError("", "the name of a file or the URL of a database, or a list of these", names)
    return names


def _mode(mode: object) -> object:
    if not isinstance(mode, str) or re.fullmatch("0?[67][0-7][0-7]", mode) is None:
        raise ParameterError("", 'a mode in quotes such as "0640", from "0600" to "0777"', mode)
    return mode


Place = Annotated[str, BeforeValidator(_place)]
Places = Annotated[list[Place], BeforeValidator(_places)]
File = Annotated[Path, BeforeValidator(lambda name, info: Path(_place(name, info)))]
Mode = Annotated[str, BeforeValidator(_mode)]
MetricName = Annotated[str, BeforeValidator(lambda name: str(parse(name)))]
Count = Annotated[int, Field(ge=0, lt=2**63)]
Positive = Annotated[int, Field(ge=1, lt=2**63)]
Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]


# ── sections ──────────────────────────────────────────────────────────────────────────────────────


class JobSection(BaseModel):
    """A section of a job."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)
    further_keys: ClassVar[frozenset[str]] = frozenset()

    @check_section(mode="before")
    @classmethod
    def _check_keys(cls, content: Any) -> Any:
        known = sorted(cls.model_fields.keys() | cls.further_keys)
        wrong = [name for name in content if name not in known] if isinstance(content, dict) else []
        if wrong:
            name = in_words(wrong)
            raise ParameterError(name, f"one of the keys {', '.join(known)}", name)
        return content


class SourceRules(JobSection):
    """Where the events come from and how they are read; all parameters of `read_interactions` are keys."""

    model_config = ConfigDict(extra="allow")
    further_keys = frozenset(TableOptions.model_fields)

    features: Place | None = Field(default=None, repr=False)  # a table of items and their features
    feature_columns: list[str] | dict[str, str] | None = None
    features_query: str | None = None
    data: Places = Field(repr=False)  # URLs may hold passwords
    items: Place | None = Field(default=None, repr=False)  # as in `read_interactions`, or with a query
    items_query: str | None = None
    mode: Literal["fit", "update"] = "fit"  # whether the data is all events, or the new ones
    batch: str | None = None  # in mode update: name of the batch
    overlap: str | None = None  # where the source names {since}: time that is read again

    @property
    def reading(self) -> dict[str, Any]:
        """The parameters of `read_interactions`."""
        titles = {} if self.items is None or self.items_query is not None else {"items": self.items}
        return {**(self.model_extra or {}), **titles}

    @check_section(mode="after")
    def _check(self) -> Self:
        if self.features is None and (self.feature_columns or self.features_query):
            rule = "left out without features"
            raise ParameterError("feature_columns", rule, self.feature_columns or self.features_query)
        if self.items is None and self.items_query is not None:
            raise ParameterError("items_query", "left out without items", self.items_query)
        sources: list[tuple[str, Any, list[str]]] = [
            ("query", self.reading.get("query"), self.data),
            ("items_query", self.items_query, [self.items] if self.items else []),
            ("features_query", self.features_query, [self.features] if self.features else []),
        ]
        for name, query, places in sources:
            if any(is_database(place) != (query is not None) for place in places):
                raise ParameterError(name, "given with a database, and only then", query)
        if self.batch is not None and (self.mode != "update" or not self.batch.strip()):
            raise ParameterError("batch", 'a name, with mode = "update"', self.batch)
        options = check_reading(self.reading)
        if (options.microseconds("now") or 0) > latest_time():
            raise ParameterError("now", "at most a day later than the clock of the machine", options.now)
        if self.mode == "update":
            # A moving window needs the times of the pairs, which binary data has.
            times = None if options.rows_have_weights else np.empty(0, np.int64)
            limits = {name: limit for name, limit in options.limits().items() if limit}
            Origin({**options.rules(), **limits}, times=times).check_can_grow()
        return self


class ModelRules(BaseModel):
    """The kind of model, and its parameters as further keys, which the model checks."""

    model_config = ConfigDict(strict=True, extra="allow", frozen=True)

    kind: str = "MRF"
    measure_every: Positive | None = None  # published nights until the parameters are measured again


class Guard(JobSection):
    """Limits that a new model must keep to be published."""

    metric: MetricName = "ndcg@100"  # of all items if there are fewer
    max_drop: Share = 0.05  # share by which the metric may be below that of the last published run
    min_metric: Share = 0.0
    max_shrink: Share = 0.2  # share of the users, items or pairs that may be gone
    max_growth: Annotated[float, Field(ge=0)] = 0.25  # share by which they may grow
    max_drift: Share = 0.5  # share of all interactions that may have moved to other items
    min_again: Share = 0.5  # share of a sample of the pairs published before that must be there again
    max_bad: Share = 0.01  # share of the rows that may be bad, and skipped
    heldout: Annotated[float, Field(gt=0, lt=0.5)] = 0.1  # share of users to measure on


class Sink(JobSection):
    """A table to publish: similar items of all items."""

    usual_columns: ClassVar[tuple[str, ...]] = SIMILAR_COLUMNS

    to: Place = Field(repr=False)  # a file or the URL of a database
    table: str | None = None
    k: Positive = 20
    columns: dict[str, str] = {}  # other names

    @property
    def names(self) -> tuple[str, ...]:
        """The columns, before they get other names."""
        return (*self.usual_columns, *(["because"] if self.options.get("explain") else []))

    @property
    def options(self) -> dict[str, Any]:
        """Further parameters of the method that writes the table."""
        return self.model_dump(exclude={"to", "table", "k", "columns"}, exclude_unset=True)

    @property
    def where(self) -> str:
        return self.to if self.table is None else f"{self.table} in {redacted(self.to)}"

    @check_section(mode="after")
    def _check(self) -> Self:
        if is_database(self.to) != bool(self.table):
            raise ParameterError("table", "given with a database, and only then", self.table)
        try:
            check_target(self.to, None, self.table)
        except ParameterError as error:
            raise (error.named("to", advice="") if error.name == "path" else error) from None
        new_names(self.columns, self.names)
        return self


class RecommendationSink(Sink):
    """A table to publish: recommendations for all users."""

    model_config = ConfigDict(extra="allow")
    usual_columns = RECOMMENDATION_COLUMNS
    # Item ids of `allow` and `exclude` are no settings of a job, which knows all its users.
    further_keys = frozenset(Question.model_fields) - {"k", "allow", "exclude", "strict"}

    @check_section(mode="after")
    def _check_question(self) -> Self:
        _ = self.question
        return self

    @property
    def question(self) -> Question:
        return Question.of(k=self.k, **self.options)


class Publishing(JobSection):
    """Files and tables to write."""

    model: File
    histories: bool = False
    keep: Count = 7  # earlier models
    recommendations: RecommendationSink | None = None
    similar: Sink | None = None
    samples: Annotated[int, Field(ge=0, le=20)] = 3  # users whose recommendations are in the report
    report: File | None = None  # beside the model by default; .json and .html are appended
    mode: Mode | None = None  # of the model and the report

    @property
    def permissions(self) -> int | None:
        """The mode as a number."""
        return None if self.mode is None else int(self.mode, 8)


class Machine(JobSection):
    """Parameters of models that change no result; the models check them."""

    threads: Any = None
    memory_limit: Any = None
    device: Any = None


class Job(JobSection):
    """A nightly job."""

    source: SourceRules
    model: ModelRules = ModelRules()
    guard: Guard = Guard()
    publish: Publishing
    machine: Machine = Machine()
    _path: Path
    _source: dict[str, Any]  # the section as written, with {date}, {yesterday} and {since}
    _day: date

    def model_post_init(self, context: Any) -> None:
        """Note the file of the job."""
        self._path = context

    @check_section(mode="before")
    @classmethod
    def _fill(cls, content: dict[str, Any]) -> dict[str, Any]:
        """Fill in the defaults of mode "update". Growth has no limit: a second batch may double the data."""
        source = content.get("source")
        if isinstance(source, dict) and source.get("mode") == "update":
            for section, name, default in (("guard", "max_growth", math.inf), ("publish", "histories", True)):
                if isinstance(keys := content.get(section, {}), dict):
                    content = {**content, section: {name: default, **keys}}
        return content

    @check_section(mode="after")
    def _check(self) -> Self:
        if self.source.mode == "update" and not self.publish.histories:
            advice = "New events are added to them."
            raise ParameterError("publish.histories", 'true with mode = "update"', False, advice)
        try:
            model = self.build()
            model.check_ready()
        except ParameterError as error:
            section = "machine" if error.name in self.machine.model_fields_set else "model"
            raise error.named(f"{section}.{'kind' if error.name == 'model' else error.name}") from None
        if self.source.features is not None and not model.uses_features:
            rule = f"left out with {self.model.kind}, which learns from events alone"
            raise ParameterError("source.features", rule, self.source.features, "An MRF uses them.")
        _check_apart(self)
        return self

    @property
    def path(self) -> Path:
        return self._path

    @property
    def reads_since(self) -> bool:
        """Whether the source names {since}, which begins where the published events end."""
        return SINCE in str(self._source)

    @property
    def reads_dated_files(self) -> bool:
        """Whether the names of the data tell of a day, so that its files may not be there yet."""
        return any(word in str(self._source["data"]) for word in (DATE, YESTERDAY))

    @property
    def passing_rules(self) -> list[str]:
        """Options of reading that change from night to night, and are no rules of the data."""
        return [name for name in ("since", "until") if "{" in str(self._source.get(name))]

    def since(self, moment: str) -> "Job":
        """Return the job with a time in place of {since}."""
        content = filled(self._source, self._day, moment)
        source = SourceRules.model_validate(content, context=self._path)
        return self.model_copy(update={"source": source})

    def batch_before(self, days: int) -> str:
        """Return the name of the batch of a day before."""
        return str(filled(self._source["batch"], self._day - timedelta(days)))

    def build(self) -> Recommender:
        """Build the model."""
        return build(self.model.kind, self.model.model_extra or {}, self.machine.model_dump())

    @property
    def report(self) -> Path:
        """The report without its suffix."""
        model = self.publish.model
        return self.publish.report or model.with_name(f"{model.name.removesuffix('.mrf')}.report")

    @property
    def sinks(self) -> dict[str, Sink]:
        """The tables to publish, by their content."""
        sinks = {"recommendations": self.publish.recommendations, "similar items": self.publish.similar}
        return {what: sink for what, sink in sinks.items() if sink is not None}


# ── reading ───────────────────────────────────────────────────────────────────────────────────────


def read_job(path: "str | PathLike[str]", day: str | None = None) -> Job:
    """Read a job from a TOML file, and check all that can be checked without reading data.

    Relative paths start from the folder of the file. {date} is replaced by `day` (today, UTC), {yesterday} by
    the day before, and {since}, until the night has opened the published model, by 1970.
    """
    file = file_path(path)
    today = day_of(day)
    try:
        content = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise DataError(f"{file} cannot be read: {error.strerror}.") from error
    except (ValueError, RecursionError) as error:  # also an integer of more digits than Python reads
        raise DataError(f"{file} is not a TOML file: {error}.") from error
    try:
        content = with_batch(content)
        job = Job.model_validate(filled(content, today, BEGINNING), context=file)
        job._source, job._day = content["source"], today
        check_range(job._source, check_reading(job.source.reading))
    except ValidationError as error:
        raise _refusal(file, error) from None
    except RecursionError:
        raise DataError(f"{file} is nested too deeply.") from None
    except ParameterError as error:
        raise error.named(f"{file}: {error.name}", _shown(error.value)) from None
    return job


def latest_time() -> int:
    """Return the latest time that an event of tonight may have, in microseconds since 1970."""
    return time.time_ns() // 1000 + DAY


def _refusal(file: Path, error: ValidationError) -> MrfrecError:
    """Turn the errors of pydantic into one of ours, which names each key, the rule and the value."""
    found = [_refusal_of(file, each) for each in error.errors(include_url=False)]
    return found[0] if len(found) == 1 else DataError(" ".join(dict.fromkeys(map(str, found))))


def _refusal_of(file: Path, first: Any) -> MrfrecError:
    name = ".".join(map(str, first["loc"]))
    value = first["input"]
    reason = first.get("ctx", {}).get("error")
    if isinstance(reason, ParameterError):  # of one of the checks above: of a key, or of a whole section
        parts = [name, reason.name] if isinstance(value, dict) else [name]
        return reason.named(f"{file}: {'.'.join(filter(None, parts))}", _shown(reason.value))
    if isinstance(reason, MrfrecError):
        return reason
    if first["type"] == "missing":
        advice = "" if "." in name else f" Write it as [{name}]."
        return DataError(f"{file}: {name} must be given.{advice}")
    rule = "Input should be a table" if first["type"] in ("model_type", "dict_type") else first["msg"]
    return DataError(f"{file}: {name}: {rule}; got {_shown(value)!r}.")


def _shown(value: object) -> object:
    """Return a value as an error may show it: the URL of a database, anywhere in it, may hold a password."""
    if isinstance(value, str):
        return redacted(value)
    return "a table" if isinstance(value, dict) else "a list" if isinstance(value, list) else value


def _check_apart(job: Job) -> None:
    """Refuse a job that would write two things to one place, or over its own source."""
    places = {str(job.path.resolve()): "the job"}
    read = [("source.data", name) for name in job.source.data]
    read += [(f"source.{key}", name) for key in ("features", "items") if (name := getattr(job.source, key))]
    for what, name in read:
        with suppress(DataError):  # the file may come until the job reads it
            files = [database_file(name)] if is_database(name) else paths_of(name)
            places |= dict.fromkeys((str(file.resolve()) for file in files if file is not None), what)
    written: list[tuple[str, str, str | None]] = [("publish.model", str(job.publish.model), None)]
    written += [("publish.report", f"{job.report}{suffix}", None) for suffix in (".json", ".html")]
    written += [(f"publish.{what.split()[0]}.to", sink.to, sink.table) for what, sink in job.sinks.items()]
    for what, target, table in written:
        file = Path(target).resolve() if table is None else database_file(target)
        where = f"{target} {table}" if table is not None else str(file)
        other = places.get(where) or places.get(str(file))
        if other is not None and not (
            table is not None and other in ("source.data", "source.features", "source.items")
        ):
            raise ParameterError(what, "a place of its own", redacted(target), f"{other} is there, too.")
        places[where] = what
        if file is not None:  # also a database that exists: SQLite puts its journal into the folder
            try:
                check_writable(target if table is None else file)
            except ParameterError as error:
                raise error.named(what) from None
