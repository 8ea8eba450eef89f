"""An option is written once: its check, its option of the shell and its help come from a field."""

import inspect
from typing import Annotated, Any

import numpy as np
import pytest
from pydantic import Field

from mrfrec import ParameterError, read_interactions
from mrfrec.answers.question import Question
from mrfrec.cli.derived import Derived, takes_options
from mrfrec.data.reading_options import TableOptions
from mrfrec.options import USUAL, Options, Shell
from mrfrec.service import ServiceSettings


class Calm(Question):
    """A question with one more option."""

    calm: Annotated[float, USUAL] = Field(0.5, ge=0, le=1, description="How quiet the items are.")


class Own(Options):
    """The options of a command."""

    table: Annotated[str, Shell("-t --table", "NAME")] = Field(description="Name of the table.")
    often: int = Field(3, ge=1, description="How often.")


def options_of(command: Any) -> dict[str, Any]:
    parameters = inspect.signature(takes_options(command)).parameters
    return {name: each.annotation.__metadata__[0] for name, each in parameters.items()}


def flags(option: Any) -> list[str]:
    """The spellings of an option: in an annotation, typer takes the first one for a default."""
    return [option.default, *option.param_decls]


def test_a_new_option_of_a_question_is_checked_and_is_an_option_of_the_shell() -> None:
    assert Calm.of(calm=np.float32(1)).calm == 1.0
    with pytest.raises(ParameterError, match=r"^calm must be between 0 and 1; got 2\.$"):
        Calm.of(calm=2)
    taken: list[Any] = []

    def command(asked: Annotated[dict[str, Any], Derived(Calm, only=("calm", "k"))]) -> None:
        taken.append(asked)

    shown = options_of(command)["calm_"]
    assert flags(shown) == ["--calm"]
    assert shown.help == "How quiet the items are.  [default: 0.5]"
    assert shown.rich_help_panel == "Rules"  # without a plus, which hides it from --help
    takes_options(command)(calm_=0.25, k_=None)
    assert taken == [{"calm": 0.25}]


def test_a_new_option_of_a_command_is_a_field_of_its_class() -> None:
    taken: list[Own] = []

    def command(own: Own) -> None:
        taken.append(own)

    shown = options_of(command)
    assert flags(shown["table"]) == ["-t", "--table"]
    assert (shown["often"].help, shown["often"].rich_help_panel) == ("How often.  [default: 3]", "Options+")
    takes_options(command)(table="x", often=None)
    assert taken == [Own.of(table="x")]
    with pytest.raises(ParameterError, match=r"^often must be a whole number, 1 or more; got 0\.$"):
        takes_options(command)(table="x", often=0)


def test_every_option_of_reading_is_a_parameter_with_the_same_default() -> None:
    parameters = dict(inspect.signature(read_interactions).parameters)
    assert parameters.keys() - TableOptions.model_fields.keys() == {"source", "progress"}
    for name, field in TableOptions.model_fields.items():
        assert parameters[name].default == field.default, name


@pytest.mark.parametrize("options", [Question, TableOptions, ServiceSettings])
def test_every_option_has_a_sentence(options: type[Options]) -> None:
    for name, field in options.model_fields.items():
        assert (field.description or "").endswith("."), name


def test_a_misspelt_option_names_the_near_one() -> None:
    with pytest.raises(ParameterError, match=r"Did you mean variety\?"):
        Question.of(varyety=0.5)
