"""Splits and metrics in slow, obvious Python: the truth that the evaluation is held to.

Written from the definitions (Liang et al. 2018 and the notebook of `vae_cf` for strong generalisation), not
from the package, and sharing nothing with it. Users and items are named by their ids; tables are lists of
pairs in the order of their rows. In ranked lists, −1 stands where there was nothing left to recommend.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

Pair = tuple[Any, Any]  # user, item
Sets = dict[Any, set[Any]]  # user → items

SEED = 98765  # of the notebook


# Splits.


@dataclass
class Asked:
    """What is shown of some users and what is to be guessed; only of users with something to guess."""

    shown: Sets
    targets: Sets
    left_out: int  # users with nothing to guess


@dataclass
class Strong:
    users: list[Any]  # as they were drawn: for training, for validation, for test
    training: Sets
    items: set[Any]
    validation: Asked
    test: Asked


def filtered(
    rows: Sequence[Pair], min_users: int = 0, min_items: int = 0, max_history: int | None = None
) -> list[Pair]:
    """Drop users with too many items, then items with too few users, then users with too few items."""
    lengths = Counter(user for user, _ in rows)
    rows = [(user, item) for user, item in rows if max_history is None or lengths[user] <= max_history]
    per_item = Counter(item for _, item in rows)
    rows = [(user, item) for user, item in rows if per_item[item] >= min_users]
    per_user = Counter(user for user, _ in rows)
    return [(user, item) for user, item in rows if per_user[user] >= min_items]


def strong_rows(
    rows: Sequence[Pair], heldout: int, hidden: float = 0.2, seed: int = SEED, at_least: int = 5
) -> dict[str, Any]:
    """The notebook line by line: users who are not trained on, a fifth of whose items is hidden.

    Returns the users as they were drawn (for training, for validation, for test), and the rows of each part
    in the order of the notebook's files.
    """
    table = pd.DataFrame(list(rows), columns=["user", "item"], dtype=object)
    unique_uid = np.array([user for user, _ in table.groupby("user")], dtype=object)
    np.random.seed(seed)  # noqa: NPY002 (the notebook's generator)
    unique_uid = unique_uid[np.random.permutation(len(unique_uid))]  # noqa: NPY002
    n = len(unique_uid)
    training_users = set(unique_uid[: n - 2 * heldout])
    training = [(user, item) for user, item in rows if user in training_users]
    found: dict[str, Any] = {"users": list(unique_uid), "training": training}
    items = {item for _, item in training}
    for part, chosen in (
        ("validation", unique_uid[n - 2 * heldout : n - heldout]),
        ("test", unique_uid[n - heldout :]),
    ):
        users = set(chosen)
        known = table[[u in users and i in items for u, i in zip(table.user, table.item, strict=True)]]
        shown: list[Pair] = []
        targets: list[Pair] = []
        np.random.seed(seed)  # noqa: NPY002
        for _, group in known.groupby("user"):
            idx = np.zeros(len(group), dtype=bool)
            if len(group) >= at_least:
                size = int(hidden * len(group))
                idx[np.random.choice(len(group), size=size, replace=False)] = True  # noqa: NPY002
            shown += group[~idx].itertuples(index=False, name=None)
            targets += group[idx].itertuples(index=False, name=None)
        found |= {f"{part} shown": shown, f"{part} targets": targets}
    return found


def strong_generalisation(
    rows: Sequence[Pair], heldout: int, hidden: float = 0.2, seed: int = SEED
) -> Strong:
    found = strong_rows(rows, heldout, hidden, seed)

    def asked(part: str) -> Asked:
        targets = sets(found[f"{part} targets"])
        shown = sets([pair for pair in found[f"{part} shown"] if pair[0] in targets])
        return Asked(shown, targets, heldout - len(targets))

    training = found["training"]
    items = {item for _, item in training}
    return Strong(found["users"], sets(training), items, asked("validation"), asked("test"))


def text_hash(value: Any) -> int:
    """A polynomial in the bytes of a text, mixed by the last steps of splitmix64."""
    powers = (pow(0x9E3779B97F4A7C15, place + 1, 2**64) for place in range(10**6))
    return mixed(sum((byte + 1) * power for byte, power in zip(str(value).encode(), powers, strict=False)))


def mixed(x: int) -> int:
    x %= 2**64
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB % 2**64
    return x ^ (x >> 31)


def pair_hash(user: Any, item: Any) -> int:
    return mixed(text_hash(user) + 0x9E3779B97F4A7C15 * text_hash(item))


def by_hash(
    rows: Sequence[Pair], heldout: float, hidden: float = 0.2, most: int = 10_000
) -> tuple[Sets, Asked, Asked]:
    """Training, test and validation: users with five items or more, by their hashes."""
    per_user = Counter(user for user, _ in rows)
    users = sorted((user for user in per_user if per_user[user] >= 5), key=text_hash)
    test = [user for user in users if text_hash(user) < heldout * 2**64][:most]
    validation = [user for user in users if heldout * 2**64 <= text_hash(user) < 2 * heldout * 2**64][:most]
    training = [(user, item) for user, item in rows if user not in {*test, *validation}]
    items = {item for _, item in training}

    def asked(users: list[Any]) -> Asked:
        shown: Sets = {}
        targets: Sets = {}
        for user in users:
            known = [item for who, item in rows if who == user and item in items]
            known.sort(key=lambda item: pair_hash(user, item))
            count = int(hidden * len(known)) if len(known) >= 5 else 0
            if count:
                shown[user], targets[user] = set(known[count:]), set(known[:count])
        return Asked(shown, targets, len(users) - len(targets))

    return sets(training), asked(test), asked(validation)


def last(rows: Sequence[Pair], times: Sequence[Any], k: int) -> tuple[Sets, Asked]:
    """Training, and the k latest of every user with more than k items; of equal times the largest hashes."""
    table = pd.DataFrame({"user": [user for user, _ in rows], "item": [item for _, item in rows]})
    hidden: list[Pair] = []
    for _, group in table.groupby("user"):
        if len(group) > k:
            latest = sorted(group.index, key=lambda row: (times[row], pair_hash(*rows[row])))[-k:]
            hidden += [rows[row] for row in latest]
    training = [pair for pair in rows if pair not in set(hidden)]
    return sets(training), ask(training, hidden)


@dataclass
class InTime:
    """What is asked after a cut in time, of users by id; times are those of the table."""

    training: dict[Pair, Any]  # pair → time
    shown: dict[Pair, Any]
    targets: Sets
    situation: dict[Any, str]
    left_out: int
    new_items: int
    new_targets: int


def at_time(rows: Sequence[Pair], times: Sequence[Any], cut: Any) -> InTime:
    """Train before the cut; who comes back shows that, who is new the first half of their times since."""
    timed = list(zip(rows, times, strict=True))
    training = {pair: time for pair, time in timed if time < cut}
    trained_users = {user for user, _ in training}
    trained_items = {item for _, item in training}
    found = InTime(training, {}, {}, {}, 0, 0, 0)
    for user in {user for (user, _), time in timed if time >= cut}:
        later = [(item, time) for (who, item), time in timed if who == user and time >= cut]
        if user in trained_users:
            shown = {pair: time for pair, time in training.items() if pair[0] == user}
            hidden = later
        else:
            moments = sorted({time for _, time in later})
            half = moments[: len(moments) // 2]
            shown = {(user, item): time for item, time in later if time in half and item in trained_items}
            hidden = [(item, time) for item, time in later if time not in half] if half else []
        found.new_targets += len([item for item, _ in hidden if item not in trained_items])
        targets = {item for item, _ in hidden if item in trained_items}
        if not targets or not shown:
            found.left_out += 1
            continue
        found.shown |= shown
        found.targets[user] = targets
        found.situation[user] = "return" if user in trained_users else "visit"
    found.new_items = len({item for _, item in rows} - trained_items)
    return found


def cut_after(times: Sequence[Any], share: float) -> Any:
    """The time whose share of events from then on is nearest to this, the earlier of two; not the first."""

    def distance(cut: Any) -> float:
        return abs(len([time for time in times if time >= cut]) - share * len(times))

    return min(sorted(set(times))[1:], key=distance)


def ask(training: Sequence[Pair], hidden: Sequence[Pair]) -> Asked:
    """Hidden pairs of items that are trained with are to be guessed; the users' other pairs are shown."""
    items = {item for _, item in training}
    targets = sets([(user, item) for user, item in hidden if item in items])
    shown = sets([(user, item) for user, item in training if user in targets])
    users = {user for user, _ in [*training, *hidden]}
    return Asked(shown, targets, len(users) - len(targets))


