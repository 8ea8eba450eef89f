"""What is missing is named with the command that installs it."""

import json
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from types import SimpleNamespace

import pytest

from mrfrec.checks import how_to_install, missing_extra


@pytest.mark.parametrize(
    ("origin", "command"),
    [
        (None, 'pip install "mrfrec[sql]"'),  # of an index
        ({"dir_info": {"editable": True}}, 'pip install -e "{}[sql]"'),
        ({"dir_info": {}}, 'pip install "{}[sql]"'),
        ({"archive_info": {}}, 'pip install "{}[sql]"'),  # a wheel
        ({"url": "file:///gone/since", "dir_info": {}}, 'pip install ".[sql]" in a clone of mrfrec'),
        ({"url": "https://example.com/mrfrec", "vcs_info": {}}, 'pip install ".[sql]" in a clone of mrfrec'),
        ("nothing", 'pip install ".[sql]" in a clone of mrfrec'),  # on the path, not installed
    ],
)
def test_what_is_missing_is_installed_from_where_the_package_came(
    origin: object, command: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    place = tmp_path / "a clone"
    place.mkdir()

    def distribution(name: str) -> SimpleNamespace:
        if not isinstance(origin, dict | None):
            raise PackageNotFoundError(name)
        text = None if origin is None else json.dumps({"url": place.as_uri(), **origin})
        return SimpleNamespace(read_text=lambda file: {"direct_url.json": text}[file])

    monkeypatch.setattr("importlib.metadata.distribution", distribution)
    assert how_to_install("sql") == command.format(place)
    assert str(missing_extra("it needs this", "sql")) == f"it needs this: {command.format(place)}."
