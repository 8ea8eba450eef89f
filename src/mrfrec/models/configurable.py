"""Constructor parameters: read, set, shown."""

import inspect
from typing import Any, ClassVar, Self

from mrfrec.errors import ParameterError


class Configurable:
    """An object whose constructor parameters are attributes of the same names, as scikit-learn expects."""

    # Parameters that change no result.
    _machine_parameters: ClassVar[tuple[str, ...]] = ("threads", "memory_limit")

    @classmethod
    def defaults(cls) -> dict[str, Any]:
        """Return the constructor's parameters and their defaults, `inspect.Parameter.empty` if required."""
        parameters = inspect.signature(cls).parameters
        for parameter in parameters.values():
            if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
                raise ParameterError(
                    "model",
                    "a class whose constructor takes every parameter by name",
                    cls.__name__,
                    f"Replace {str(parameter).split(':')[0]!r} with named parameters.",
                )
        return {name: parameter.default for name, parameter in parameters.items()}

    @property
    def parameters(self) -> dict[str, Any]:
        """The parameters as they are set now, without those that only concern the machine."""
        everything = self.get_params()
        return {name: value for name, value in everything.items() if name not in self._machine_parameters}

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return all parameters of the constructor. `deep` changes nothing; scikit-learn passes it."""
        missing = [name for name in self.defaults() if not hasattr(self, name)]
        if missing:
            raise ParameterError(
                "model",
                "a class that keeps each parameter as an attribute of the same name",
                type(self).__name__,
                f"Its constructor must set self.{missing[0]}.",
            )
        return {name: getattr(self, name) for name in self.defaults()}

    def unfitted(self) -> Self:
        """Return a new object with the same parameters and nothing learned."""
        return type(self)(**self.get_params())

    def set_params(self, **parameters: Any) -> Self:
        """Set parameters, under the rules of the constructor. They take effect with the next `fit`."""
        current = self.get_params()
        for name in parameters:
            if name not in current:
                known = ", ".join(current) or "none"
                raise ParameterError("parameters", f"among those of {type(self).__name__} ({known})", name)
        # All that a constructor sets, which may be more than its parameters; nothing of a fit is in there.
        self.__dict__.update(type(self)(**{**current, **parameters}).__dict__)
        return self

    @property
    def _call(self) -> str:
        """The constructor call, with the parameters that differ from their defaults."""
        usual = self.defaults()
        shown = [f"{name}={value!r}" for name, value in self.get_params().items() if usual[name] != value]
        return f"{type(self).__name__}({', '.join(shown)})"
