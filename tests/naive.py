"""The paper in slow, obvious numpy: the truth the core is held to.

Written from the paper, not from the core, and sharing nothing with it. Everything is dense and float64;
loops stand where the paper has a loop. Magnitudes are compared as float32 and ties go to the next item in
cyclic order, as the documentation of `core/pattern.py` says.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date, datetime
from typing import Any

import numpy as np
import numpy.typing as npt

Matrix = npt.NDArray[np.float64]


@dataclass
class Moments:
    n: float
    mu: Matrix
    v: Matrix
    s: Matrix
    S: Matrix
    active: npt.NDArray[np.bool_]


def user_weights(X: Matrix, beta: float, aged: "Aged | None" = None) -> Matrix:
    lengths = (X != 0).sum(axis=1)
    w = np.array([max(length, 1) ** -beta for length in lengths])
    total = lengths.sum()
    if aged is not None:
        w, lengths = w * aged.weight, aged.length
    return np.asarray(w * total / (w * lengths).sum())


def moments(
    X: Matrix,
    alpha: float = 0.75,
    center: bool = True,
    user_weight: float = 0.0,
    F: Matrix | None = None,
    feature_weight: float = 0.0,
    aged: "Aged | None" = None,
) -> Moments:
    """S of Eq. 4 (§2.2), and the paragraph on popularity bias (§5): μ, v, s and S.

    Features F, features × items, are further rows, neither centered nor weighted as users are. Their weight
    is relative to the root of the mean square of an entry of X.
    """
    w = user_weights(X, user_weight, aged)
    X = X if aged is None else aged.X
    n = w.sum()
    mu = (w @ X) / n
    # Without centering, v is the diagonal of XᵀWX: an item that everybody has takes part, as in EASE.
    v = w @ (X - mu) ** 2 if center else w @ X**2
    v = np.where(v > 1e-9, v, 0.0)
    G = X.T @ (w[:, None] * X)
    if center:
        G = G - n * np.outer(mu, mu)
    if F is not None:
        further = feature_weight * math.sqrt((w @ X**2).sum() / (X != 0).sum()) * F
        v = v + (further**2).sum(axis=0)
        G = G + further.T @ further
    active = v > 1e-9
    v = np.where(active, v, 0.0)
    s = v ** (alpha / 2)
    safe = np.where(active, s, 1.0)
    S = G / np.outer(safe, safe)
    S[~active] = 0.0
    S[:, ~active] = 0.0
    return Moments(n, mu, v, s, S, active)


@dataclass
class Aged:
    X: Matrix  # x·√(2^(−(t_u − t_ui)/half-life))
    weight: Matrix  # 2^(−(now − t_u)/half-life)
    length: Matrix  # of each history, an entry at t_u counts 1


def aged(X: Matrix, times: Matrix, half_life: float) -> Aged:
    """Histories whose entries fade with their age; t_u is the last time of user u."""
    now = times[X != 0].max()
    out = Aged(np.zeros(X.shape), np.ones(len(X)), np.zeros(len(X)))
    for u, row in enumerate(X):
        if row.any():
            last = times[u][row != 0].max()
            out.weight[u] = 2 ** -((now - last) / half_life)
            for i in np.flatnonzero(row):
                factor = 2 ** -((last - times[u, i]) / half_life)
                out.X[u, i] = row[i] * factor**0.5
                out.length[u] += factor
    return out


def asked_values(items: list[int], times: list[int], rho: float) -> dict[int, float]:
    """ρ^place of each item, where the place is the number of different later times."""
    return {
        item: rho ** len({other for other in times if other > time})
        for item, time in zip(items, times, strict=True)
    }


def ridge(found: Moments, l2: float, dropout: float = 0.0) -> Matrix:
    """The diagonal that is added to S."""
    return l2 + dropout / (1 - dropout) * np.diag(found.S)


def rescale(found: Moments, B: Matrix) -> Matrix:
    """B = dMat(1/s)·B'·dMat(s); items without variance have no weights."""
    safe = np.where(found.active, found.s, 1.0)
    B = B * safe[None, :] / safe[:, None]
    B[~found.active] = 0.0
    B[:, ~found.active] = 0.0
    return B


