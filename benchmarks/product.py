"""Measure everything around a fit: reading tables, recommending to all users, one answer from the shell.

    python -m benchmarks.product               all groups (creating the text file takes minutes, once)
    python -m benchmarks.product read all      only these groups: read, weights, text, all,
                                               answer, answers, evaluate, start

Times of commands include start-up. Memory is the peak increase of resident memory while reading, compared
with the bytes of the resulting matrix.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.bench import CACHE, DATA, msd

EVENTS = 24_000_000
TEXT_ROWS = 48_000_000  # as in the taste profile of the Million Song data


def in_a_process(function: str, *arguments: object) -> dict[str, Any]:
    """Run a function of this module in a fresh process and return the JSON it prints."""
    code = f"from benchmarks import product; product.{function}(*{[str(a) for a in arguments]!r})"
    output = subprocess.run(
        [sys.executable, "-c", code], check=True, stdout=subprocess.PIPE, text=True
    ).stdout
    return dict(json.loads(output.splitlines()[-1]))


def status(field: str) -> int:
    """Return a field of /proc/self/status, in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field + ":"))


def read(path: str, options: str = "{}") -> None:
    from mrfrec import read_interactions

    before = status("VmRSS")
    start = time.perf_counter()
    data = read_interactions(path, **json.loads(options))
    seconds = time.perf_counter() - start
    grown = status("VmHWM") - before
    matrix = data.matrix
    size = matrix.data.nbytes + matrix.indices.nbytes + matrix.indptr.nbytes
    print(
        json.dumps(
            {
                "what": str(data),
                "seconds": seconds,
                "csr_mb": size / 1e6,
                "grown_mb": grown / 1e6,
                "ratio": grown / size,
            }
        )
    )


def write_events(path: str, rows: str) -> None:
    """Write events of three kinds, at times within three years."""
    import numpy as np
    import polars as pl

    rng, count = np.random.default_rng(0), int(rows)
    columns = {
        "user": rng.integers(0, 200_000, count),
        "item": (20_000 * rng.random(count) ** 2).astype(np.int64),
        "event": rng.choice(["view", "cart", "buy"], count),
        "time": 1_500_000_000 + rng.integers(0, 10**8, count),
    }
    pl.DataFrame(columns).write_parquet(path)
    print("{}")


def write_text(path: str, rows: str) -> None:
    """Write lines like those of the taste profile: a user of 40 characters, a song of 18, a count."""
    import numpy as np
    import polars as pl

    X = msd()
    rng = np.random.default_rng(0)
    users = pl.Series([f"{a:020x}{b:020x}" for a, b in rng.integers(0, 2**62, (X.shape[0], 2)).tolist()])
    songs = pl.Series([f"SO{number:016X}" for number in range(X.shape[1])])
    owner = np.repeat(np.arange(X.shape[0], dtype=np.int32), np.diff(X.indptr))
    again = rng.integers(0, X.nnz, int(rows) - X.nnz)  # repeated pairs
    places = np.sort(np.concatenate([np.arange(X.nnz), again]))
    with Path(path).open("wb") as file:
        for start in range(0, len(places), 2_000_000):
            part = places[start : start + 2_000_000]
            frame = {
                "user": users.gather(owner[part]),
                "song": songs.gather(X.indices[part]),
                "count": rng.integers(1, 20, len(part)),
            }
            pl.DataFrame(frame).write_csv(file, include_header=start == 0)
    print("{}")


def timed(*command: str, times: int = 1) -> tuple[float, str]:
    """Return the median seconds of a command and its output."""
    seconds = []
    for _ in range(times):
        start = time.perf_counter()
        done = subprocess.run(
            [sys.executable, "-m", "mrfrec", *command], check=True, capture_output=True, text=True
        )
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds), done.stdout + done.stderr


