"""A nightly job as it is written down: a TOML file, checked before anything is done."""

import inspect
import math
import tomllib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, date, datetime, timedelta
from difflib import get_close_matches
from glob import escape
from os import PathLike
from pathlib import Path
from typing import Any, Literal

from mrfrec.checks import check_count, check_flag, check_number
from mrfrec.data.catalogue import RECOMMENDATION_COLUMNS, SIMILAR_COLUMNS
from mrfrec.errors import DataError, ParameterError
from mrfrec.evaluation.metrics import parse
from mrfrec.io.atomic import check_writable, expanded
from mrfrec.io.databases import is_database, shown
from mrfrec.io.frames import check_target, new_names
from mrfrec.io.sources import paths_of
from mrfrec.io.tables import check_reading, read_interactions
from mrfrec.io.weighting import duration
from mrfrec.models.answers.question import Question
from mrfrec.models.recommender import Recommender
from mrfrec.models.registry import build

_READING = set(inspect.signature(read_interactions).parameters) - {"source", "progress"}
_MACHINE = ("threads", "memory_limit", "device")


@dataclass(frozen=True, kw_only=True)
class SourceRules:
    """Where the events come from and how they are read."""

    data: list[str] = field(repr=False)  # URLs may hold passwords
    mode: Literal["fit", "update"] = "fit"  # whether the data is all events, or the new ones
    batch: str | None = None  # in mode update: name of the batch
    reading: dict[str, Any] = field(default_factory=dict)  # parameters of read_interactions


@dataclass(frozen=True, kw_only=True)
class Guard:
    """What a new model must not fall short of to be published."""

    metric: str = "ndcg@100"  # of all items if there are fewer
    max_drop: float = 0.05  # share by which the metric may be below that of the last published run
    min_metric: float = 0.0
    max_shrink: float = 0.2  # share of the users, items or pairs that may be gone
    max_growth: float = 0.25  # share by which they may grow; 1 / (1 − max_shrink) − 1
    max_drift: float = 0.5  # share of all interactions that may have moved to other items
    heldout: float = 0.1  # share of users to measure on


@dataclass(frozen=True, kw_only=True)
class Sink:
    """A table to publish: recommendations for all users, or similar items of all items."""

    to: str = field(repr=False)  # a file or the URL of a database
    table: str | None = None
    k: int = 20
    columns: dict[str, str] = field(default_factory=dict)  # other names
    names: tuple[str, ...] = ()  # of the columns, before these
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def is_table(self) -> bool:
        return self.table is not None

    @property
    def where(self) -> str:
        return self.to if self.table is None else f"{self.table} in {shown(self.to)}"


@dataclass(frozen=True, kw_only=True)
class Publishing:
    """What is written, and where."""

    model: Path
    histories: bool = False
    keep: int = 7  # earlier models
    recommendations: Sink | None = None
    similar: Sink | None = None
    report: Path | None = None  # beside the model by default; .json and .html are appended
    runs: int = 100  # of the report
    samples: int = 3  # users whose recommendations are shown in the report, without their ids


@dataclass(frozen=True, kw_only=True)
class TuningRules:
    """How long parameters are looked for, and how often."""

    minutes: float
    every: str | None = None  # not again before so much time has passed; each run by default


@dataclass(frozen=True, kw_only=True)
class Job:
    """A nightly job."""

    path: Path
    source: SourceRules
    guard: Guard
    publish: Publishing
    kind: str = "MRF"
    parameters: dict[str, Any] = field(default_factory=dict)
    tune: TuningRules | None = None
    machine: dict[str, Any] = field(default_factory=dict)

    def model(self, parameters: Mapping[str, Any] | None = None) -> Recommender:
        """Build the model, with these parameters or those of the job."""
        return build(self.kind, self.parameters if parameters is None else parameters, self.machine)

    def keeping(self, count: int | None) -> "Job":
        """Return the job with another number of earlier models to keep, if one is given."""
        if count is None:
            return self
        return replace(self, publish=replace(self.publish, keep=check_count("keep", count, least=0)))

    @property
    def report(self) -> Path:
        """The report without its suffix."""
        model = self.publish.model
        return self.publish.report or model.with_name(f"{model.name.removesuffix('.mrf')}.report")

    @property
    def sinks(self) -> "dict[str, Sink]":
        """What is written besides the model, by what it is."""
        found = {"recommendations": self.publish.recommendations, "similar items": self.publish.similar}
        return {what: sink for what, sink in found.items() if sink is not None}