def dense(
    X: Matrix,
    l2: float,
    alpha: float = 0.75,
    center: bool = True,
    user_weight: float = 0.0,
    mean_constraint: bool = False,
    F: Matrix | None = None,
    feature_weight: float = 0.0,
    aged: "Aged | None" = None,
) -> Matrix:
    """Eq. 4, and the Appendix."""
    found = moments(X, alpha, center, user_weight, F, feature_weight, aged)
    m = X.shape[1]
    keep = np.flatnonzero(found.active)
    C = np.linalg.inv(found.S[np.ix_(keep, keep)] + np.diag(ridge(found, l2)[keep]))
    if mean_constraint:
        mu = found.mu[keep] / found.s[keep]
        C = (np.eye(len(keep)) - C @ np.outer(mu, mu) / (mu @ C @ mu)) @ C
    B = np.zeros((m, m))
    B[np.ix_(keep, keep)] = np.eye(len(keep)) - C @ np.diag(1.0 / np.diag(C))
    np.fill_diagonal(B, 0.0)
    return rescale(found, B)


# ── order ─────────────────────────────────────────────────────────────────────────────────────────


def order_sums(
    X: Matrix, places: npt.NDArray[np.int64], user_weight: float = 0.0, delta: float = 0.8
) -> tuple[Matrix, Matrix]:
    """C_order and D_order: Σ y²·v·vᵀ and Σ y²·v·eᵀ over all entries, v being what came before each.

    `places` has the place of each entry in its user's history; it counts only where X is not 0.
    """
    m = X.shape[1]
    C, D = np.zeros((m, m)), np.zeros((m, m))
    for x, place, w in zip(X, places, user_weights(X, user_weight), strict=True):
        had = np.flatnonzero(x)
        for b in had:
            v = np.zeros(m)
            for a in had:
                if place[a] < place[b]:
                    v[a] += delta ** (place[b] - place[a] - 1)
            C += w * x[b] ** 2 * np.outer(v, v)
            D[:, b] += w * x[b] ** 2 * v
    return C, D


def with_order(
    found: Moments, X: Matrix, places: npt.NDArray[np.int64], order: float, user_weight: float = 0.0
) -> tuple[Matrix, Matrix]:
    """C = S + o·C_order ⊘ (s sᵀ), and D alike."""
    inverse = np.where(found.active, 1 / np.where(found.active, found.s, 1.0), 0.0)
    C, D = order_sums(X, places, user_weight)
    scale = order * np.outer(inverse, inverse)
    return found.S + scale * C, found.S + scale * D


def regression(C: Matrix, D: Matrix) -> Matrix:
    """B' = P·D − P·dMat(diag(P·D) ⊘ diag(P)) with P = C⁻¹, where C has its ridge."""
    P = np.linalg.inv(C)
    B = P @ D
    B = B - P @ np.diag(np.diag(B) / np.diag(P))
    np.fill_diagonal(B, 0.0)
    return B


def dense_with_order(
    X: Matrix,
    places: npt.NDArray[np.int64],
    order: float,
    l2: float,
    alpha: float = 0.75,
    center: bool = True,
    user_weight: float = 0.0,
    F: Matrix | None = None,
    feature_weight: float = 0.0,
) -> Matrix:
    """The dense model with ordered pairs."""
    found = moments(X, alpha, center, user_weight, F, feature_weight)
    C, D = with_order(found, X, places, order, user_weight)
    return rescale(found, regression(C + np.diag(np.where(found.active, ridge(found, l2), 1.0)), D))


def auto_l2(X: Matrix, alpha: float, center: bool = True, user_weight: float = 0.0) -> float:
    """25·q^(1−α)·n̄^(½−α): q is the mean square of an entry, n̄·q the mean of v where it is not 0."""
    found = moments(X, alpha, center, user_weight)
    w = user_weights(X, user_weight)
    q = float((w @ X**2).sum() / (X != 0).sum())
    users = found.v[found.active].mean() / q
    return float(25 * q ** (1 - alpha) * users ** (0.5 - alpha))


