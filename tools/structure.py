"""Count what a maintainer has to read: the modules of three flows, and the places that know a parameter.

    python tools/structure.py

It prints how many modules of the package take part in a fit from a file, in a recommendation with rules, and
in a request of the service; in how many modules a measured parameter stands; how many levels of classes there
are; and in which styles options are declared. A module takes part if one of its functions is called. Machine
code is not seen. With -v, the modules are listed.
"""

import ast
import importlib.util
import inspect
import re
import sys
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import polars as pl

import mrfrec

SOURCES = Path(mrfrec.__file__).parent
# l2 and novelty are parameters of other models and of questions too, and order is an ordinary word.
MEASURED = ("user_weight", "half_life", "recency", "rank_weight", "feature_weight")


@contextmanager
def called() -> Iterator[set[str]]:
    """Collect the modules of the package whose functions are called, in any thread."""
    modules: set[str] = set()

    def note(frame: FrameType, event: str, _: Any) -> None:
        name = frame.f_globals.get("__name__", "")
        # Running the body of a module or of a class is part of an import.
        if event == "call" and name.startswith("mrfrec.") and frame.f_code.co_flags & inspect.CO_OPTIMIZED:
            modules.add(name)

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        yield modules
    finally:
        sys.setprofile(None)
        threading.setprofile(None)


def flows(folder: Path) -> Iterator[tuple[str, set[str]]]:
    """Yield the name and the modules of each flow."""
    rng = np.random.default_rng(0)
    users, items = rng.integers(0, 2000, 20_000), rng.zipf(1.3, 20_000) % 300
    events = pl.DataFrame({"user": users, "item": items}).unique(maintain_order=True)
    events.write_csv(folder / "events.csv")
    table = pl.DataFrame({"item": range(300), "price": rng.random(300), "brand": rng.integers(0, 9, 300)})
    # The first call of anything also imports, and an import may call functions.
    mrfrec.MRF().fit(str(folder / "events.csv"))
    with called() as modules:
        mrfrec.MRF().fit(str(folder / "events.csv"))
    yield 'MRF().fit("events.csv")', modules
    model = mrfrec.MRF(measure=False).fit(folder / "events.csv", items=table)
    question: dict[str, Any] = {"users": [1, 2], "where": "price < 0.5", "at_most": {"brand": 2}}
    model.recommend(**question)
    with called() as modules:
        model.recommend(**question)
    yield "recommend(users=…, where=…, at_most=…)", modules
    yield "POST /v1/recommend", _modules_of_a_request(model, folder / "shop.mrf")


def _modules_of_a_request(model: Any, path: Path) -> set[str]:
    """Return the modules that a request of the service passes."""
    from fastapi.testclient import TestClient

    from mrfrec.service import create_app

    model.save(path)
    with TestClient(create_app(path), base_url="http://localhost") as client:
        client.post("/v1/recommend", json={"history": [1, 2, 3], "reasons": 2})
        # The client calls the application in a thread that runs already.
        with _profiled_portal(client) as modules:
            answer = client.post("/v1/recommend", json={"history": [1, 2, 3], "reasons": 2})
    if answer.status_code != 200:
        raise SystemExit(f"the service answered {answer.status_code}: {answer.text}")
    return modules


@contextmanager
def _profiled_portal(client: Any) -> Iterator[set[str]]:
    """Collect modules in the thread of the application, in which the profiler is set and unset."""
    with called() as modules:
        note = sys.getprofile()
        client.portal.call(sys.setprofile, note)
        try:
            yield modules
        finally:
            client.portal.call(sys.setprofile, None)


def modules_naming(word: str) -> list[str]:
    """Return the modules in which a word stands, code and sentences alike."""
    found = (path for path in sorted(SOURCES.rglob("*.py")) if re.search(rf"\b{word}\b", path.read_text()))
    return [str(path.relative_to(SOURCES)) for path in found]


def levels() -> tuple[int, str]:
    """Return the length of the longest chain of classes of the package, and the chain."""
    parents: dict[str, list[str]] = {}
    for path in SOURCES.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                parents[node.name] = [ast.unparse(base).split(".")[-1].split("[")[0] for base in node.bases]

    def chain(name: str) -> list[str]:
        known = [base for base in parents[name] if base in parents and base != name]
        return [name, *max((chain(base) for base in known), key=len, default=[])]

    longest = max(map(chain, parents), key=len)
    return len(longest), " → ".join(reversed(longest))


STYLES: dict[str, str] = {
    "constructor with a docstring and checks": r"def __init__\(\s*self,\s*\*,",
    "field of a class of pydantic": r"= Field\(|: Annotated\[.*Field\(",
    "field with metadata": r"= option\(",
    "plain dataclass with a table of choices": r"^_CHOICES",
    "table of rules of parameters": r"^RULES\b",
    "model of pydantic that is created": r"create_model\(",
    "annotated parameter of a command": r"Annotated\[[^\]]*\"[A-Z]|Option\(",
    "limits set by a method": r"_set_limits|set_limits\(",
}


def styles() -> dict[str, int]:
    """Return in how many modules options are declared in each style."""
    texts = [path.read_text() for path in SOURCES.rglob("*.py")]
    counts = {
        name: sum(bool(re.search(pattern, text, re.MULTILINE)) for text in texts)
        for name, pattern in STYLES.items()
    }
    return {name: count for name, count in counts.items() if count}


def main() -> None:
    say: Callable[[str], object] = lambda line: sys.stdout.write(line + "\n")  # noqa: E731
    sources = sorted(SOURCES.rglob("*.py"))
    lines = sum(len(path.read_text().splitlines()) for path in sources)
    say(f"{len(sources)} modules, {lines:,} lines")
    if importlib.util.find_spec("fastapi") is None:
        raise SystemExit('the extra serve is missing: pip install ".[serve]"')
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, modules in flows(Path(folder)):
            rooms = sorted({module.split(".")[1] for module in modules})
            counts = ", ".join(f"{room} {sum(x.split('.')[1] == room for x in modules)}" for room in rooms)
            say(f"{name}: {len(modules)} modules ({counts})")
            if "-v" in sys.argv:
                say("  " + " ".join(sorted(module.removeprefix("mrfrec.") for module in modules)))
    for word in MEASURED:
        named = modules_naming(word)
        say(f"{word}: in {len(named)} modules" + (f" ({', '.join(named)})" if "-v" in sys.argv else ""))
    count, chain = levels()
    say(f"{count} levels of classes: {chain}")
    for name, count in styles().items():
        say(f"options declared as a {name}: in {count} modules")


if __name__ == "__main__":
    main()
