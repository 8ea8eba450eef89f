"""Find the items that go with an item."""

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from mrfrec.checks import check_count, warn
from mrfrec.data.catalogue import NEIGHBOR_COLUMNS, SIMILAR_COLUMNS, Columns
from mrfrec.data.ids import Id, as_list, is_table
from mrfrec.models.answers.histories import each_once

if TYPE_CHECKING:
    from mrfrec.core.engine import Progress
    from mrfrec.models.recommender import Recommender

_ITEMS_AT_ONCE = 1024  # whose neighbors are written as one batch

Array = npt.NDArray[Any]


def neighbors(model: "Recommender", item: int) -> tuple[Array, Array]:
    """Return the items that go with an item, by position and in any order, and how strongly."""
    return model._neighbors(item)


def nearest(model: "Recommender", item: int, k: int) -> tuple[Array, Array]:
    """Return the k items that go with an item most strongly, by position, and how strongly; nearest first."""
    items, strengths = model._neighbors(item)
    least = np.partition(strengths, -k)[-k] if len(items) > k else -np.inf
    keep = (strengths > 0) & (strengths >= least)
    items, strengths = items[keep], strengths[keep]
    order = np.lexsort((model.catalogue.by_popularity[items], -strengths))[:k]
    return items[order], strengths[order].astype(model.score_type)


def table(model: "Recommender", item: Id | Iterable[Id], k: int) -> Any:
    """Return the nearest of an item, or of several, as a data frame."""
    if is_table(item) or (isinstance(item, Iterable) and not isinstance(item, str | bytes)):
        return model._frame(neighbor_batches(model, k, as_list(item, "item", "item")), SIMILAR_COLUMNS)
    found = nearest(model, model.catalogue.position(item), check_count("k", k))  # type: ignore[arg-type]
    if len(found[0]) < k:
        warn(f"item {item!r} has fewer than k={k} similar items: the model knows no more.")
    return model._frame([model.catalogue.neighbor_columns(*found)], NEIGHBOR_COLUMNS)


def neighbor_batches(
    model: "Recommender",
    k: int,
    items: Iterable[Id] | None = None,
    progress: "Progress | None" = None,
    *,
    once: bool = False,
) -> Iterator[Columns]:
    """Return columns of the k nearest of items, of all by default, a thousand items at a time.

    The column `similar_to` holds each of the items; with `once`, none of them several times.
    """
    k, catalogue = check_count("k", k), model.catalogue
    wanted = np.arange(len(catalogue.items))
    if items is not None:
        wanted = catalogue.positions(as_list(items, "item", "items"))
    if once:
        wanted = np.array(each_once(wanted.tolist(), "item"), np.int64)
    return _batches(model, wanted, k, progress)


def _batches(
    model: "Recommender", items: npt.NDArray[np.int64], k: int, progress: "Progress | None"
) -> Iterator[Columns]:
    short = 0
    for start in range(0, len(items), _ITEMS_AT_ONCE):
        batch = items[start : start + _ITEMS_AT_ONCE]
        found = [nearest(model, item, k) for item in batch.tolist()]
        counts = [len(near) for near, _ in found]
        short += sum(count < k for count in counts)
        near, strengths = (np.concatenate(parts) for parts in zip(*found, strict=True))
        yield {
            "similar_to": model.items_.take(np.repeat(batch, counts)),
            **model.catalogue.columns(near),
            "score": strengths,
            "rank": np.concatenate([np.arange(1, count + 1, dtype=np.int32) for count in counts]),
        }
        if progress is not None:
            progress("finding similar items", start + len(batch), len(items))
    if short:
        warn(
            f"{short:,} of {len(items):,} items have fewer than k={k} similar items: the model knows no more."
        )