def run(groups: list[str], data: Path) -> None:
    table = data / "mtg-players" / "interactions.parquet"
    CACHE.mkdir(exist_ok=True)
    for group in groups:
        if group in ("read", "all") and not table.exists():
            print(f"{group}: skipped, there is no {table}")
        elif group == "read":
            print("read", in_a_process("read", table), flush=True)
        elif group == "weights":
            events = CACHE / "events.parquet"
            if not events.exists():
                in_a_process("write_events", events, EVENTS)
            weights = {"event_weights": {"view": 0.2, "cart": 0.5, "buy": 1}}
            for options in ({"window": "6000d"}, {**weights, "window": "6000d"}):
                print(options, in_a_process("read", events, json.dumps(options)), flush=True)
        elif group == "text":
            text = CACHE / "triplets.csv"
            if not text.exists():
                in_a_process("write_text", text, TEXT_ROWS)
            print("text", f"{text.stat().st_size / 1e9:.2f} GB", in_a_process("read", text), flush=True)
        elif group == "all":
            model, out = CACHE / "mtg.mrf", CACHE / "mtg.parquet"
            seconds, said = timed("fit", str(table), "-o", str(model), "--sparsity", "0.01", "--histories")
            print("fit --sparsity 0.01", f"{seconds:.1f} s\n{said.strip()}", flush=True)
            seconds, said = timed("recommend", str(model), "--all", "-k", "20", "-o", str(out))
            print("recommend --all -k 20", f"{seconds:.1f} s\n{said.strip()}", flush=True)
        elif group == "answer":
            model = CACHE / "msd.mrf"
            in_a_process("save_large", model)
            seconds, _ = timed("recommend", str(model), "--history", "5,17,1234", "-k", "10", times=5)
            print(
                "one history, 41,140 items",
                f"{model.stat().st_size / 1e6:.0f} MB",
                f"{seconds:.2f} s",
                flush=True,
            )
        elif group == "answers":
            for model, save in (
                (CACHE / "answers-41140.mrf", "save_synthetic"),
                (CACHE / "answers-rank-256.mrf", "save_low_rank"),
                (CACHE / "answers-default.mrf", "save_default"),
                (CACHE / "books.mrf", "save_books"),
            ):
                if save == "save_books" and not (data / "book-crossing").exists():
                    print(f"answers: skipped, there is no {data / 'book-crossing'}")
                    continue
                if not model.exists():
                    in_a_process(save, model, data)
                print("answers", in_a_process("answers", model), flush=True)
                if save == "save_low_rank":
                    print("rules", in_a_process("rules", model), flush=True)
        elif group == "evaluate":
            model = CACHE / "msd.mrf"
            if not model.exists():
                in_a_process("save_large", model)
            print("evaluate", in_a_process("evaluate", model), flush=True)
        elif group == "start":
            command = [sys.executable, "-X", "importtime", "-c", "import mrfrec"]
            lines = subprocess.run(command, check=True, capture_output=True, text=True).stderr.splitlines()
            print("import mrfrec", f"{int(lines[-1].split('|')[1]) / 1e6:.3f} s", flush=True)


def save_large(path: str) -> None:
    from mrfrec import MRF

    MRF.paper(l2=1.0, sparsity=0.005, r=0.5).fit(msd()).save(path)
    print("{}")


def save_synthetic(path: str, _: str) -> None:
    """As many items as the Million Song data has, and fewer users: to answer takes the same time."""
    from benchmarks.synthetic import interactions
    from mrfrec import MRF

    MRF.paper(l2=1.0, sparsity=0.005, r=0.5).fit(interactions(100_000, 41_140, 6e6)).save(path)
    print("{}")


def save_low_rank(path: str, _: str) -> None:
    """With vectors beside the weights, which add to the score of every item."""
    from benchmarks.synthetic import interactions
    from mrfrec import MRF

    MRF(sparsity=0.005, r=0.5, rank=256).fit(interactions(100_000, 41_140, 6e6)).save(path)
    print("{}")


