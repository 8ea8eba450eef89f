"""Measure new items: a tenth of the items made new, with and without features, beside baselines of content.

    python -m mrfrec_lab.new_items debian                  # the data set of the package
    python -m mrfrec_lab.new_items anime-5k-users ../data  # a data set of the folder

Test users show all their other items (new items ranked among themselves, nDCG@20), or four fifths of them
(all items, nDCG@100); three seeds. nDCG is the mean over all orders of items with equal scores. The page
results/new-items-NAME.md has the means over all users and seeds, and differences user by user, also from the
baseline that is best there; the plot has the gain by the number of training users of the hidden items.
"""

import argparse
import datetime
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from mrfrec import MRF, compile_ahead, datasets, read_interactions, read_item_features
from mrfrec.evaluation import Questions, Split, paired, strong_generalisation
from mrfrec_lab.lists import Numbers, mean_of
from mrfrec_lab.places import RESULTS, machine

SHARE, SEEDS = 0.1, (1, 2, 3)
CONTENT = {"cosine of features": None} | {f"{k} nearest by features": k for k in (5, 10, 20, 50, 100)}
BINS = ((0, 0), (1, 5), (6, 20), (21, 100), (101, 10**9))


def data_of(name: str, folder: Path | None) -> tuple[Any, Any]:
    """Return the events, and the features of the items: all columns of items.parquet."""
    import polars as pl

    if name == "debian":
        data = datasets.load(name)
        titles = data.titles or [""] * data.n_items
        names = [str(item).replace("-", " ") for item in data.items]
        table = pl.DataFrame({"item": list(data.items), "description": list(titles), "name": names})
        kinds: Any = {"description": "words", "name": "words"}
        return data, read_item_features(table, columns=kinds)
    assert folder is not None
    rare = {"min_users": 5} if name == "book-crossing" else {}
    events = read_interactions(folder / name / "interactions.parquet", time=False).filtered(
        min_items=5, **rare
    )
    table = pl.read_parquet(folder / name / "items.parquet")
    # MovieTweetings has two spellings of one title.
    return events, read_item_features(table.unique("item", keep="first", maintain_order=True))


def expected_gains(scores: Any, targets: Any, k: int) -> Any:
    """Return what each entry of `targets` adds to the DCG@k, in expectation over all orders of equal scores.

    Many items share a score, 0 above all. In one order, by position for instance, ids that go with
    popularity would decide.
    """
    before = np.concatenate(
        [[0.0], np.cumsum(1.0 / np.log2(np.arange(2, k + 2)))]
    )  # sum of the first discounts
    gains = np.zeros(targets.nnz)
    for user, (start, end) in enumerate(pairwise(targets.indptr)):
        own, in_order = -scores[user, targets.indices[start:end]], np.sort(-scores[user])
        first, last = (np.searchsorted(in_order, own, side) for side in ("left", "right"))
        gains[start:end] = (before[np.minimum(last, k)] - before[np.minimum(first, k)]) / (last - first)
    return gains


def ndcg(gains: Numbers, targets: sp.csr_array, k: int, wanted: Any = True) -> Numbers:
    """Return the nDCG@k of each user with targets; with `wanted`, only some entries are targets."""
    users = targets.shape[0]
    owner = np.repeat(np.arange(users), np.diff(targets.indptr))
    wanted = np.broadcast_to(wanted, owner.shape)
    counts = np.bincount(owner[wanted], minlength=users)
    total = np.bincount(owner[wanted], gains[wanted], users)
    best = np.concatenate([[0.0], np.cumsum(1.0 / np.log2(np.arange(2, k + 2)))])  # of a perfect list
    return np.asarray(total[counts > 0] / best[np.minimum(counts[counts > 0], k)])


def of_new(scores: Numbers, asked: Questions) -> Numbers:
    """Return the nDCG@20 of new items among themselves, from the scores of all items or of these alone."""
    new = asked.candidates
    assert new is not None
    own = scores[:, new] if scores.shape[1] == len(new) else scores
    targets = sp.csr_array(asked.targets[:, np.flatnonzero(new)])
    return ndcg(expected_gains(own, targets, 20), targets, 20)


def scores_of(model: MRF, asked: Questions) -> Numbers:
    """Return the scores of the items that each user has not been shown; −∞ for the others."""
    scores = model.scores(asked.shown).astype(np.float64)
    scores[asked.shown.nonzero()] = -np.inf
    return scores


def by_content(split: Split, asked: Questions, features: Any, nearest: int | None, seed: int) -> Numbers:
    """Return scores of new items by the cosine of their features with those of the history.

    With `nearest`, only so many of the used items that are most like a new one count for it, of equal ones
    any, drawn at random.
    """
    random = np.random.default_rng(seed)
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
                # Cosines that differ by rounding alone are equal.
                part[np.lexsort((random.random(len(part)), -part.round(9)))[nearest:]] = 0.0
    # Whatever order they are added up in, equal sums are equal.
    return np.asarray((asked.shown.astype(np.float64) @ likeness).toarray().round(9))