def read_job(path: "str | PathLike[str]", day: str | None = None) -> Job:
    """Read a job from a TOML file, and check all that can be checked without reading data.

    Relative paths start from the folder of the file. In `data`, `query` and `batch`, {date} is replaced by
    `day` (today, UTC) and {yesterday} by the day before.
    """
    file = expanded(path)
    try:
        content = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise DataError(f"{file} cannot be read: {error.strerror}.") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise DataError(f"{file} is not a TOML file: {error}.") from error
    with _in_file(file):
        return _job(file, content, _dates(day))


def _job(file: Path, content: dict[str, Any], dates: Mapping[str, str]) -> Job:
    _refuse_unknown("", content, {"source", "model", "tune", "guard", "publish", "machine"})
    sections = {name: _section(name, content.get(name, {})) for name in (*content, "source", "publish")}
    folder = file.parent

    def inside(name: str) -> str:
        """Return a path relative to the folder of the job; URLs and standard input stay as they are."""
        scheme, mark, rest = name.partition("://")
        if scheme in ("sqlite", "duckdb") and mark and rest[:2] != "//":
            return f"{scheme}:///{folder.resolve() / rest.lstrip('/')}"
        path = expanded(name)
        if mark or name == "-" or path.is_absolute():
            return name if mark or name == "-" else str(path)
        is_pattern = any(sign in name for sign in "*?[") and not (folder / path).exists()
        return str(Path(escape(str(folder.resolve())) if is_pattern else folder) / path)

    source = _source(sections["source"], inside, dates)
    model = dict(sections.get("model", {}))
    kind = model.pop("kind", "MRF")
    machine = sections.get("machine", {})
    _refuse_unknown("machine", machine, set(_MACHINE))
    job = Job(
        path=file,
        source=source,
        guard=_guard(sections.get("guard", {}), source.mode == "update"),
        publish=_publishing(sections["publish"], inside, source.mode == "update"),
        kind=kind,
        parameters=model,
        tune=_tuning(sections["tune"]) if "tune" in content else None,
        machine=machine,
    )
    with _prefixed("machine" if machine else "model"):
        build(kind, {}, machine)
    with _prefixed("model"):
        job.model().check_ready()
    _check_apart(job)
    return job


def _source(given: dict[str, Any], inside: Callable[[str], str], dates: Mapping[str, str]) -> SourceRules:
    _refuse_unknown("source", given, {"data", "mode", "batch", *_READING})
    data = given.get("data")
    names = [data] if isinstance(data, str) else data
    if not isinstance(names, list) or not names or not all(isinstance(name, str) and name for name in names):
        raise ParameterError("source.data", "a file, a list of files, or the URL of a database", data)
    mode, batch = given.get("mode", "fit"), given.get("batch")
    if mode not in ("fit", "update"):
        raise ParameterError("source.mode", '"fit" or "update"', mode)
    if batch is not None and (mode != "update" or not isinstance(batch, str) or not batch.strip()):
        raise ParameterError("source.batch", 'a name, with mode = "update"', batch)
    reading = {name: value for name, value in given.items() if name in _READING}
    for name in ("query", "batch"):
        if isinstance(given.get(name), str):
            given = {**given, name: _filled(given[name], dates)}
    if "query" in reading:
        reading["query"] = given["query"]
    if isinstance(reading.get("items"), str):
        reading["items"] = inside(reading["items"])
    with _prefixed("source"):
        check_reading(reading)
        if mode == "update":
            _check_grows(reading)
    return SourceRules(
        data=[inside(_filled(name, dates)) for name in names], mode=mode, batch=given.get("batch"),
        reading=reading,
    )  # fmt: skip


