"""Measure new items: a tenth of the items made new, with and without features, beside baselines of content.

    python -m experiments.new_items debian                  # the data set of the package
    python -m experiments.new_items anime-5k-users ../data  # a data set of the folder

Test users show all their other items (new items ranked among themselves, nDCG@20), or four fifths of them
(all items, nDCG@100); three seeds. The page results/new-items-NAME.md has the means over all users and seeds,
and differences user by user; the plot has the gain by the number of training users of the hidden items.
"""

import argparse
import datetime
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from experiments.run import RESULTS, machine
from mrfrec import MRF, datasets, read_item_features
from mrfrec.data.features import ItemFeatures
from mrfrec.data.heldout import only_entries
from mrfrec.evaluation import Questions, Split, evaluate_fitted, paired, read_events, strong_generalisation
from mrfrec.evaluation.figures import figure_axes
from mrfrec.evaluation.metrics import mean_of
from mrfrec.evaluation.protocol import Evaluation
from mrfrec.models.compiling import warm_up
from mrfrec.models.parameters import unfitted

SHARE, SEEDS = 0.1, (1, 2, 3)
BINS = ((0, 0), (1, 5), (6, 20), (21, 100), (101, 10**9))
Numbers = npt.NDArray[np.float64]


def data_of(name: str, folder: Path | None) -> tuple[Any, ItemFeatures]:
    """Return the events, and the features of the items: all columns of items.parquet."""
    if name == "debian":
        import polars as pl

        data = datasets.load(name)
        titles = data.titles or [""] * data.n_items
        names = [str(item).replace("-", " ") for item in data.items]
        table = pl.DataFrame({"item": list(data.items), "description": list(titles), "name": names})
        kinds: Any = {"description": "words", "name": "words"}
        return datasets.events(name), read_item_features(table, columns=kinds)
    assert folder is not None
    rare = {"min_users": 5} if name == "book-crossing" else {}
    events = read_events(folder / name / "interactions.parquet", time=False).filtered(min_items=5, **rare)
    return events, read_item_features(folder / name / "items.parquet")


def by_content(split: Split, asked: Questions, features: ItemFeatures, nearest: int | None) -> Numbers:
    """Return the nDCG@20 of new items by the cosine of their features with those of the history.

    With `nearest`, only so many of the used items that are most like a new one count for it.
    """
    F = features.over(split.training.items).matrix
    lengths = np.sqrt(np.bincount(F.indices, F.data**2, F.shape[1]))
    unit = F.multiply(1 / np.where(lengths > 0, lengths, 1.0)[None, :]).tocsc()
    assert asked.candidates is not None
    new, used = np.flatnonzero(asked.candidates), split.training.popularity > 0
    likeness = (unit.multiply(used[None, :]).T.tocsr() @ unit[:, new]).tocsc()
    if nearest is not None:
        for column in range(len(new)):
            part = likeness.data[likeness.indptr[column] : likeness.indptr[column + 1]]
            if len(part) > nearest:
                part[np.argsort(-part, kind="stable")[nearest:]] = 0.0
    scores = (asked.shown.astype(np.float64) @ likeness).toarray()
    targets = asked.targets[:, new].toarray()
    places = np.argsort(-scores, axis=1, kind="stable")[:, :20]
    discount = 1 / np.log2(np.arange(2, 22))
    gains = (np.take_along_axis(targets, places, 1) * discount).sum(axis=1)
    best = np.concatenate([[0.0], np.cumsum(discount)])[np.minimum(targets.sum(axis=1), 20).astype(int)]
    return np.asarray(gains / best)


def of_bins(model: Any, asked: Questions, popularity: npt.NDArray[np.int64]) -> dict[Any, Evaluation]:
    """Measure the targets of each bin of popularity alone; all items are ranked."""
    found = {}
    for low, high in BINS:
        within = (popularity >= low) & (popularity <= high)
        targets = only_entries(asked.targets, within[asked.targets.indices])
        rows = np.flatnonzero(np.diff(targets.indptr))
        if len(rows) > 20:
            some = replace(
                asked, users=asked.users.subset(rows), shown=asked.shown[rows], targets=targets[rows]
            )
            found[low, high] = evaluate_fitted(model, some, "ndcg@100")
    return found


