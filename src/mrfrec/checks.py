"""Check parameters and forked processes; build messages; warn at the caller's line."""

import inspect
import math
import os
import re
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from difflib import get_close_matches
from functools import wraps
from importlib.util import find_spec
from numbers import Integral, Real
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, ParamSpec, TypeVar

from mrfrec.errors import DataError, MissingLibraryError, MrfrecWarning, ParameterError

P = ParamSpec("P")
R = TypeVar("R")

_threads: list[str] = []  # names of the threads that ran at the last fork
_lost_threads: list[str] = []  # names of the threads of polars that this process lost when it was forked


def check_number(name: str, value: object, rule: str, holds: Callable[[float], bool]) -> float:
    """Return `value` as a float if it is finite and `holds(value)`; otherwise raise an error with `rule`."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise ParameterError(name, rule, value)
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number) or not holds(number):
        raise ParameterError(name, rule, value)
    return number


def check_nonnegative(name: str, value: object) -> float:
    """Return `value` as a finite float of at least 0."""
    return check_number(name, value, "a finite number, 0 or more", lambda x: x >= 0)


def check_count(name: str, value: object, least: int = 1) -> int:
    """Return `value` as an int of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, Integral) or value < least:
        raise ParameterError(name, f"a whole number, {least} or more", value)
    if int(value) >= 2**63:
        raise ParameterError(name, "a whole number below 2^63", value)
    return int(value)


def check_thread_count(value: object) -> int | None:
    """Return a number of threads; None, or −1, means one per core."""
    if value is None or (isinstance(value, Integral) and value == -1):
        return None
    try:
        return check_count("threads", value)
    except ParameterError as error:
        raise ParameterError("threads", "a whole number, 1 or more, or -1 for all cores", value) from error


def check_seed(value: object) -> int:
    """Return a 32-bit seed; refuse None, because the run could not be repeated."""
    if isinstance(value, bool) or not isinstance(value, Integral) or not 0 <= int(value) < 2**32:
        raise ParameterError("seed", "a whole number from 0 to 4294967295", value)
    return int(value)


def check_dtype(value: object) -> Literal["float32", "float64"]:
    """Return the name of a dtype, given as a name, a numpy type or a numpy dtype."""
    name = getattr(value, "__name__", str(value))  # A type has __name__; str() of a dtype is its name.
    if name == "float32":
        return "float32"
    if name == "float64":
        return "float64"
    raise ParameterError("dtype", '"float32" or "float64"', value)


def check_flag(name: str, value: object) -> bool:
    """Return a bool; refuse other truthy or falsy values."""
    if not isinstance(value, bool) and type(value).__name__ not in ("bool", "bool_"):
        raise ParameterError(name, "True or False", value)
    return bool(value)


def is_unicode(text: str) -> bool:
    """Return whether a text can be encoded as UTF-8; one with a lone surrogate cannot."""
    return not any("\ud800" <= character <= "\udfff" for character in text)


def check_frames(library: str | None) -> str | None:
    """Return the name of an installed data frame library, or None."""
    if not isinstance(library, str | None) or library not in (None, "polars", "pandas", "pyarrow"):
        raise ParameterError("frames", '"polars", "pandas", "pyarrow" or None', library)
    if library is not None and find_spec(library) is None:
        raise MissingLibraryError(f'frames="{library}" needs {library}: pip install {library}.')
    return library


