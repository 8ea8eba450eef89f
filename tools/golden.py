"""Record what the package computes and shows, and compare later code with it.

    python tools/golden.py record before.npz            # before a change that must keep results
    python tools/golden.py compare before.npz           # after it; exits with 1 if anything differs
    python tools/golden.py compare before.npz shop      # only the cases whose names begin with "shop"

A case is a model fitted to the Debian data or to drawn data. The corpus holds the weights of each case, its
answers for all users to eight questions, its explanations, and every array of the saved file. It also holds
the help of all commands, the description of the HTTP API and the keys of a nightly job. Record and compare on
the same machine: bits depend on its BLAS. Arrays of more than 4,000 elements are kept as a hash and a sample.
"""

import hashlib
import json
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from safetensors.numpy import load_file

import mrfrec

_LARGE = 4_000  # elements; larger arrays are kept as a hash and a sample
Corpus = dict[str, Any]


def main() -> int:
    command, path, *prefixes = sys.argv[1:]
    chosen = tuple(prefixes) or ("",)
    if command == "record":
        np.savez_compressed(path, **dict(_corpus(chosen)))
        return 0
    with np.load(path) as stored:
        before = {name: stored[name] for name in stored.files if name.startswith(chosen)}
    return _compare(before, dict(_corpus(chosen)))


def _compare(before: Corpus, after: Corpus) -> int:
    """Print what differs, and return 1 if anything does."""
    same = different = 0
    for name in sorted({*before, *after}):
        verdict = _verdict(before.get(name), after.get(name))
        same, different = (same + 1, different) if verdict is None else (same, different + 1)
        if verdict is not None:
            sys.stdout.write(f"{name}: {verdict}\n")
    sys.stdout.write(f"{same} equal, {different} different\n")
    return int(different > 0)


def _verdict(a: Any, b: Any) -> str | None:
    """Return how two entries of a corpus differ; None if they are equal."""
    if a is None or b is None:
        return "only before" if b is None else "only now"
    if a.shape != b.shape or a.dtype.kind != b.dtype.kind:
        return f"{a.dtype}{a.shape} → {b.dtype}{b.shape}"
    if a.tobytes() == b.tobytes():
        return None
    if a.dtype.kind == "U":
        lines = zip(str(a).splitlines(), str(b).splitlines(), strict=False)
        first = next((f"{x!r} → {y!r}" for x, y in lines if x != y), "one has more lines")
        return f"text differs: {first}"
    if a.dtype.kind == "f":
        finite = np.isfinite(a) & np.isfinite(b)
        largest = np.abs(a[finite].astype(np.float64) - b[finite]).max(initial=0.0)
        return f"{(a != b).mean():.2%} of the numbers differ, by up to {largest:.3g}"
    return f"{(a != b).mean():.2%} of the elements differ"


# ── the data ──────────────────────────────────────────────────────────────────────────────────────


def _shop() -> pl.DataFrame:
    """Visits with times and text ids: people like a group of items, which changes halfway."""
    rng = np.random.default_rng(0)
    rows = []
    for user in range(700):
        group, start = int(rng.integers(0, 12)), int(rng.integers(0, 900))
        length = int(rng.integers(4, 16))
        for step in range(length):
            taste = group if step < length / 2 else (group + 5) % 12
            item = (
                20 * taste + int(20 * rng.random() ** 1.5) if rng.random() < 0.8 else int(240 * rng.random())
            )
            rows.append((f"u{user:03}", f"item-{item:03}", 1_600_000_000 + 86_400 * start + 60 * step))
    return pl.DataFrame(rows, schema=["user", "item", "timestamp"], orient="row")


def _ratings() -> pl.DataFrame:
    """Ratings with integer ids, some of them negative."""
    rng = np.random.default_rng(1)
    user, item = rng.integers(0, 500, 9000), (180 * rng.random(9000) ** 2).astype(int)
    liked = (user + item) % 6 < 2
    rating = np.where(liked, rng.integers(3, 6, 9000), rng.integers(-1, 3, 9000))
    kept = liked | (rng.random(9000) < 0.4)
    return pl.DataFrame({"user": user[kept] + 10, "item": item[kept] + 2**40, "rating": rating[kept]})


def _columns_of(items: list[Any]) -> pl.DataFrame:
    """A table of items with columns that rules can use."""
    rng = np.random.default_rng(2)
    n = len(items)
    return pl.DataFrame({
        "item": items, "brand": [f"brand {x}" for x in rng.integers(0, 12, n)],
        "price": rng.integers(100, 9999, n) / 100, "in_stock": rng.random(n) < 0.7,
    })  # fmt: skip


