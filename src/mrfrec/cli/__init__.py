"""The command line: `mrfrec`, or `python -m mrfrec`."""

import logging
import os
import sys
import traceback
import warnings
from typing import TextIO

from mrfrec.errors import MrfrecError

__all__ = ["main"]


def main() -> None:
    """Run one command: results on stdout, the rest on stderr; an error is one line, and exit code 2."""
    arguments = [argument for argument in sys.argv[1:] if argument != "--debug"]
    sys.exit(_run(arguments, debug=len(arguments) < len(sys.argv) - 1))


def _run(arguments: list[str], debug: bool) -> int:
    warnings.showwarning = _show_warning
    log = logging.getLogger("mrfrec")
    log.addHandler(_Notes())
    log.setLevel(logging.INFO)
    try:
        from mrfrec.cli.app import app

        code = app(arguments, prog_name="mrfrec", standalone_mode=False)
        sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except BrokenPipeError:  # `mrfrec … | head`: the reader has had enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (KeyboardInterrupt, Exception) as error:
        if debug:
            traceback.print_exc()
        name = type(error).__name__
        if isinstance(error, KeyboardInterrupt) or name == "Abort":
            return _say("interrupted; nothing was left half-written.", 130)
        if isinstance(error, MrfrecError | OSError):
            return _say(str(error), 2)
        if hasattr(error, "format_message"):  # wrong usage, in the words of the library that found out
            return _say(f"{error.format_message()} See mrfrec --help.", 2)
        return _say(f"unexpected {name}: {error}. This is a fault of mrfrec; --debug shows where.", 1)


def _say(message: str, code: int = 0) -> int:
    sys.stderr.write("mrfrec: " + " ".join(message.split()) + "\n")
    return code


class _Notes(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        _say(record.getMessage())


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    _say(f"note: {message}")
