"""The command line, run as `mrfrec` or `python -m mrfrec`."""

import logging
import os
import re
import signal
import sys
import traceback
import warnings
from contextlib import suppress
from io import UnsupportedOperation
from pathlib import Path
from threading import Event
from typing import Any, TextIO

from mrfrec.errors import BusyError, MrfrecError, ParameterError, RefusedError

_CODES: dict[type[MrfrecError], int] = {RefusedError: 3, BusyError: 4}  # exit codes other than 2
_log = logging.getLogger("mrfrec")
_LESS_MEMORY = "make the model smaller, as with --sparsity 0.005, or use fewer --threads"


def main() -> None:
    """Run one command and exit.

    Exit codes: 0; 2 to 4 after an error of one line; 130 after Ctrl-C, 143 after SIGTERM.
    """
    if sys.stderr is None:  # the caller closed it: mrfrec … 2>&-
        sys.stderr = Path(os.devnull).open("w")  # noqa: SIM115
    if sys.stdout is None:  # mrfrec … >&-: whoever writes a result there is told so
        sys.stdout = Path(os.devnull).open()  # noqa: SIM115
    arguments = [argument for argument in sys.argv[1:] if argument != "--debug"]
    stop = Event()
    caught = signal.SIGINT

    def interrupt(number: int, _: object) -> None:
        nonlocal caught
        caught = signal.Signals(number)
        stop.set()  # a library may swallow the exception in a callback and continue
        raise KeyboardInterrupt(f"stopped by {caught.name}")

    for each in (signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(each) in (signal.default_int_handler, signal.SIG_DFL):  # not if it is ignored
            signal.signal(each, interrupt)
    try:
        code = _run(arguments, stop, debug="--debug" in sys.argv)
        # Either signal would end Python on its way out, with its own exit code.
        for each in (signal.SIGINT, signal.SIGTERM):
            signal.signal(each, signal.SIG_IGN)
    except KeyboardInterrupt:  # a second signal, while the first was being handled
        code = None
    if code is None:
        _log.error("interrupted; nothing was left half-written.")
    _give_up(sys.stderr)
    sys.exit(128 + caught if code is None else code)


def _run(arguments: list[str], stop: Event, debug: bool) -> int | None:
    """Run a command; returns its exit code, or None if it was interrupted."""
    warnings.showwarning = lambda message, *_: _log.warning("note: %s", message)
    _log.addHandler(Stderr())
    _log.setLevel(logging.INFO)
    logging.getLogger("mrfrec.core.kernels").setLevel(logging.INFO)  # also where a command silences the fits
    try:
        from mrfrec.cli.app import run

        run(arguments, stop)
        sys.stdout.flush()
        return 0
    except BrokenPipeError:  # `mrfrec … | head`: the reader has closed the pipe
        _give_up(sys.stdout)
        return 0
    except (KeyboardInterrupt, Exception) as error:
        if debug:
            traceback.print_exc()
        if isinstance(error, KeyboardInterrupt) or stop.is_set():  # whatever a library turned it into
            return None
        if isinstance(error, OSError | UnicodeEncodeError):
            _give_up(sys.stdout)
        message, code = _in_words(error)
        _log.error("%s", message)
        return code


def _in_words(error: Any) -> tuple[str, int]:
    """Return the message for an error, in the words of the shell, and the exit code."""
    if isinstance(error, ParameterError) and error.name == "path":
        error = error.named("the file")
    if isinstance(error, MrfrecError):
        return str(error), _CODES.get(type(error), 2)
    if isinstance(error, MemoryError):
        details = f" ({error})" if str(error) else ""
        return f"there is not enough memory{details}. Close other programs, or {_LESS_MEMORY}.", 2
    if isinstance(error, UnsupportedOperation):
        return "standard output is closed: the results could not be written.", 2
    if isinstance(error, OSError):
        name = "" if error.filename is None else f"{error.filename}: "
        return f"{name}{error.strerror or error}.", 2
    if isinstance(error, UnicodeEncodeError):
        odd = error.object[error.start : error.end]
        advice = "set PYTHONIOENCODING=utf-8, or give -o FILE"
        return f"{odd!a} cannot be shown in the encoding {error.encoding}: {advice}.", 2
    if hasattr(error, "format_message"):  # a usage error of typer
        context = getattr(error, "ctx", None)
        command = context.command_path if context else "mrfrec"
        said = error.format_message().rstrip(".").replace("Value error, ", "")
        said = re.sub(r" \(Possible options?: (.+)\)$", r". Did you mean \1?", said)
        # Pydantic's own error names no value.
        for fault in getattr(error.__cause__, "errors", list)():
            kind = {"int_parsing": "a whole number", "float_parsing": "a number"}.get(fault["type"])
            said = f"{said.partition(': ')[0]}: {fault['input']!r} is not {kind}" if kind else said
        return f"{said}{'' if said.endswith('?') else '.'} See {command} --help.", 2
    return f"unexpected {type(error).__name__}: {error}. This is a bug in mrfrec; --debug shows where.", 1


def _give_up(stream: TextIO) -> None:
    """Redirect a stream if it cannot be flushed, so that Python does not try again at exit."""
    try:
        stream.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def note(message: str) -> None:
    """Write a line to stderr, above a progress bar if there is one; the line is lost if stderr is full."""
    with suppress(OSError):
        sys.stderr.write(f"mrfrec: {message}\n")


def written(path: str | Path) -> str:
    """Say that a file was written, with its size."""
    from mrfrec.core.engine import human_bytes  # imported here, since it loads numpy
    from mrfrec.io.atomic import expanded

    return f"wrote {path} ({human_bytes(expanded(path).stat().st_size)})"


class Stderr(logging.Handler):
    """Writes messages to stderr, one line each; a command may set another formatter."""

    formatter: logging.Formatter | None

    def emit(self, record: logging.LogRecord) -> None:
        with suppress(OSError):  # stderr is closed
            text = f"mrfrec: {' '.join(record.getMessage().split())}"
            sys.stderr.write((self.formatter.format(record) if self.formatter else text) + "\n")
