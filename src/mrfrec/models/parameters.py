"""Parameters of a model: those of its constructor, kept as attributes of the same names."""

import inspect
from typing import Any, ClassVar, Self, TypeVar

from mrfrec.checks import check_thread_count
from mrfrec.engines.machine import parse_bytes, usable_threads
from mrfrec.errors import ParameterError
from mrfrec.fitted.state import Runtime


class Parameterized:
    """A class whose constructor takes every parameter by name and keeps it as an attribute of that name."""

    machine_parameters: ClassVar[tuple[str, ...]] = ("threads", "memory_limit")  # they change no result
    threads: int | None = None
    memory_limit: int | None = None
    device: str = "cpu"

    # Public names for the package and for authors of models, which completion does not offer to users.
    _for_authors: ClassVar[frozenset[str]] = frozenset()

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__()} - self._for_authors)

    @classmethod
    def defaults(cls) -> dict[str, Any]:
        """Return the constructor's parameters and their defaults, `inspect.Parameter.empty` if required."""
        parameters = inspect.signature(cls).parameters
        for parameter in parameters.values():
            if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
                rule = f"a class whose constructor takes every parameter by name, and no {parameter.name!r}"
                raise ParameterError("model", rule, cls.__name__)
        return {name: parameter.default for name, parameter in parameters.items()}

    @property
    def parameters(self) -> dict[str, Any]:
        """The parameters as they are set now, without those that only concern the machine."""
        everything = self.get_params()
        return {name: value for name, value in everything.items() if name not in self.machine_parameters}

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return all parameters of the constructor. `deep` changes nothing; scikit-learn passes it."""
        names = self.defaults()
        missing = [name for name in names if not hasattr(self, name)]
        if missing:
            rule = f"a class that keeps each parameter as an attribute: its constructor sets no {missing[0]}"
            raise ParameterError("model", rule, type(self).__name__)
        return {name: getattr(self, name) for name in names}

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

    def __sklearn_tags__(self) -> Any:
        """Return what scikit-learn must know of a step of its pipelines: it is the one caller."""
        from sklearn.utils import InputTags, Tags, TargetTags

        targets, inputs = TargetTags(required=False), InputTags(sparse=True)
        return Tags(estimator_type=None, target_tags=targets, input_tags=inputs)

    def set_limits(self, threads: int | None, memory_limit: int | str | None) -> None:
        """Check and set `threads` and `memory_limit`."""
        self.threads = check_thread_count(threads)
        self.memory_limit = None if memory_limit is None else parse_bytes(memory_limit)


Model = TypeVar("Model", bound=Parameterized)


def unfitted(model: Model) -> Model:
    """Return a new model with the same parameters and nothing learned."""
    return type(model)(**model.get_params())


def call_of(model: Parameterized) -> str:
    """Return the constructor call of a model, with the parameters that differ from their defaults."""
    usual = model.defaults()
    changed = [f"{name}={value!r}" for name, value in model.get_params().items() if usual[name] != value]
    return f"{type(model).__name__}({', '.join(changed)})"


def runtime_of(model: Parameterized) -> Runtime:
    """Return what the answers of a model are computed with, by its parameters."""
    return Runtime(model.threads or usable_threads(), model.device)
