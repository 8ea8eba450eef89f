"""Data to try things on."""

from importlib.resources import as_file, files
from typing import TYPE_CHECKING

from mrfrec.errors import ParameterError

if TYPE_CHECKING:
    from mrfrec.interactions import Interactions

__all__ = ["load"]

_EMBEDDED = ("debian",)


def load(name: str) -> "Interactions":
    """A data set that comes with the package.

    "debian": the source packages of Debian 12 as users, what each is built with as items, the packages'
    one-line descriptions as titles; users and items with at least five of the other. Made by
    tools/build_debian.py from Debian's package index.
    """
    from mrfrec.io.tables import read_interactions

    if name not in _EMBEDDED:
        raise ParameterError("name", f"one of {', '.join(map(repr, _EMBEDDED))}", name)
    with as_file(files("mrfrec.datasets") / f"{name}.parquet") as path:
        return read_interactions(path)
