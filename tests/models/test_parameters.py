"""A parameter of the MRF is written in few places, and a new one needs no others."""

import ast
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import scipy.sparse as sp

import mrfrec
from mrfrec import MRF, load, register
from mrfrec.checks import check_number
from mrfrec.core import fitting
from mrfrec.core.plan import Settings
from mrfrec.errors import ParameterError
from mrfrec.models import registry
from mrfrec.models.mrf import fit, parameters
from mrfrec.models.mrf.parameters import RULES, Rule

SOURCE = Path(mrfrec.__file__).parent
MEASURING = {f"models/mrf/{name}.py" for name in ("measuring", "trials", "held_out", "scoring")}
MEASURING |= {"fitted/measured.py"}
CALLERS = {"cli/inspecting.py", "models/compiling.py"}  # they give parameters to models, as users do


@dataclass(frozen=True)
class WarmSettings(Settings):
    warmth: float = 0.0


class WarmMRF(MRF):
    """An MRF with one more parameter."""

    def __init__(self, *, warmth: float | Literal["auto"] = "auto", l2: float = 1.0) -> None:
        super().__init__(l2=l2, measure=False, rank=0)
        parameters.keep(self, {"warmth": warmth})


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Add the parameter `warmth`; return the settings that later fits of the core get."""
    settings: list[Any] = []
    of_core = fitting.fit

    def noted(X: Any, own: Any, *args: Any, **kwargs: Any) -> Any:
        settings.append(own)
        return of_core(X, own, *args, **kwargs)

    def between_0_and_9(name: str, value: object) -> float:
        return check_number(name, value, "between 0 and 9", lambda x: 0 <= x <= 9)

    monkeypatch.setitem(RULES, "warmth", Rule(between_0_and_9, ("auto",), start=0.25))
    monkeypatch.setattr(fit, "Settings", WarmSettings)
    monkeypatch.setattr(fitting, "fit", noted)
    monkeypatch.setattr(registry, "_registered", {})
    register(WarmMRF)
    return settings


def test_a_parameter_with_a_rule_and_a_setting_reaches_the_fit_its_values_and_files(
    seen: list[Any], tmp_path: Path
) -> None:
    X = sp.csr_array((np.random.default_rng(0).random((60, 9)) < 0.3).astype(np.float32))
    with pytest.raises(ParameterError, match="warmth must be between 0 and 9"):
        WarmMRF(warmth=10)
    model = WarmMRF(warmth=2, l2=3.0).fit(X)
    assert repr(model).startswith("WarmMRF(warmth=2.0, l2=3.0)")
    assert [each.warmth for each in seen] == [2.0]
    assert model.values_["warmth"] == 2.0
    model.save(tmp_path / "warm.mrf")
    assert load(tmp_path / "warm.mrf").values_ == model.values_
    assert WarmMRF(l2=3.0).fit(X).values_["warmth"] == 0.25  # where measuring would start


def names_in(path: Path) -> set[str]:
    """Return the variables, attributes, arguments and texts in the code of a file."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        names |= {str(getattr(node, part, "")) for part in ("id", "attr", "arg", "value")}
    return names


@pytest.mark.parametrize("name", ["half_life", "recency", "rank_weight", "feature_weight"])
def test_a_measured_parameter_stands_in_at_most_six_modules(name: str) -> None:
    paths = {path.relative_to(SOURCE).as_posix(): path for path in SOURCE.rglob("*.py")}
    found = [file for file, path in paths.items() if file not in MEASURING and name in names_in(path)]
    assert len([file for file in found if file not in CALLERS]) <= 6, found