def sets(rows: Sequence[Pair]) -> Sets:
    found: Sets = {}
    for user, item in rows:
        found.setdefault(user, set()).add(item)
    return found


# Rankings and metrics of one user; items are numbered from 0.


def ranking(
    scores: Sequence[float], shown: set[int], k: int, users_of: Sequence[int] | None = None
) -> list[int]:
    """The k best items that were not shown.

    Of equal scores the item with more users comes first, or, without `users_of`, the lower number.
    """
    users = users_of or [0] * len(scores)
    order = sorted(range(len(scores)), key=lambda item: (-scores[item], -users[item], item))
    best = [item for item in order if item not in shown][:k]
    return best + [-1] * (k - len(best))


def hits(ranked: Sequence[int], targets: set[int], k: int) -> list[int]:
    """The places, from 1, among the first k that hold a target."""
    return [place for place, item in enumerate(ranked[:k], start=1) if item in targets]


def ndcg(ranked: Sequence[int], targets: set[int], k: int) -> float:
    gained = sum(1 / math.log2(place + 1) for place in hits(ranked, targets, k))
    ideal = sum(1 / math.log2(place + 1) for place in range(1, min(k, len(targets)) + 1))
    return gained / ideal


def recall(ranked: Sequence[int], targets: set[int], k: int) -> float:
    return len(hits(ranked, targets, k)) / min(k, len(targets))


