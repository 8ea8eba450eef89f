"""What tools/structure.py counts stays as small as the design wants it."""

from tools.structure import levels


def test_classes_have_at_most_three_levels() -> None:
    count, chain = levels()
    assert count <= 3, chain