def low_rank(X: Matrix, rank: int) -> Matrix:
    """L = D_i^(−½)·U·Uᵀ·D_i^(½) without its diagonal, U from the exact SVD of D_u^(−½)·X·D_i^(−½)."""
    of_users, of_items = (X**2).sum(axis=1), (X**2).sum(axis=0)
    users, items = (np.where(d > 0, d, 1.0) ** 0.5 for d in (of_users, of_items))
    U = np.linalg.svd(X / users[:, None] / items[None, :], full_matrices=False)[2][:rank].T
    L = (U / items[:, None]) @ (U * items[:, None]).T
    np.fill_diagonal(L, 0.0)
    return L


def low_rank_scale(scores: Matrix, low: Matrix, seen: Matrix) -> float:
    """How much larger the scores x·B spread than x·L, over the items that each user has not."""

    def spread(S: Matrix) -> float:
        return float(np.mean([np.var(row[had == 0]) for row, had in zip(S, seen, strict=True)]) ** 0.5)

    return spread(scores) / spread(low)


def novelty_factors(users_of_items: Matrix, novelty: float) -> Matrix:
    """(p/p̄)^(−γ), where p̄ is the number of users of the item of a typical interaction."""
    p = np.asarray(users_of_items, np.float64)
    return np.asarray((np.maximum(p, 1.0) / ((p**2).sum() / p.sum())) ** -novelty)


