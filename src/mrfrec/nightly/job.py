"""A nightly job as it is written down: a TOML file, checked before anything is done."""

import inspect
import tomllib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from datetime import UTC, date, datetime, timedelta
from difflib import get_close_matches
from os import PathLike
from pathlib import Path
from typing import Any, Literal

from mrfrec.checks import check_count, check_flag, check_number
from mrfrec.errors import DataError, ParameterError
from mrfrec.evaluation.metrics import parse
from mrfrec.io.atomic import check_writable, expanded
from mrfrec.io.databases import is_database
from mrfrec.io.tables import read_interactions
from mrfrec.io.weighting import duration
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

    metric: str | None = None  # ndcg@100, or fewer items if there are fewer
    max_drop: float = 0.05  # share by which the metric may be below that of the last published run
    min_metric: float = 0.0
    max_shrink: float = 0.2  # share of the users, items or pairs that may be gone
    max_drift: float = 0.5  # share of all interactions that may have moved to other items
    heldout: float = 0.1  # share of users to measure on


@dataclass(frozen=True, kw_only=True)
class Sink:
    """A table to publish: recommendations for all users, or similar items of all items."""

    to: str = field(repr=False)  # a file or the URL of a database
    table: str | None = None
    k: int = 20
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def where(self) -> str:
        from mrfrec.io.databases import shown

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

    @property
    def report(self) -> Path:
        """The report without its suffix."""
        return self.publish.report or self.publish.model.with_suffix(".report")


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
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
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
        return name if mark or name == "-" else str(folder / expanded(name))

    source = _source(sections["source"], inside, dates)
    model = dict(sections.get("model", {}))
    kind = model.pop("kind", "MRF")
    machine = sections.get("machine", {})
    _refuse_unknown("machine", machine, set(_MACHINE))
    job = Job(
        path=file,
        source=source,
        guard=_guard(sections.get("guard", {})),
        publish=_publishing(sections["publish"], inside, source.mode == "update"),
        kind=kind,
        parameters=model,
        tune=_tuning(sections["tune"]) if "tune" in content else None,
        machine=machine,
    )
    with _prefixed("model"):
        job.model().check_ready()
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
    return SourceRules(
        data=[inside(_filled(name, dates)) for name in names], mode=mode, batch=given.get("batch"),
        reading=reading,
    )  # fmt: skip


def _guard(given: dict[str, Any]) -> Guard:
    _refuse_unknown("guard", given, {each.name for each in fields(Guard)})
    guard = Guard(**given)
    with _prefixed("guard"):
        for name in ("max_drop", "max_shrink", "max_drift", "min_metric"):
            check_number(name, getattr(guard, name), "from 0 to 1", lambda x: 0 <= x <= 1)
        check_number("heldout", guard.heldout, "above 0 and below 0.5", lambda x: 0 < x < 0.5)
        if guard.metric is not None:
            parse(guard.metric)
    return guard


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
                given[name] = Path(inside(value))
                check_writable(given[name])
        check_flag("histories", given["histories"])
        if updates and not given["histories"]:
            raise ParameterError(
                "histories", 'true with mode = "update"', False, "New events are added to them."
            )
        for name in ("keep", "runs"):
            check_count(name, given.get(name, 1), least=0 if name == "keep" else 1)
        for name in ("recommendations", "similar"):
            if name in given:
                given[name] = _sink(name, given[name], inside)
    return Publishing(**given)


def _sink(name: str, given: object, inside: Callable[[str], str]) -> Sink:
    content = dict(_section(name, given))
    allowed = {"to", "table", "k"} | (
        {"explain", "novelty", "exclude_seen"} if name == "recommendations" else set()
    )
    _refuse_unknown(f"publish.{name}", content, allowed)
    with _prefixed(name):
        to, table, k = content.pop("to", None), content.pop("table", None), content.pop("k", 20)
        if not isinstance(to, str) or not to:
            raise ParameterError("to", "a file or the URL of a database", to)
        if is_database(to) != (isinstance(table, str) and bool(table)):
            raise ParameterError("table", "given with a database, and only then", table)
        return Sink(to=inside(to), table=table, k=check_count("k", k), options=content)


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