def measured(events: Any, features: ItemFeatures, model: MRF) -> dict[str, Any]:
    """Return the nDCG of each user and method, over all seeds."""
    new: dict[str, list[Numbers]] = {}
    everything: dict[str, list[Numbers]] = {}
    bins: dict[Any, list[Numbers]] = {}
    shares, seconds = [], []
    for seed in SEEDS:
        heldout = max(min(events.n_users // 10, 1000), 1)
        split = strong_generalisation(events, heldout, seed=seed)
        known = features.over(split.training.items)
        plain, asked = split.with_new_items(SHARE, seed=seed)
        with_features, _ = split.with_features(known).with_new_items(SHARE, seed=seed)
        fits = {}
        for name, part in (("MRF", plain), ("MRF with features", with_features)):
            began = time.perf_counter()
            fits[name] = unfitted(model).fit(part.training)
            seconds.append(time.perf_counter() - began)
            among_new = evaluate_fitted(fits[name], asked, "ndcg@20")
            new.setdefault(name, []).append(among_new.per_user("ndcg@20"))
            among_all = evaluate_fitted(fits[name], part.test, "ndcg@100")
            everything.setdefault(name, []).append(among_all.per_user("ndcg@100"))
        for name, nearest in (("cosine of features", None), ("5 nearest by features", 5)):
            new.setdefault(name, []).append(by_content(plain, asked, features, nearest))
        top, _ = fits["MRF with features"].top_k(with_features.test.shown, 20)
        shares.append(float(asked.candidates[top].mean()))  # type: ignore[index]
        popularity = plain.training.popularity
        each = [of_bins(fit, plain.test, popularity) for fit in fits.values()]
        for bin_, before in each[0].items():
            gain = each[1][bin_].per_user("ndcg@100") - before.per_user("ndcg@100")
            bins.setdefault(bin_, []).append(gain)
        print(seed, {name: round(float(values[-1].mean()), 4) for name, values in new.items()}, flush=True)
    return {"new": new, "all": everything, "bins": bins, "shares": shares, "seconds": seconds}


def page(name: str, found: dict[str, Any], features: ItemFeatures) -> str:
    new = {method: np.concatenate(values) for method, values in found["new"].items()}
    everything = {method: np.concatenate(values) for method, values in found["all"].items()}
    bins = {_bin_name(bin_): np.concatenate(values) for bin_, values in found["bins"].items()}
    gain = paired(everything["MRF with features"], everything["MRF"])
    plain, with_features = (np.mean(found["seconds"][start::2]) for start in (0, 1))
    lines = [
        f"# New items: {name}", "",
        f"`python -m experiments.new_items {name}`, {datetime.date.today()}, {machine()}. A tenth of",
        f"the items is made new; {len(SEEDS)} seeds. {features!r}.", "",
        "| new items ranked among themselves | nDCG@20 |", "|---|---|",
        *(f"| {method} | {mean_of(values)} |" for method, values in new.items()), "",
        "| all items ranked | nDCG@100 |", "|---|---|",
        *(f"| {method} | {mean_of(values)} |" for method, values in everything.items()),
        f"| difference, user by user | {gain} |", "",
        f"Of the 20 best items, {np.mean(found['shares']):.1%} are new ones. A fit took {plain:.1f} s",
        f"without features and {with_features:.1f} s with.", "",
        "| hidden items with so many training users | gain in nDCG@100 by features |", "|---|---|",
        *(f"| {bin_} | {mean_of(values)} |" for bin_, values in bins.items()), "",
        f"![gain by popularity](new-items-{name}.png)", "",
    ]  # fmt: skip
    return "\n".join(lines)


def _bin_name(bin_: tuple[int, int]) -> str:
    low, high = bin_
    return "0 (new)" if high == 0 else f"{low} to {high}" if high < 10**9 else f"{low} and more"


def plot(name: str, found: dict[str, Any]) -> None:
    means = [mean_of(np.concatenate(values)) for values in found["bins"].values()]
    path, title = RESULTS / f"new-items-{name}.png", f"{name}: gain by features"
    with figure_axes(path, title, "training users of the hidden items", "gain in nDCG@100") as axes:
        places = range(len(means))
        errors = [mean.error for mean in means]
        axes.bar(places, [mean.mean for mean in means], yerr=errors, capsize=4, label="mean, standard error")
        axes.set_xticks(list(places), [_bin_name(bin_) for bin_ in found["bins"]])
        axes.axhline(0, color="black", linewidth=0.8)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("name")
    parser.add_argument("folder", type=Path, nargs="?")
    asked = parser.parse_args()
    events, features = data_of(asked.name, asked.folder)
    model = MRF()
    warm_up(model)
    found = measured(events, features, model)
    plot(asked.name, found)
    text = page(asked.name, found, features)
    (RESULTS / f"new-items-{asked.name}.md").write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
