"""After `forget`, no byte of the forgotten is in the model file: no id, and nothing that only they used."""

import json
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import polars as pl
import pytest

import mrfrec
from mrfrec.cli.app import run as run_command

MODELS: dict[str, list[str]] = {
    "dense": [],
    "sparse": ["--sparsity", "0.2"],
    "low rank": ["--sparsity", "0.2", "--rank", "4", "--rank-weight", "0.5"],
}


def events(kind: str) -> tuple[pl.DataFrame, list[Any], list[Any], list[str]]:
    """A table, the users to forget, and the ids and titles of items that nobody else used."""
    rng = np.random.default_rng(7)
    users: list[Any] = rng.choice(2**62, 80, replace=False).tolist()
    items: list[Any] = rng.choice(2**62, 40, replace=False).tolist()
    if kind == "strings":
        users = [f"müller-{user:x}@example.org" for user in users]
        items = [f"sku/{item:x}" for item in items]
    titles = [f"Título №{number} {rng.integers(2**60):x}" for number in range(40)]
    user, item = rng.integers(0, 80, 1500), rng.integers(0, 30, 1500)
    user, item = np.append(user, np.arange(10)), np.append(item, 30 + np.arange(10))  # their own items
    order = rng.permutation(len(user))
    user, item = user[order], item[order]
    columns = {
        "user": [users[u] for u in user], "item": [items[i] for i in item], "title": [titles[i] for i in item]
    }  # fmt: skip
    return pl.DataFrame(columns), users[:10], items[30:], titles[30:]


def forms(value: Any) -> list[bytes]:
    """All ways in which an id or a title may stand in a file."""
    texts = [
        str(value),
        json.dumps(value).strip('"'),
        f"{value:x}" if isinstance(value, int) else repr(value),
    ]
    found = [text.encode(code) for text in texts for code in ("utf-8", "utf-16-le", "utf-32-le")]
    if isinstance(value, int):
        found += [value.to_bytes(8, "little"), value.to_bytes(8, "big"), np.float64(value).tobytes()]
    return found


def traces(path: Path, values: list[Any]) -> list[Any]:
    content = path.read_bytes()
    return [value for value in values if any(form in content for form in forms(value))]


@pytest.mark.parametrize("in_place", [True, False])
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("kind", ["strings", "integers"])
def test_no_byte_of_the_forgotten_is_in_the_file(
    kind: str, model: str, in_place: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    table, users, items, titles = events(kind)
    table[:1000].write_parquet("first.parquet")
    table[1000:].write_parquet("second.parquet")
    run_command(["fit", "first.parquet", "-o", "m.mrf", "--histories", *MODELS[model]], Event())
    run_command(["update", "m.mrf", "second.parquet", "--batch", "tuesday"], Event())
    secrets = [*users, *items, *titles]
    assert traces(Path("m.mrf"), secrets) == secrets  # the search finds what is there
    Path("erased.txt").write_text("\n".join(map(str, users)))
    output = "m.mrf" if in_place else "new.mrf"
    run_command(["forget", "m.mrf", "--users", "erased.txt", "-o", output], Event())
    assert traces(Path(output), secrets) == []
    assert {path.name for path in Path().iterdir() if path.suffix == ".mrf"} == {"m.mrf", output}
    others = table.filter(~pl.col("user").is_in(users))
    assert len(traces(Path(output), others["user"].unique().to_list())) == 70
    opened = mrfrec.load(output)
    assert opened.batches_[1] == "tuesday"
    assert opened.data_size_.pairs == others.unique(["user", "item"]).height