def save_default(path: str, _: str) -> None:
    """With the defaults, which measure how much the vectors weigh."""
    from mrfrec import MRF

    MRF().fit(msd()).save(path)
    print("{}")


def save_books(path: str, data: str) -> None:
    """340,556 items with titles."""
    import polars as pl

    from mrfrec import MRF

    folder = Path(data) / "book-crossing"
    pairs = pl.read_parquet(folder / "interactions.parquet", columns=["user", "item"])
    titles = pl.read_parquet(folder / "items.parquet", columns=["item", "title"])
    table = pairs.join(titles.with_columns(pl.col("item").cast(pl.Int32)), on="item", how="left")
    MRF.paper(sparsity=0.0001, r=0.5, l2=1.0).fit(table).save(path)
    print("{}")


def answers(path: str) -> None:
    """One history at a time, 2,000 times; 1,000 histories in one call; a few searches. Milliseconds.

    Beside the time on the clock stands that on the processor, which other programs disturb less. Answers of a
    prepared model are those of the service, with one thread and three reasons for each item.
    """
    import numpy as np

    import mrfrec
    from mrfrec.engines.local import LocalEngine

    model: Any = mrfrec.load(path)
    rng = np.random.default_rng(0)
    m = len(model.items_)
    popularity = model.popularity_ / model.popularity_.sum()
    lengths = rng.integers(3, 60, 2000)
    histories = [model.items_.take(np.unique(rng.choice(m, size, p=popularity))) for size in lengths]

    def timed(ask: Any) -> tuple[float, float]:
        clock, processor = time.perf_counter(), time.process_time()
        ask()
        return 1e3 * (time.perf_counter() - clock), 1e3 * (time.process_time() - processor)

    found: dict[str, Any] = {"items": m, "first": timed(lambda: model.recommend(history=histories[0]))[0]}
    one = np.array([timed(lambda h=h: model.recommend(history=h)) for h in histories])
    found["median"], found["p99"] = (np.quantile(one, q, axis=0).round(2).tolist() for q in (0.5, 0.99))
    found["thousand, first"] = timed(lambda: model.recommend(history=histories[:1000]))
    found["thousand"] = timed(lambda: model.recommend(history=histories[1000:]))
    with LocalEngine(threads=1):
        model.threads = 1
        model.verify()
        for k in (10, 20):
            ask = partial(model.recommend, k=k, explain=3)
            one = np.array([timed(partial(ask, history=h)) for h in histories])
            found[f"prepared, k={k}, median"] = np.quantile(one, 0.5, axis=0).round(2).tolist()
            found[f"prepared, k={k}, p99"] = np.quantile(one, 0.99, axis=0).round(2).tolist()
    if model.titles_ is not None:
        found["index"] = timed(lambda: model.search("zzqx"))
        queries = ["harry potter", "harry poter", "a", "the", "godfathr", "lord rings", "zzzqq", "tolkien"]
        found["search, longest"] = max(timed(lambda q=q: model.search(q)) for q in queries * 5)
    print(json.dumps(found))


def shop_table(model: Any) -> Any:
    """Return a table of a model's items: texts with few and many values, and numbers."""
    import numpy as np
    import polars as pl

    rng, items = np.random.default_rng(0), list(model.items_)
    m = len(items)
    columns = {name: rng.integers(0, n, m) for name, n in (("brand", 2000), ("type", 30), ("few", 8))}
    numbers = {
        "own": np.arange(m) * 24,
        "margin": 0.2 * rng.random(m),
        "season": np.exp(rng.normal(0, 0.3, m)),
    }
    texts = {name: [f"{name} {x}" for x in values.tolist()] for name, values in columns.items()}
    return pl.DataFrame({"item": items, **texts, **numbers})


