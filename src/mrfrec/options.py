"""Options that are fields of a dataclass, each with its help and its limits."""

from dataclasses import field
from typing import Any


def option(default: Any, text: str, *, least: float | None = None, most: float | None = None) -> Any:
    """Declare a field: its default, a sentence of help, and the least and the most that its value may be.

    The command line and the description of the service show them, from the metadata of the field.
    """
    return field(default=default, metadata={"help": text, "least": least, "most": most})
