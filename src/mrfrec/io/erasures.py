"""The file of erasures beside a model, NAME.erased: it outlives each version of the model, and a restore."""

import json
import os
import re
from errno import ENAMETOOLONG, ENOENT
from pathlib import Path

from mrfrec.data.erasures import Erasures
from mrfrec.errors import ModelFileError
from mrfrec.io.atomic import keep_owner, writing, written_file

# The time in the names of the earlier models that a nightly job keeps, which share the file of the model.
_KEPT = re.compile(r"\.\d{8}T\d{6}\.\d+Z(?=\.[^.]*$|$)")


def erasures_file(model: str | os.PathLike[str]) -> Path:
    """Return the file beside a model, or beside the target of a link."""
    target = written_file(model)
    return target.with_name(f"{_KEPT.sub('', target.name)}.erased")


def read_erasures(model: str | os.PathLike[str]) -> Erasures | None:
    """Read the file beside a model; None if there is none.

    Raise a `ModelFileError` if it cannot be read, and a `PermissionError` if this user may not.
    """
    path = erasures_file(model)
    try:
        return Erasures.of_facts(json.loads(path.read_bytes()))
    except PermissionError:
        raise
    except (OSError, ValueError, TypeError, AttributeError, RecursionError) as error:
        if isinstance(error, OSError) and error.errno in (ENOENT, ENAMETOOLONG):
            return None
        raise ModelFileError(
            f"{path} does not hold the people who were forgotten, as mrfrec forget writes them. Restore it "
            "from a back-up: without it, they may come back with old events."
        ) from error


def write_erasures(model: str | os.PathLike[str], erasures: Erasures) -> None:
    """Add erasures to the file beside a model, which only its owner can read."""
    if not len(erasures) or not erasures.beyond(old := read_erasures(model) or Erasures()):
        return
    path, target = erasures_file(model), written_file(model)
    with writing(path, mode=0o600) as unfinished:
        unfinished.write_text(json.dumps(erasures.joined(old).days, indent=1, sort_keys=True) + "\n")
        if target.exists():
            keep_owner(target, unfinished)
