"""The picture of docs/explanation/time.md, which tools/time_picture.py draws."""

import pytest
from tools.time_picture import OUTPUT, faded, picture, value

from mrfrec.core.ages import Recency


def test_picture_is_what_the_script_draws() -> None:
    assert picture() == OUTPUT.read_text(encoding="utf-8"), "run: python tools/time_picture.py"


def test_values_of_the_picture_are_those_that_the_page_names() -> None:
    assert faded(90, [90, 180], in_training=True) == pytest.approx([0.5, 0.25])
    assert faded(90, [90, 180], in_training=False) == pytest.approx([0.5**0.5, 0.5])
    assert value(Recency(recency=0.8), [1, 2]) == pytest.approx([0.8, 0.64])