def _guard(given: dict[str, Any], updates: bool) -> Guard:
    _refuse_unknown("guard", given, {each.name for each in fields(Guard)})
    # Data that begins with a single batch doubles the night after.
    guard = Guard(**({"max_growth": math.inf} if updates else {}) | given)
    with _prefixed("guard"):
        for name in ("max_drop", "max_shrink", "max_drift", "min_metric"):
            check_number(name, getattr(guard, name), "from 0 to 1", lambda x: 0 <= x <= 1)
        if guard.max_growth != math.inf:
            check_number("max_growth", guard.max_growth, "0 or more, or inf", lambda x: x >= 0)
        check_number("heldout", guard.heldout, "above 0 and below 0.5", lambda x: 0 < x < 0.5)
        try:
            parse(guard.metric)
        except ParameterError as error:
            raise error.named("metric") from None
    return guard


def _check_grows(reading: Mapping[str, Any]) -> None:
    """Refuse to read new events in a way in which nothing can be added later."""
    for name in ("max_history", "min_users", "min_items"):
        if reading.get(name):
            advice = "Later events may bring back what it leaves out."
            raise ParameterError(name, 'left out with mode = "update"', reading[name], advice)
    weighs = "event_weights" in reading or reading.get("binary") is False
    for name in ("half_life", *(["window"] if weighs else [])):
        if name in reading and "now" not in reading:
            advice = "Then what an event counts does not change from night to night."
            raise ParameterError("now", f'given with {name} and mode = "update"', None, advice)


def _check_apart(job: Job) -> None:
    """Refuse a job that would write two things to one place, or over what it reads."""
    places: dict[str, str] = {}
    read = [("source.data", name) for name in job.source.data]
    if isinstance(items := job.source.reading.get("items"), str):
        read.append(("source.items", items))
    for what, name in read:
        for path in _files(name):
            places[path] = what
    written: list[tuple[str, str, str | None]] = [("publish.model", str(job.publish.model), None)]
    written += [("publish.report", f"{job.report}{suffix}", None) for suffix in (".json", ".html")]
    written += [(f"publish.{what.split()[0]}", sink.to, sink.table) for what, sink in job.sinks.items()]
    for what, target, table in written:
        where = f"{target} {table}" if table is not None else _file_of(target)
        # Tables may lie in the database that is read, but a database in no other file.
        own = _file_of(target) if is_database(target) else where
        other = places.get(where) or places.get(own)
        if other is not None and not (is_database(target) and other == "source.data"):
            advice = f"{other} is there, too."
            raise ParameterError(what, "a place of its own", shown(target), advice)
        places[where] = what
        if table is None:
            check_writable(target)


def _file_of(target: str) -> str:
    """Return the file of a path or of a database in a file, without links."""
    scheme, mark, rest = target.partition("://")
    if mark and scheme not in ("sqlite", "duckdb"):
        return target
    return str(Path(rest[1:] if mark else target).resolve())


def _files(name: str) -> list[str]:
    if "://" in name or name == "-":
        return [_file_of(name)]
    try:
        return [str(path.resolve()) for path in paths_of(name)]
    except DataError:  # is said when it is read: it may come until then
        return [_file_of(name)]


def _tuning(given: dict[str, Any]) -> TuningRules:
    _refuse_unknown("tune", given, {each.name for each in fields(TuningRules)})
    with _prefixed("tune"):
        minutes = check_number("minutes", given.get("minutes"), "a number above 0", lambda x: x > 0)
        if given.get("every") is not None:
            duration("every", given["every"])
    return TuningRules(minutes=minutes, every=given.get("every"))