def counted(count: int, noun: str) -> str:
    """Return a count with its noun: "1 row", "2,000 rows"."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def in_words(words: Iterable[object], last: str = "and") -> str:
    """Join words for a sentence: "a, b and c"."""
    *others, end = [*map(str, words)] or [""]
    return f"{', '.join(others)} {last} {end}" if others else end


def missing_extra(need: str, extra: str) -> MissingLibraryError:
    """Return an error with the need, such as "a plot needs matplotlib", and how to install the extra."""
    return MissingLibraryError(f"{need}: {how_to_install(extra)}.")


def how_to_install(extra: str) -> str:
    """Return the command that adds an extra to this installation, from an index, a clone or a wheel."""
    import json
    from importlib.metadata import PackageNotFoundError, distribution
    from urllib.parse import urlsplit
    from urllib.request import url2pathname

    option, source = "", "mrfrec"
    try:
        origin = json.loads(distribution("mrfrec").read_text("direct_url.json") or "{}")
        if origin:  # Without it, mrfrec was installed by its name from an index.
            local = urlsplit(origin["url"]).scheme == "file"
            source = url2pathname(urlsplit(origin["url"]).path) if local else ""
            option = "-e " if origin.get("dir_info", {}).get("editable") else ""
    except (PackageNotFoundError, LookupError, ValueError):
        source = ""
    if not source or (source != "mrfrec" and not Path(source).exists()):
        return f'pip install ".[{extra}]" in a clone of mrfrec'
    return f'pip install {option}"{source}[{extra}]"'


def check_device_name(device: object) -> str:
    """Return the name of a device; whether it exists is checked on first use."""
    if not isinstance(device, str) or re.fullmatch(r"auto|cpu|cuda(:\d{1,3})?", device) is None:
        rule = '"auto", "cpu", "cuda", or a numbered device such as "cuda:1"'
        raise ParameterError("device", rule, device)
    return device


def warn(message: str) -> None:
    """Issue a `MrfrecWarning` at the nearest calling line outside this package."""
    depth = 1
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("mrfrec."):
        depth += 1
        frame = frame.f_back
    warnings.warn(message, MrfrecWarning, stacklevel=depth + 1)


def check_threads(work: str) -> None:
    """Refuse work that needs the threads of polars if a fork has lost them; it would wait forever."""
    if _lost_threads:
        raise DataError(
            f"{work} is not possible in this process: it was forked from one that had used polars, whose "
            'threads do not survive that. Start processes by multiprocessing.get_context("spawn") or '
            '"forkserver", or fork before polars or mrfrec reads anything.'
        )


def _note_threads() -> None:
    """Record the names of the running threads before a fork; record none without /proc."""
    _threads.clear()
    if "polars" in sys.modules:
        for path in Path("/proc/self/task").glob("*/comm"):
            with suppress(OSError):  # The thread has ended.
                _threads.append(path.read_text().strip())


def _note_lost_threads() -> None:
    """Record in the child which threads of polars it lacks: a fork copies only the thread that forks."""
    _lost_threads.extend(name for name in _threads if re.fullmatch(r"polars-\d+", name))


os.register_at_fork(before=_note_threads, after_in_child=_note_lost_threads)


def shortened(text: str, most: int) -> str:
    """Shorten a text to at most `most` characters, including the ellipsis."""
    return text if len(text) <= most else f"{text[: most - 1].rstrip()}…"


# ── calls ─────────────────────────────────────────────────────────────────────────────────────────

# What other libraries call a parameter of a model or of a method here.
_ELSEWHERE = {
    "factors": "rank", "n_factors": "rank", "n_components": "rank", "regularization": "l2", "reg": "l2",
    "lambda_": "l2", "n_jobs": "threads", "num_threads": "threads", "neighbors": "max_neighbors",
    "K": "max_neighbors",
}  # fmt: skip


def guided(function: Callable[P, R], hints: Mapping[str, str] = MappingProxyType({})) -> Callable[P, R]:
    """Wrap a method so that the `TypeError` of a call with wrong parameters says what to write.

    `hints` has, by the name of a parameter that the method lacks, what to write instead.
    """

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except TypeError as error:
            signature = inspect.signature(function)
            try:
                signature.bind(*args, **kwargs)
            except TypeError:
                name = type(args[0]).__name__ if function.__name__ == "__init__" else function.__name__
                advice = _advice(name, [*signature.parameters.values()][1:], args[1:], kwargs, hints)
                raise TypeError(f"{error}. {advice}") from None
            raise

    return call


def _advice(
    name: str, parameters: Sequence[inspect.Parameter], values: Sequence[Any], named: Mapping[str, Any],
    hints: Mapping[str, str],
) -> str:  # fmt: skip
    """Return what to write instead of a wrong call."""
    known = [x.name for x in parameters if x.kind in (x.KEYWORD_ONLY, x.POSITIONAL_OR_KEYWORD)]
    for wrong, value in named.items():
        if wrong in known:
            continue
        if wrong in hints:
            return hints[wrong].format(value=value)
        meant = _ELSEWHERE.get(wrong, "")
        near = [meant] if meant in known else get_close_matches(wrong, known, 1)
        return f"Did you mean {name}({near[0]}={value!r})?" if near else f"It takes {', '.join(known)}."
    by_position = [x for x in parameters if x.kind is x.POSITIONAL_OR_KEYWORD]
    if not (surplus := values[len(by_position) :]):
        return f"Give {by_position[0].name}."
    if "k" in known and isinstance(surplus[0], int):
        first = f"{values[0]!r}, " if by_position else ""
        return f"Write {name}({first}k={surplus[0]!r})."
    return "Give parameters by name."