def _features_of(items: list[str]) -> pl.DataFrame:
    """Features of the items of the shop, with eight more that nobody has used."""
    names = [*items, *(f"new-{x}" for x in range(8))]
    group = [f"group {int(x[5:]) // 20}" if x.startswith("item") else f"group {int(x[4:])}" for x in names]
    color = [["red", "blue", "green"][(7 * place) % 3] for place in range(len(names))]
    return pl.DataFrame({"item": names, "group": group, "color": color})


# ── the cases ─────────────────────────────────────────────────────────────────────────────────────

_PAPER: dict[str, dict[str, Any]] = {
    "dense": {}, "dense float64": {"dtype": "float64"}, "dense alpha=0.25": {"alpha": 0.25, "l2": 2.0},
    "dense user_weight": {"user_weight": 0.5}, "dense offset": {"offset": True},
    "dense mean_constraint": {"mean_constraint": True},
    "dense low rank": {"rank": 32, "rank_weight": 0.3}, "dense novelty": {"novelty": 0.2},
    "sparse": {"sparsity": 0.02, "l2": 1.0}, "sparse r=0.5": {"sparsity": 0.02, "l2": 1.0, "r": 0.5},
    "sparse float64 r=0.3": {"sparsity": 0.02, "l2": 1.0, "dtype": "float64", "r": 0.3},
    "sparse capped": {"sparsity": 0.05, "max_neighbors": 30},
    "sparse user_weight": {"sparsity": 0.02, "user_weight": 0.5},
    "sparse low rank": {"sparsity": 0.02, "rank": 32, "rank_weight": 0.3, "offset": True},
}  # fmt: skip
_TIMED: dict[str, dict[str, Any]] = {
    "ordered": {"order": 0.3, "recency": 0.5}, "fading": {"half_life": "90d", "recency": 0.8},
    "ordered sparse": {"order": 0.3, "recency": 0.5, "sparsity": 0.1, "r": 0.3},
    "fading low rank": {"half_life": "90d", "rank": 16, "rank_weight": 0.3},
}  # fmt: skip
_OTHERS = ("EASE", "EDLAE", "ItemKNN", "Popularity")


def _cases() -> Iterator[tuple[str, Callable[[], Any]]]:
    """Yield the name of each case and a function that fits its model."""
    debian = mrfrec.datasets.load("debian")
    shop = mrfrec.read_interactions(_shop())
    ratings = mrfrec.read_interactions(_ratings(), binary=False)
    paper, models = mrfrec.MRF.paper, mrfrec.models

    def fit(make: Callable[..., Any], data: Any, **options: Any) -> Callable[[], Any]:
        return lambda: make(**options).fit(data, items=_columns_of(list(data.items)))

    for name, data in (("debian", debian), ("shop", shop), ("ratings", ratings)):
        for form, options in _PAPER.items():
            yield f"{name} {form}", fit(paper, data, **options)
        yield f"{name} MRF() not measured", fit(mrfrec.MRF, data, measure=False)
        yield f"{name} MRF()", fit(mrfrec.MRF, data)
        for kind in _OTHERS:
            yield f"{name} {kind}", fit(getattr(models, kind), data)
    for form, options in _TIMED.items():
        yield f"shop {form}", fit(paper, shop, **options)

    items = [str(item) for item in shop.items]
    features = _features_of(items)

    def with_features(table: pl.DataFrame, **options: Any) -> Any:
        model = mrfrec.MRF(**options)
        return model.fit(shop, item_features=table, items=_columns_of(table["item"].to_list()))

    def with_added() -> Any:
        model = with_features(features.head(len(items)), measure=False)
        model.add_items(features)
        return model

    yield "shop features", lambda: with_features(features.head(len(items)), measure=False)
    yield "shop features measured", lambda: with_features(features.head(len(items)))
    yield "shop new items", lambda: with_features(features, measure=False)
    yield "shop new items sparse", lambda: with_features(features, measure=False, sparsity=0.1)
    yield "shop new items added", with_added

    half = _shop().with_row_index().filter(pl.col("index") % 3 > 0).drop("index")
    rest = _shop().with_row_index().filter(pl.col("index") % 3 == 0).drop("index")

    def updated() -> Any:
        return paper().fit(half, items=_columns_of(items)).update(rest)

    yield "shop updated", updated
    yield "shop forgotten", lambda: updated().forget(["u000", "u010"])


_QUESTIONS: dict[str, dict[str, Any]] = {
    "plain": {}, "seen": {"exclude_seen": False, "k": 20}, "novelty": {"novelty": 0.4},
    "because": {"explain": 3, "k": 5}, "where": {"where": "price < 50 AND in_stock"},
    "at most": {"at_most": {"brand": 2}, "where": {"in_stock": True}},
    "boost": {"boost": {"add": "price"}}, "variety": {"variety": 0.5},
}  # fmt: skip


