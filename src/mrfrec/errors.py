"""The errors the package raises.

    MrfrecError
    ├── ParameterError      a parameter has an invalid value     (also a ValueError)
    ├── DataError           the data cannot be used              (also a ValueError)
    │   └── EmptyTableError a table has no rows
    ├── NotFittedError      the model is not fitted              (also a RuntimeError)
    ├── MemoryPlanError     a fit would exceed the memory limit  (also a MemoryError)
    ├── ModelFileError      a model file is invalid              (also a ValueError)
    ├── MissingLibraryError an optional library is missing       (also an ImportError)
    ├── RefusedError        a guard refuses to publish a model   (also a RuntimeError)
    ├── BusyError           another process is at work           (also a RuntimeError)
    ├── ServiceError        a service cannot run                 (also a RuntimeError)
    └── NumericalError      a matrix is not positive definite    (also an ArithmeticError)

Each message names the value, the rule it breaks and what to do. Unknown items in a history or too few items
to recommend cause a `MrfrecWarning` instead.
"""

from typing import Any

__all__ = [
    "BusyError",
    "DataError",
    "EmptyTableError",
    "MemoryPlanError",
    "MissingLibraryError",
    "ModelFileError",
    "MrfrecError",
    "MrfrecWarning",
    "NotFittedError",
    "NumericalError",
    "ParameterError",
    "RefusedError",
    "ServiceError",
]


class MrfrecError(Exception):
    """Base class of all errors of this package."""


class ParameterError(MrfrecError, ValueError):
    """A parameter has an invalid value. The message names the parameter, the rule and the value."""

    def __init__(self, name: str, rule: str, value: object, advice: str = "") -> None:
        self.name = name
        self.value = value
        self._arguments = (name, rule, value, advice)
        super().__init__(f"{name} must be {rule}; got {value!r}." + (f" {advice}" if advice else ""))

    def named(self, name: str, *value: object, advice: str | None = None) -> "ParameterError":
        """Return a copy with another name, such as that of a command-line option, another value or advice."""
        _, rule, old_value, old_advice = self._arguments
        new_value = value[0] if value else old_value
        return ParameterError(name, rule, new_value, old_advice if advice is None else advice)

    def __reduce__(self) -> tuple[Any, ...]:  # so that it can be pickled despite its own signature
        return type(self), self._arguments


class DataError(MrfrecError, ValueError):
    """The data cannot be used as it is. Nothing was changed or dropped."""


class EmptyTableError(DataError):
    """A table has no rows at all."""


class MissingLibraryError(MrfrecError, ImportError):
    """An optional library is not installed. The message says which extra to install."""


class RefusedError(MrfrecError, RuntimeError):
    """The guard of a nightly job refuses to publish a model. What was published before stays."""


class BusyError(MrfrecError, RuntimeError):
    """Another run of the same nightly job is at work, or another process rewrites the model file."""


class ServiceError(MrfrecError, RuntimeError):
    """A service cannot run on this machine."""


class NotFittedError(MrfrecError, RuntimeError, AttributeError):
    """The model has not been fitted: it has none of the attributes that end with an underscore."""


class MemoryPlanError(MrfrecError, MemoryError):
    """The fit would need more memory (`needed`, bytes) than it may use (`limit`, bytes)."""

    def __init__(self, message: str, needed: int, limit: int) -> None:
        self.needed = needed
        self.limit = limit
        super().__init__(message)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (str(self), self.needed, self.limit)


class ModelFileError(MrfrecError, ValueError):
    """A model file is incomplete, altered or of a newer format, or could not be written."""


class NumericalError(MrfrecError, ArithmeticError):
    """A matrix that must be positive definite is not, at the working precision."""


class MrfrecWarning(UserWarning):
    """The result is usable but incomplete; the message says what was left out."""