def _publishing(given: dict[str, Any], inside: Callable[[str], str], updates: bool) -> Publishing:
    _refuse_unknown("publish", given, {each.name for each in fields(Publishing)})
    given = {"histories": updates, **given}
    with _prefixed("publish"):
        for name in ("model", "report"):
            value = given.get(name)
            if (name == "model" or value is not None) and (not isinstance(value, str) or not value):
                raise ParameterError(name, "the name of a file", value)
            if isinstance(value, str):
                if "{date}" in value or "{yesterday}" in value:
                    advice = "The models before it are kept under their times."
                    raise ParameterError(name, "the same every night", value, advice)
                given[name] = Path(inside(value))
                if name == "model":
                    check_writable(given[name])
        check_flag("histories", given["histories"])
        if updates and not given["histories"]:
            raise ParameterError(
                "histories", 'true with mode = "update"', False, "New events are added to them."
            )
        for name, least in (("keep", 0), ("runs", 1), ("samples", 0)):
            check_count(name, given.get(name, 1), least=least)
    for name in ("recommendations", "similar"):
        if name in given:
            given[name] = _sink(name, given[name], inside)
    return Publishing(**given)


def _sink(name: str, given: object, inside: Callable[[str], str]) -> Sink:
    section = f"publish.{name}"
    content = dict(_section(section, given))
    allowed = {"to", "table", "k", "columns"} | (
        {"explain", "novelty", "exclude_seen"} if name == "recommendations" else set()
    )
    _refuse_unknown(section, content, allowed)
    with _prefixed(section):
        to, table, k = content.pop("to", None), content.pop("table", None), content.pop("k", 20)
        if not isinstance(to, str) or not to:
            raise ParameterError("to", "a file or the URL of a database", to)
        if is_database(to) != (isinstance(table, str) and bool(table)):
            raise ParameterError("table", "given with a database, and only then", table)
        try:
            check_target(inside(to), None, table)
        except ParameterError as error:
            raise error.named("to" if error.name == "path" else error.name) from None
        Question(**{option: value for option, value in content.items() if option != "columns"})
        names = (
            SIMILAR_COLUMNS
            if name == "similar"
            else (*RECOMMENDATION_COLUMNS, *(["because"] if content.get("explain") else []))
        )
        columns = content.pop("columns", {})
        new_names(columns, names)
        return Sink(
            to=inside(to), table=table, k=check_count("k", k), columns=columns, names=names, options=content
        )


# ── parts ─────────────────────────────────────────────────────────────────────────────────────────


def _section(name: str, given: object) -> dict[str, Any]:
    if not isinstance(given, dict):
        raise ParameterError(f"[{name}]", "a section of names and values", given)
    return given


def _refuse_unknown(section: str, given: Mapping[str, Any], known: set[str]) -> None:
    for name in given:
        if name not in known:
            near = get_close_matches(name, known, 1)
            advice = f"Did you mean {near[0]}?" if near else ""
            what = f"a key of [{section}]" if section else "a section"
            raise ParameterError(what, f"one of {', '.join(sorted(known))}", name, advice)


def _dates(day: str | None) -> dict[str, str]:
    if day is None:
        today = datetime.now(UTC).date()
    else:
        try:
            today = date.fromisoformat(day)
        except (TypeError, ValueError):
            raise ParameterError("date", "a date such as 2026-11-16", day) from None
        if today == date.min:
            raise ParameterError("date", "a date with a day before it", day)
    return {"{date}": str(today), "{yesterday}": str(today - timedelta(days=1))}


def _filled(text: str, dates: Mapping[str, str]) -> str:
    for name, day in dates.items():
        text = text.replace(name, day)
    return text


@contextmanager
def _prefixed(section: str) -> Iterator[None]:
    try:
        yield
    except ParameterError as error:
        name = "kind" if error.name == section else error.name  # of a model
        raise error.named(f"{section}.{name}") from None


@contextmanager
def _in_file(file: Path) -> Iterator[None]:
    try:
        yield
    except ParameterError as error:
        raise error.named(f"{file}: {error.name}") from None
    except RecursionError:
        raise DataError(f"{file} is nested too deeply.") from None