def _corpus(chosen: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
    yield from ((name, text) for name, text in _surface() if name.startswith(chosen))
    for name, fit in _cases():
        if not name.startswith(chosen):
            continue
        sys.stderr.write(f"{name}\n")
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                yield from _entries(name, fit())
        except (mrfrec.MrfrecError, TypeError) as error:
            yield f"{name}: error", np.array(str(error))


def _entries(name: str, model: Any) -> Iterator[tuple[str, Any]]:
    """Yield what the corpus holds of one model."""
    if hasattr(model, "weights_"):
        B: Any = model.weights_
        parts = (
            {"B": B} if isinstance(B, np.ndarray) else {"B ptr": B.indptr, "B items": B.indices, "B": B.data}
        )
        for part, array in parts.items():
            yield from _array(f"{name}: {part}", array)
    if getattr(model, "measured_", None) is not None:
        yield f"{name}: measured", np.array(str(model.measured_))
    for question, options in _QUESTIONS.items():
        try:
            yield from _table(f"{name}: {question}", model.recommend(**options))
        except mrfrec.MrfrecError as error:
            yield f"{name}: {question}", np.array(str(error))
    people = model.users_.take(np.arange(0, len(model.users_), max(len(model.users_) // 5, 1)))
    history = list(model.items_)[3:60:9]
    if model.explains:
        asked: dict[str, dict[str, Any]] = {f"user {x}": {"user": x} for x in people}
        for title, options in {**asked, "history": {"history": history}}.items():
            for item in (list(model.items_)[1], list(model.items_)[-1]):
                yield from _table(f"{name}: explain {item} to {title}", model.explain(item, **options))
        yield from _table(f"{name}: similar", model.similar_items(list(model.items_)[::29]))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.mrf"
        model.save(path, include_histories=True)
        for array, values in load_file(path).items():
            yield from _array(f"{name}: file {array}", values)
        again = mrfrec.load(path)
        yield from _table(f"{name}: loaded", again.recommend(list(people), explain=2))
        yield from _table(f"{name}: loaded, history", again.recommend(history=history, k=20))


def _table(name: str, table: pl.DataFrame) -> Iterator[tuple[str, Any]]:
    """Yield the columns of a table; texts as a hash of each column."""
    for column in table.columns:
        values = table[column]
        if values.dtype.is_numeric() and not values.null_count():
            yield from _array(f"{name}: {column}", values.to_numpy())
        else:
            text = json.dumps([str(value) for value in values.to_list()])
            yield f"{name}: {column}", np.array(hashlib.sha256(text.encode()).hexdigest())


def _array(name: str, array: Any) -> Iterator[tuple[str, Any]]:
    values = np.ascontiguousarray(array)
    if values.size <= _LARGE:
        yield name, values
        return
    yield f"{name} (hash)", np.array(hashlib.sha256(values.tobytes()).hexdigest())
    yield f"{name} (sample)", values.reshape(-1)[:: values.size // 1_000 + 1].copy()


# ── what users see besides results ────────────────────────────────────────────────────────────────


def _surface() -> Iterator[tuple[str, Any]]:
    from mrfrec.nightly import Job
    from mrfrec.service import create_app

    def said(*words: str) -> str:
        command = [sys.executable, "-m", "mrfrec", *words, "--help"]
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout

    text = said()
    yield "help", np.array(text)
    for command in sorted(_commands_in(text)):
        yield f"help {command}", np.array(said(command))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "shop.mrf"
        mrfrec.MRF.paper().fit(_shop()).save(path)
        for route, operation in sorted(create_app(path).openapi()["paths"].items()):
            yield f"HTTP {route}", np.array(json.dumps(operation, indent=1, sort_keys=True))
        for part, schema in sorted(create_app(path).openapi()["components"]["schemas"].items()):
            yield f"HTTP schema {part}", np.array(json.dumps(schema, indent=1, sort_keys=True))
    yield "keys of a job", np.array("\n".join(_keys(Job.model_json_schema())))


def _commands_in(text: str) -> set[str]:
    """Return the words that begin the lines below the headings of `mrfrec --help`."""
    found = set()
    for line in text.replace("│", " ").splitlines():
        words = line.split()
        if words and line.startswith("  ") and words[0].replace("-", "").isalpha() and words[0].islower():
            found.add(words[0])
    return {word for word in found if not word.startswith("-")}


def _keys(schema: Mapping[str, Any]) -> list[str]:
    """Return the names of all fields in a JSON schema, by section."""
    sections = {"": schema, **schema.get("$defs", {})}
    return sorted(f"{section}.{key}" for section, of in sections.items() for key in of.get("properties", {}))


if __name__ == "__main__":
    sys.exit(main())