def measured_ndcg(
    X: Matrix,
    shown: Matrix,
    hidden: Matrix,
    rank: int,
    places: int,
    *,
    l2: float,
    user_weight: float,
    novelty: float,
    rank_weight: float,
) -> Matrix:
    """The nDCG of users who are not in X, by a dense model with α = ½ and a low-rank part.

    An item that ties with another comes after it. The scale of the low-rank part is that of about 256 users.
    """
    B, mu = dense(X, l2, 0.5, user_weight=user_weight), moments(X, 0.5, True, user_weight).mu
    L, base = low_rank(X, rank), mu - mu @ B
    lengths = (X != 0).sum(axis=1)
    sample = X[(lengths > 0) & (lengths < X.shape[1])]
    sample = sample[:: max(1, len(sample) // 256)]
    scale = low_rank_scale(sample @ B + base, sample @ L, sample)
    factors = novelty_factors((X != 0).sum(axis=0), novelty)
    found = []
    for had, wanted in zip(shown, hidden, strict=True):
        scores = (had @ B + base + rank_weight * scale * (had @ L)) * factors
        scores[had != 0] = -np.inf
        gain = 0.0
        for item in np.flatnonzero(wanted):
            place = int((scores >= scores[item]).sum())
            gain += 1 / math.log2(place + 1) if place <= places else 0.0
        best = sum(1 / math.log2(place + 2) for place in range(min(int((wanted != 0).sum()), places)))
        found.append(gain / best)
    return np.array(found)


def ranked_neighbors(S: Matrix, i: int) -> list[int]:
    """All other items by |S|, largest first, ties to the item that follows i most closely."""
    m = len(S)
    size = np.abs(S).astype(np.float32)
    return sorted((j for j in range(m) if j != i), key=lambda j: (-size[j, i], (j - i) % m))


def pattern(S: Matrix, threshold: float, max_neighbors: int = 1000) -> npt.NDArray[np.bool_]:
    """§3.1: A, diagonal included."""
    return capped(S, np.abs(S).astype(np.float32) > np.float32(threshold), max_neighbors)


def share_above(S: Matrix, threshold: float) -> float:
    """The `sparsity` that keeps the entries above a threshold, before the cap."""
    return float(pattern(S, threshold, len(S)).mean())


def pattern_of_share(S: Matrix, sparsity: float, max_neighbors: int = 1000) -> npt.NDArray[np.bool_]:
    """A by its share of entries: the threshold moves in steps, and a step with many ties is cut."""
    m = len(S)
    wanted = max(round(sparsity * m * m) - m, 0)
    step = np.abs(S).astype(np.float32).view(np.uint32) >> 12  # 11 bits of the fraction: 0.05 %
    entries = []
    for i in range(m):
        ranked = [j for j in ranked_neighbors(S, i) if S[j, i] != 0]
        for j in ranked:
            place = sum(step[k, i] == step[j, i] for k in ranked[: ranked.index(j)])
            entries.append((-int(step[j, i]), place, i, j))
    entries.sort()
    ends = [e for e in range(1, len(entries)) if entries[e][0] != entries[e - 1][0]]
    nearest = min([len(entries), *ends, 0], key=lambda end: (abs(end - wanted), -end))
    if abs(nearest - wanted) > 0.01 * wanted:
        nearest = wanted
    taken = np.zeros((m, m), bool)
    for _, _, i, j in entries[:nearest]:
        taken[j, i] = True
    return capped(S, taken, max_neighbors)


def capped(S: Matrix, taken: npt.NDArray[np.bool_], max_neighbors: int) -> npt.NDArray[np.bool_]:
    """The diagonal and, in each column, the largest of the entries taken."""
    A = np.eye(len(S), dtype=bool)
    for i in range(len(S)):
        for j in [j for j in ranked_neighbors(S, i) if taken[j, i]][: max_neighbors - 1]:
            A[j, i] = True
    return A


def schedule(
    S: Matrix, A: npt.NDArray[np.bool_], popularity: npt.NDArray[Any], r: float
) -> list[tuple[int, list[int], list[int]]]:
    """§3.2, steps 1, 2 and 4: for each block its head i, N(i) and D(i)."""
    m = len(S)
    L = sorted(range(m), key=lambda i: (-A[:, i].sum(), -popularity[i], i))
    result = []
    while L:
        i = L[0]
        N = [j for j in ranked_neighbors(S, i) if A[j, i]]
        D = [i, *N[: round(r * len(N))]]
        result.append((i, N, D))
        L = [j for j in L if j not in D]
    return result


def sparse(
    X: Matrix,
    l2: float,
    threshold: float,
    r: float = 0.0,
    max_neighbors: int = 1000,
    alpha: float = 0.75,
    center: bool = True,
    user_weight: float = 0.0,
    F: Matrix | None = None,
    feature_weight: float = 0.0,
    places: npt.NDArray[np.int64] | None = None,
    order: float = 0.0,
) -> tuple[Matrix, npt.NDArray[np.bool_], int, npt.NDArray[np.int64]]:
    """§3: B, A, the number of blocks, and how many estimates each entry had.

    With ordered pairs, C and D take the place of S in the blocks alone.
    """
    found = moments(X, alpha, center, user_weight, F, feature_weight)
    m = X.shape[1]
    A = pattern(found.S, threshold, max_neighbors)
    blocks = schedule(found.S, A, (X != 0).sum(axis=0), r)
    total, count = np.zeros((m, m)), np.zeros((m, m), np.int64)
    diagonal = np.diag(np.where(found.active, ridge(found, l2), 1.0))
    C, D = (found.S, found.S) if places is None else with_order(found, X, places, order, user_weight)
    for i, N, dependents in blocks:
        block = [i, *N]
        part = np.ix_(block, block)
        if places is None:
            P = np.linalg.inv(C[part] + diagonal[part])
            estimates = -P / np.diag(P)
        else:
            estimates = regression(C[part] + diagonal[part], D[part])
        for d in dependents:
            column = block.index(d)
            for row, j in enumerate(block):
                if j != d:
                    total[j, d] += estimates[row, column]
                    count[j, d] += 1
    B = np.where(A & (count > 0), total / np.maximum(count, 1), 0.0)
    return rescale(found, B), A, len(blocks), count


def new_column(
    X: Matrix,
    F: Matrix,
    item: int,
    alpha: float = 0.75,
    user_weight: float = 0.0,
    feature_weight: float = 7.0,
    ridge: float = 10.0,
) -> Matrix:
    """The weights in the score of an item as if nobody had used it: one system with the items most like it.

    The numbers are those of `core/new_items.py`: 100 items, features that count 7, 10 times the usual ridge.
    """
    m = X.shape[1]
    last = np.hstack([X, np.zeros((len(X), 1))])
    wide = np.hstack([F, F[:, [item]]])
    found = moments(last, alpha, True, user_weight, wide, feature_weight)
    N = list(alike_items(X, F, item))
    l2 = ridge * auto_l2(X, alpha, True, user_weight)
    A = found.S[np.ix_(N, N)] + l2 * np.eye(len(N))
    column = np.zeros(m)
    column[N] = np.linalg.solve(A, found.S[N, m]) / found.s[N]
    return column


def alike_items(X: Matrix, F: Matrix, item: int) -> dict[int, float]:
    """The 100 used items with the most similar features, nearest first, and their cosines."""
    length = np.sqrt((F**2).sum(axis=0))
    likeness = {
        j: float(F[:, j] @ F[:, item] / (length[j] * length[item]))
        for j in range(X.shape[1])
        if j != item and X[:, j].any() and (F[:, j] * F[:, item]).any()
    }
    return {j: likeness[j] for j in sorted(likeness, key=lambda j: (-likeness[j], j))[:100]}


def column_of_alike(B: Matrix, X: Matrix, F: Matrix, item: int) -> Matrix:
    """The columns of B of alike items, added up: the fourth power of the cosine over the sum of these^¾."""
    powers = {j: cosine**4 for j, cosine in alike_items(X, F, item).items()}
    column = np.zeros(len(B))
    for j, power in powers.items():
        column += B[:, j] * power / sum(powers.values()) ** 0.75
    return column


def top_k(scores: Matrix, seen: Matrix, k: int) -> npt.NDArray[np.int64]:
    """The k best unseen items of each user, ties by index."""
    rows = []
    for user in range(len(scores)):
        order = sorted(
            (i for i in range(scores.shape[1]) if seen[user, i] == 0), key=lambda i: (-scores[user, i], i)
        )
        rows.append((order + [-1] * k)[:k])
    return np.array(rows)


# ── recommending ──────────────────────────────────────────────────────────────────────────────────


def recommend(
    x: Matrix,
    B: Matrix,
    base: Matrix,
    popularity: Matrix,
    k: int,
    *,
    exclude_seen: bool = True,
    hidden: frozenset[int] = frozenset(),
) -> list[tuple[int, float, str]]:
    """(item, score, source) of one user, best first; equal scores by popularity, then by index."""
    scores = base + x @ B
    possible = [i for i in range(len(x)) if i not in hidden and not (exclude_seen and x[i] != 0)]
    ranked = sorted(possible, key=lambda i: (-scores[i], -popularity[i], i))[:k]
    informed = [any(x[j] * B[j, i] != 0 for j in range(len(x))) for i in range(len(x))]
    return [(i, float(scores[i]), "model" if informed[i] else "popular") for i in ranked]


def holds(row: dict[str, Any], where: dict[str, Any]) -> bool:
    """Whether all conditions hold of a row, whose missing values are None; days are dates or datetimes."""
    return all(_holds(row.get(column), condition) for column, condition in where.items())


def _holds(x: Any, condition: Any) -> bool:
    if isinstance(condition, tuple):
        condition = {word: y for word, y in zip(("least", "most"), condition, strict=True) if y is not None}
    if not isinstance(condition, dict):
        condition = {"any": condition if isinstance(condition, list) else [condition]}
    if "missing" in condition:
        others = {word: y for word, y in condition.items() if word != "missing"}
        return (x is None) == condition["missing"] and (not others or _holds(x, others))
    if x is None:
        return False
    values = x if isinstance(x, list) else [x]

    def same(v: Any, y: Any) -> bool:
        return bool(v.date() == y) if type(v) is datetime and type(y) is date else bool(v == y)

    def day(v: Any, y: Any) -> Any:
        return v.date() if type(v) is datetime and type(y) is date else v

    tests: dict[str, Callable[[Any], bool]] = {
        "any": lambda ys: any(same(v, y) for v in values for y in ys),
        "none": lambda ys: not any(same(v, y) for v in values for y in ys),
        "all": lambda ys: all(y in values for y in ys),
        "least": lambda y: day(x, y) >= y,
        "most": lambda y: day(x, y) <= y,
        "above": lambda y: day(x, y) > y,
        "below": lambda y: day(x, y) < y,
    }
    return all(tests[word](y) for word, y in condition.items())


def lifted(score: float, addend: float, factor: float) -> float:
    """A score with a boost: a factor above 1 also lifts what is below 0."""
    total = score + addend
    return total * factor if total >= 0 else total / factor


def likeness(W: Matrix) -> Matrix:
    """Cosines of the rows of the weights between items, each with the root of Σ W² / m for itself."""
    rows = W + np.eye(len(W)) * (math.sqrt((W**2).sum() / len(W)) or 1.0)
    lengths = [math.sqrt(row @ row) for row in rows]
    m = range(len(W))
    return np.array([[max(rows[i] @ rows[j], 0.0) / (lengths[i] * lengths[j]) for j in m] for i in m])


def choose(
    scores: Matrix,
    popularity: Matrix,
    k: int,
    hidden: frozenset[int] = frozenset(),
    quotas: tuple[tuple[list[set[int]], int], ...] = (),
    variety: float = 0.0,
    weights: Matrix | None = None,
) -> list[int]:
    """Filter, then choose one by one from all items; a quota has the groups of each item, and a number.

    With variety, from the best 5·k, 50 to 500, as long as one of these is possible.
    """
    chosen: list[int] = []

    def is_possible(item: int) -> bool:
        return item not in chosen and all(
            sum(group in groups[other] for other in chosen) < most
            for groups, most in quotas
            for group in groups[item]
        )

    ranked = sorted(
        (i for i in range(len(scores)) if i not in hidden), key=lambda i: (-scores[i], -popularity[i], i)
    )
    ranked = [item for item in ranked if not any(most == 0 and groups[item] for groups, most in quotas)]
    pool = ranked[: min(max(5 * k, 50), 500)]
    alike = np.zeros((0, 0))
    if variety and weights is not None and pool:
        alike = likeness(weights[np.ix_(pool, pool)])
    while len(chosen) < k:
        left = [item for item in ranked if is_possible(item)]
        near = [item for item in pool if is_possible(item)]
        if not left:
            break
        if not (variety and near):
            chosen.append(left[0])
            continue
        low, high = min(scores[pool]), max(scores[pool])
        worth = []
        for item in near:
            r = (scores[item] - low) / ((high - low) or 1.0)
            likest = max((alike[pool.index(item), pool.index(other)] for other in chosen), default=0.0)
            worth.append(round((1 - variety) * r - variety * likest, 9))
        chosen.append(near[worth.index(max(worth))])
    return chosen


# ── accuracy ──────────────────────────────────────────────────────────────────────────────────────


def recall(ranked: list[int], targets: set[int], k: int) -> float:
    return sum(item in targets for item in ranked[:k]) / min(k, len(targets))


def ndcg(ranked: list[int], targets: set[int], k: int) -> float:
    gain = sum(1 / math.log2(place + 2) for place, item in enumerate(ranked[:k]) if item in targets)
    return gain / sum(1 / math.log2(place + 2) for place in range(min(k, len(targets))))


# ── weights of events ─────────────────────────────────────────────────────────────────────────────


def weighted(
    rows: list[tuple[int, str, str, float, float]],
    *,
    kinds: dict[str, float] | None,
    now: float | None,
    since: float | None,
    until: float | None,
    window: float | None,
    duplicates: str,
    binary: bool,
) -> dict[tuple[int, str], float]:
    """Values by user and item, of rows (user, item, kind, day, value); times and durations in days."""
    kept = []
    for user, item, kind, day, value in rows:
        weight = 1.0 if kinds is None else kinds.get(kind, kinds.get("other", 0.0))
        if weight != 0 and (since is None or day >= since) and (until is None or day < until):
            counted = float(np.float32((1.0 if binary else value) * weight))
            kept.append((user, item, counted, day))
    now = max((day for *_, day in kept), default=0.0) if now is None else now
    pairs: dict[tuple[int, str], list[float]] = {}
    for user, item, counted, day in kept:
        if window is None or day > now - window:
            pairs.setdefault((user, item), []).append(counted)
    if binary and kinds is None:
        return dict.fromkeys(pairs, 1.0)
    out = {}
    for pair, counts in pairs.items():
        some = [count for count in counts if count != 0] or [0.0]
        one = {"sum": math.fsum(counts), "max": max(some), "first": some[0], "last": counts[-1]}[duplicates]
        out[pair] = float(np.float32(one))
    return {pair: value for pair, value in out.items() if value != 0}
