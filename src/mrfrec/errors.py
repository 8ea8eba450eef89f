"""Every error the package raises.

    MrfrecError
    ├── ParameterError      a parameter breaks its rule          (also a ValueError)
    ├── DataError           the data cannot be used as it is     (also a ValueError)
    ├── NotFittedError      a result was asked for before fit    (also a RuntimeError)
    ├── MemoryPlanError     the fit would not fit in memory      (also a MemoryError)
    ├── ModelFileError      a model cannot be read or written    (also a ValueError)
    ├── MissingLibraryError an extra is not installed            (also an ImportError)
    └── NumericalError      a matrix could not be factorised     (also an ArithmeticError)

Each message names what was given, the rule it breaks, and what to do. What is only worth knowing
(unknown items in a history, fewer items than asked for) is a `MrfrecWarning`.
"""

from typing import Any

__all__ = [
    "DataError",
    "MemoryPlanError",
    "MissingLibraryError",
    "ModelFileError",
    "MrfrecError",
    "MrfrecWarning",
    "NotFittedError",
    "NumericalError",
    "ParameterError",
]


class MrfrecError(Exception):
    """The root of the tree: catches everything the package raises on purpose."""


class ParameterError(MrfrecError, ValueError):
    """A parameter breaks its rule."""

    def __init__(self, name: str, rule: str, value: object, advice: str = "") -> None:
        self.name = name
        self.value = value
        self._given = (name, rule, value, advice)
        super().__init__(f"{name} must be {rule}; got {value!r}." + (f" {advice}" if advice else ""))

    def named(self, name: str) -> "ParameterError":
        """The same of a parameter with another name: an option, where people type one."""
        return ParameterError(name, *self._given[1:])

    def __reduce__(self) -> tuple[Any, ...]:  # so that it can cross from one process to another
        return type(self), self._given


class DataError(MrfrecError, ValueError):
    """The data cannot be used as it is; nothing was changed or dropped."""


class MissingLibraryError(MrfrecError, ImportError):
    """What was asked for needs a library that is not installed; the message says how to get it."""


class NotFittedError(MrfrecError, RuntimeError):
    """A result was asked for before `fit`."""


class MemoryPlanError(MrfrecError, MemoryError):
    """The fit needs more memory than it may use; it was refused before memory ran out."""

    def __init__(self, message: str, needed: int, limit: int) -> None:
        self.needed = needed
        self.limit = limit
        super().__init__(message)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (str(self), self.needed, self.limit)


class ModelFileError(MrfrecError, ValueError):
    """A file is not a whole, unaltered model that this version can read; or one could not be written."""


class NumericalError(MrfrecError, ArithmeticError):
    """A matrix that must be positive definite is not, to the precision in use."""


class MrfrecWarning(UserWarning):
    """The result is what was asked for, as far as it goes; here is what was left out."""