def rules(path: str) -> None:
    """Ten items for one history at a time, by the rules of a shop: median and p99 of processor time, ms."""
    import warnings

    import numpy as np

    import mrfrec
    from mrfrec.engines.local import LocalEngine

    warnings.simplefilter("ignore", mrfrec.MrfrecWarning)  # of lists that are too short
    model: Any = mrfrec.load(path)
    model.set_items(shop_table(model))
    rng, items = np.random.default_rng(0), list(model.items_)
    m = len(items)
    some = dict.fromkeys((items[i] for i in rng.permutation(m)[:10_000].tolist()), 0.1)
    quotas = {"brand": 2, "type": 3, "own": 1}
    asked: dict[str, dict[str, Any]] = {
        "plain": {}, "at_most, three columns": {"at_most": quotas},
        "at_most, eight of ten": {"at_most": {"few": 1}}, "a quota of 0": {"at_most": {"few": 0}},
        "variety": {"variety": 0.5}, "boost add": {"boost": {"add": "margin"}},
        "boost multiply": {"boost": {"multiply": "season"}}, "boost 10,000 items": {"boost": {"add": some}},
        "all three": {"at_most": quotas, "boost": {"add": "margin"}, "variety": 0.5},
    }  # fmt: skip
    popularity = model.popularity_ / model.popularity_.sum()
    histories = [np.unique(rng.choice(m, size, p=popularity)) for size in rng.integers(3, 60, 400)]
    spent: dict[str, list[float]] = {name: [] for name in asked}
    with LocalEngine(threads=1):
        model.threads = 1
        model.verify()
        for history in histories:
            for name, question in asked.items():
                start = time.thread_time()
                model.recommend(history=model.items_.take(history), **question)
                spent[name].append(1e3 * (time.thread_time() - start))
    print(json.dumps({name: np.quantile(x[20:], (0.5, 0.99)).round(2).tolist() for name, x in spent.items()}))


def evaluate(model: str) -> None:
    """Measure a model on 10,000 synthetic users, predicting a fifth of their items."""
    import numpy as np

    import mrfrec
    from mrfrec.core.kernels.compile import cache_folders
    from mrfrec.data.ids import Ids
    from mrfrec.evaluation.protocol import evaluate_fitted
    from mrfrec.evaluation.questions import Questions

    X = msd()
    X = X[np.flatnonzero(np.diff(X.indptr) >= 5)[:10_000]]
    hide = np.random.default_rng(0).random(X.nnz) < 0.2
    hide[X.indptr[:-1]] = True  # everybody has a target
    shown, targets = X.copy(), X.copy()
    shown.data, targets.data = (~hide).astype(np.float32), hide.astype(np.float32)
    shown.eliminate_zeros()
    targets.eliminate_zeros()
    opened = mrfrec.load(model)
    questions = Questions(Ids.range(X.shape[0]), shown, targets)
    compiled = any(any(folder.glob("*.nbi")) for folder in cache_folders())
    before = status("VmRSS")
    start = time.perf_counter()
    found = evaluate_fitted(opened, questions)
    seconds = time.perf_counter() - start
    print(
        json.dumps(
            {
                "what": f"{len(questions):,} users × {X.shape[1]:,} items, compiled before: {compiled}",
                "seconds": seconds,
                "grown_mb": (status("VmHWM") - before) / 1e6,
                "ndcg": found.mean("ndcg@100").mean,
            }
        )
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    everything = ["start", "read", "weights", "answer", "answers", "evaluate", "all", "text"]
    parser.add_argument("groups", nargs="*", default=everything, metavar="group", help=f"of {everything}")
    parser.add_argument("--data", type=Path, default=DATA, help="folder with the real data")
    options = parser.parse_args()
    unknown = set(options.groups) - set(everything)
    if unknown:
        parser.error(f"no such group: {', '.join(sorted(unknown))}; there are {', '.join(everything)}")
    print(f"{os.cpu_count()} cores, Python {sys.version.split()[0]}")
    run(options.groups, options.data)


if __name__ == "__main__":
    main()