def recall_all(ranked: Sequence[int], targets: set[int], k: int) -> float:
    return len(hits(ranked, targets, k)) / len(targets)


def precision(ranked: Sequence[int], targets: set[int], k: int) -> float:
    return len(hits(ranked, targets, k)) / k


def hit(ranked: Sequence[int], targets: set[int], k: int) -> float:
    return 1.0 if hits(ranked, targets, k) else 0.0


def mrr(ranked: Sequence[int], targets: set[int], k: int) -> float:
    found = hits(ranked, targets, k)
    return 1 / found[0] if found else 0.0


def average_precision(ranked: Sequence[int], targets: set[int], k: int) -> float:
    total = sum(precision(ranked, targets, place) for place in hits(ranked, targets, k))
    return total / min(k, len(targets))


ACCURACY = {
    "ndcg": ndcg,
    "recall": recall,
    "recall_all": recall_all,
    "precision": precision,
    "hit": hit,
    "mrr": mrr,
    "map": average_precision,
}


def recommended(ranked: Sequence[int], k: int) -> list[int]:
    return [item for item in ranked[:k] if item != -1]


def popularity(ranked: Sequence[int], users_of: Sequence[int], k: int) -> float:
    """The mean number of training users of the recommended items."""
    items = recommended(ranked, k)
    return sum(users_of[item] for item in items) / len(items) if items else 0.0


def long_tail(users_of: Sequence[int]) -> set[int]:
    """All items but the fewest of the most popular that have 80 % of all interactions."""
    order = sorted(range(len(users_of)), key=lambda item: (-users_of[item], item))
    head = 0
    while 5 * sum(users_of[item] for item in order[:head]) < 4 * sum(users_of):
        head += 1
    return set(order[head:])