def of_bins(gains: Numbers, targets: sp.csr_array, popularity: npt.NDArray[np.int64]) -> dict[Any, Numbers]:
    """Return the nDCG@100 of the targets of each bin of popularity alone; all items are ranked."""
    owner = np.repeat(np.arange(targets.shape[0]), np.diff(targets.indptr))
    found = {}
    for low, high in BINS:
        within = ((popularity >= low) & (popularity <= high))[targets.indices]
        if len(np.unique(owner[within])) > 20:
            found[low, high] = ndcg(gains, targets, 100, within)
    return found


def measured(events: Any, features: Any) -> dict[str, Any]:
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
        fits, gains = {}, {}
        for name, part in (("MRF", plain), ("MRF with features", with_features)):
            start = time.process_time()
            fits[name] = MRF().fit(part.training)
            seconds.append(time.process_time() - start)
            new.setdefault(name, []).append(of_new(scores_of(fits[name], asked), asked))
            targets = part.test.targets
            gains[name] = expected_gains(scores_of(fits[name], part.test), targets, 100)
            everything.setdefault(name, []).append(ndcg(gains[name], targets, 100))
        for name, nearest in CONTENT.items():
            new.setdefault(name, []).append(of_new(by_content(plain, asked, features, nearest, seed), asked))
        top, _ = fits["MRF with features"].top_k(with_features.test.shown, 20)
        shares.append(float(asked.candidates[top].mean()))  # type: ignore[index]
        each = [of_bins(found, plain.test.targets, plain.training.popularity) for found in gains.values()]
        for bin_, before in each[0].items():
            bins.setdefault(bin_, []).append(each[1][bin_] - before)
        print(seed, {name: round(float(values[-1].mean()), 4) for name, values in new.items()}, flush=True)
    return {"new": new, "all": everything, "bins": bins, "shares": shares, "seconds": seconds}


def page(name: str, found: dict[str, Any], features: Any) -> str:
    new = {method: np.concatenate(values) for method, values in found["new"].items()}
    everything = {method: np.concatenate(values) for method, values in found["all"].items()}
    bins = {_bin_name(bin_): np.concatenate(values) for bin_, values in found["bins"].items()}
    gain = paired(everything["MRF with features"], everything["MRF"])
    plain, with_features = (np.mean(found["seconds"][start::2]) for start in (0, 1))
    best = max(CONTENT, key=lambda method: float(new[method].mean()))
    lead = paired(new["MRF with features"], new[best])
    lines = [
        f"# New items: {name}", "",
        f"`python -m mrfrec_lab.new_items {name}`, {datetime.date.today()}, {machine()}. A tenth of",
        f"the items is made new; {len(SEEDS)} seeds. {features!r}.",
        "nDCG is the mean over all orders of items with equal scores.", "",
        "| new items ranked among themselves | nDCG@20 |", "|---|---|",
        *(f"| {method} | {mean_of(values)} |" for method, values in new.items()),
        f"| MRF with features − {best}, user by user | {lead} |", "",
        f"± is over users, for these {len(SEEDS)} draws of new items.", "",
        "| all items ranked | nDCG@100 |", "|---|---|",
        *(f"| {method} | {mean_of(values)} |" for method, values in everything.items()),
        f"| what features gain, user by user | {gain} |",
        "",
        f"Of the 20 best items, {np.mean(found['shares']):.1%} are new ones. A fit took {plain:.1f} s",
        f"of processor time without features and {with_features:.1f} s with.", "",
        "| hidden items with so many training users | gain in nDCG@100 by features |", "|---|---|",
        *(f"| {bin_} | {mean_of(values)} |" for bin_, values in bins.items()), "",
        f"![gain by popularity](new-items-{name}.png)", "",
    ]  # fmt: skip
    return "\n".join(lines)


def _bin_name(bin_: tuple[int, int]) -> str:
    low, high = bin_
    return "0 (new)" if high == 0 else f"{low} to {high}" if high < 10**9 else f"{low} and more"


def plot(name: str, found: dict[str, Any]) -> None:
    from matplotlib.figure import Figure

    means = [mean_of(np.concatenate(values)) for values in found["bins"].values()]
    figure = Figure(figsize=(7, 5), layout="constrained")
    axes = figure.add_subplot(
        title=f"{name}: gain by features",
        xlabel="training users of the hidden items",
        ylabel="gain in nDCG@100, with its standard error",
    )
    axes.bar(range(len(means)), [mean.mean for mean in means], yerr=[mean.error for mean in means], capsize=4)
    axes.set_xticks(range(len(means)), [_bin_name(bin_) for bin_ in found["bins"]])
    axes.axhline(0, color="black", linewidth=0.8)
    figure.savefig(RESULTS / f"new-items-{name}.png", dpi=150)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("name")
    parser.add_argument("folder", type=Path, nargs="?")
    asked = parser.parse_args()
    events, features = data_of(asked.name, asked.folder)
    compile_ahead()
    found = measured(events, features)
    plot(asked.name, found)
    text = page(asked.name, found, features)
    (RESULTS / f"new-items-{asked.name}.md").write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
