"""Find the items that go with an item."""

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from mrfrec.answers.columns import NEIGHBOR_COLUMNS, SIMILAR_COLUMNS, columns_shown, neighbor_columns
from mrfrec.answers.people import each_once
from mrfrec.checks import check_count, warn
from mrfrec.core.progress import Progress
from mrfrec.data.catalogue import Columns
from mrfrec.data.ids import Id, as_list, is_table
from mrfrec.fitted.state import FittedState

_ITEMS_AT_ONCE = 1024  # whose neighbors are written as one batch

Array = npt.NDArray[Any]


def nearest(fitted: FittedState, item: int, k: int) -> tuple[Array, Array]:
    """Return the k items that go with an item most strongly, by position, and how strongly; nearest first."""
    items, strengths = fitted.learned.neighbors(item, fitted.catalogue)
    least = np.partition(strengths, -k)[-k] if len(items) > k else -np.inf
    keep = (strengths > 0) & (strengths >= least)
    items, strengths = items[keep], strengths[keep]
    order = np.lexsort((fitted.catalogue.popularity_rank[items], -strengths))[:k]
    return items[order], strengths[order].astype(fitted.score_type)


def as_table(fitted: FittedState, item: Id | Iterable[Id], k: int) -> tuple[Iterable[Columns], list[str]]:
    """Return the nearest of an item, or of several, as columns, and the names of these."""
    of = fitted.catalogue
    if is_table(item) or (isinstance(item, Iterable) and not isinstance(item, str | bytes)):
        return neighbor_batches(fitted, k, as_list(item, "item", "item")), columns_shown(of, SIMILAR_COLUMNS)
    near = nearest(fitted, of.index_of(item), check_count("k", k))  # type: ignore[arg-type]
    if len(near[0]) < k:
        warn(f"item {item!r} has fewer than k={k} similar items: the model knows no more.")
    return [neighbor_columns(of, *near)], columns_shown(of, NEIGHBOR_COLUMNS)


def neighbor_batches(
    fitted: FittedState,
    k: int,
    items: Iterable[Id] | None = None,
    progress: Progress | None = None,
) -> Iterator[Columns]:
    """Return columns of the k nearest of items, of all by default, a thousand items at a time.

    The column `similar_to` names the item; an item that is given several times counts once.
    """
    k = check_count("k", k)
    wanted = np.arange(len(fitted.catalogue.items))
    if items is not None:
        wanted = fitted.catalogue.indices_of(as_list(items, "item", "items"))
        wanted = np.array(each_once(wanted.tolist(), "item"), np.int64)
    return _batches(fitted, wanted, k, progress)


def _batches(
    fitted: FittedState, items: npt.NDArray[np.int64], k: int, progress: Progress | None
) -> Iterator[Columns]:
    """Yield columns of the k nearest of items, by position, a thousand items at a time."""
    short = 0
    for start in range(0, len(items), _ITEMS_AT_ONCE):
        batch = items[start : start + _ITEMS_AT_ONCE]
        lists = [nearest(fitted, item, k) for item in batch.tolist()]
        counts = [len(near) for near, _ in lists]
        short += sum(count < k for count in counts)
        near, strengths = (np.concatenate(parts) for parts in zip(*lists, strict=True))
        yield {
            "similar_to": fitted.catalogue.items.take(np.repeat(batch, counts)),
            **fitted.catalogue.columns(near),
            "score": strengths,
            "rank": np.concatenate([np.arange(1, count + 1, dtype=np.int32) for count in counts]),
        }
        if progress is not None:
            progress("finding similar items", start + len(batch), len(items))
    if short:
        warn(
            f"{short:,} of {len(items):,} items have fewer than k={k} similar items: the model knows no more."
        )