def tail(ranked: Sequence[int], users_of: Sequence[int], k: int) -> float:
    items = recommended(ranked, k)
    return len([item for item in items if item in long_tail(users_of)]) / len(items) if items else 0.0


def variety(ranked: Sequence[int], vectors: Sequence[Sequence[float]], k: int) -> float:
    """1 − the mean cosine of all pairs of recommended items; 0 with fewer than two."""

    def cosine(a: int, b: int) -> float:
        length = math.hypot(*vectors[a]) * math.hypot(*vectors[b])
        return sum(x * y for x, y in zip(vectors[a], vectors[b], strict=True)) / length if length else 0.0

    items = recommended(ranked, k)
    pairs = [(a, b) for place, a in enumerate(items) for b in items[:place]]
    return 1 - sum(cosine(a, b) for a, b in pairs) / len(pairs) if pairs else 0.0


def coverage(lists: Sequence[Sequence[int]], n_items: int, k: int) -> float:
    """Of all users together: the share of items that somebody is recommended."""
    return len({item for ranked in lists for item in recommended(ranked, k)}) / n_items


def gini(lists: Sequence[Sequence[int]], n_items: int, k: int) -> float:
    """Of all users together: half the mean difference of two items' counts, relative to the mean count."""
    often = Counter(item for ranked in lists for item in recommended(ranked, k))
    counts = [often[item] for item in range(n_items)]
    differences = sum(abs(a - b) for a in counts for b in counts)
    return differences / (2 * n_items * sum(counts)) if sum(counts) else 0.0


OVERALL = {"coverage": coverage, "gini": gini}


def novelty(ranked: Sequence[int], users_of: Sequence[int], n_users: int, k: int) -> float:
    """The mean information, in bits, of having an item; an item that nobody has counts as one user's."""
    items = recommended(ranked, k)
    bits = [math.log2(n_users / max(users_of[item], 1)) for item in items]
    return math.fsum(bits) / len(items) if items else 0.0


@dataclass
class Judged:
    """Lists of other systems as they are judged; what is no hit whatever it is stands as None."""

    lists: dict[Any, list[Any]]  # test user → items
    without: int  # test users without a list
    not_asked: int  # users of the table who are no test users
    unknown: int  # of the first k places: items that are not in the training data
    seen: int  # of the first k places: items that the user is shown


def lists_of_others(
    rows: Sequence[tuple[Any, Any, float]],  # user, item, and what orders each list: the lowest first
    shown: Sets,
    items: set[Any],
    k: int,
    drop_seen: bool = False,
) -> Judged:
    judged = Judged({}, 0, len({user for user, _, _ in rows} - set(shown)), 0, 0)
    for user in shown:
        own = sorted([row for row in rows if row[0] == user], key=lambda row: row[2])
        judged.without += not own
        listed = [item for _, item, _ in own]
        judged.unknown += len([item for item in listed[:k] if item not in items])
        judged.seen += len([item for item in listed[:k] if item in shown[user] & items])
        if drop_seen:
            listed = [item for item in listed if item not in shown[user] & items]
        judged.lists[user] = [item if item in items else None for item in listed[:k]]
    return judged


# Over users.


def clustered(values: Sequence[tuple[Any, float]]) -> tuple[float, float]:
    """The mean of numbers of users, and its error where the deviations of one user go together."""
    mean = math.fsum(value for _, value in values) / len(values)
    users = {user for user, _ in values}
    squares = [sum(value - mean for who, value in values if who == user) ** 2 for user in users]
    return mean, math.sqrt(sum(squares) * len(users) / (len(users) - 1)) / len(values)


def mean_and_error(values: Sequence[float]) -> tuple[float, float]:
    """The mean and its standard error."""
    n = len(values)
    mean = math.fsum(values) / n
    if n == 1:
        return mean, math.nan
    variance = math.fsum((value - mean) ** 2 for value in values) / (n - 1)
    return mean, math.sqrt(variance / n)
