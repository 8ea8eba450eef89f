"""Add the events of a batch to interactions, or remove users, as if the rest had been read at once.

Sums are exact, in double precision, so that the order of batches makes no difference.
"""

from dataclasses import replace
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from mrfrec.checks import warn
from mrfrec.data.erasures import NEVER, Erasures, are_erased, text_of
from mrfrec.data.holdout import only_entries
from mrfrec.data.ids import Ids, Texts, first_titles
from mrfrec.data.interactions import Interactions, keep_pairs
from mrfrec.data.pairs import DataNote, Origin, Sums, combine, last_times
from mrfrec.errors import DataError


def origin_of_data(data: Interactions) -> Origin:
    """Return the origin of the pairs; the entries of a matrix count as events."""
    return data.origin or Origin.of_matrix(data.matrix.data, data.users, data.items)


def add(old: Interactions, new: Interactions) -> Interactions:
    """Return the interactions that a reader would make of the rows of both.

    The rows of `old` come first, which matters for `duplicates="first"` and "last". New rows without times
    are refused if `old` has times.
    """
    was, more = origin_of_data(old), origin_of_data(new)
    was.check_can_grow()
    if not more.is_matrix and more.rules != was.rules:
        raise DataError(
            f"the new events were read with {more.rules or 'the defaults'}, the others with "
            f"{was.rules or 'the defaults'}. Read them alike: read_interactions(…, **model.reading_)."
        )
    if was.is_binary and not (new.matrix.data == 1).all():
        raise DataError("every pair counts 1 in this model, but the new events have other values.")
    duplicates = str(was.rules.get("duplicates", "sum"))
    if duplicates == "last" and more.sets_to_zero:
        raise DataError(
            'with duplicates="last", some of the new events set a pair to 0, which would take it away from '
            "the data. Fit again on all events."
        )
    users, user, user_type = _union(old.users, new.users, was.users, more.users, "user")
    items, item, item_type = _union(old.items, new.items, was.items, more.items, "item")
    pairs = [data.matrix.tocoo() for data in (old, new)]
    rows = np.concatenate([index[one.row] for index, one in zip(user, pairs, strict=True)])
    columns = np.concatenate([index[one.col] for index, one in zip(item, pairs, strict=True)])
    sums = Sums()
    if was.is_binary:
        matrix, _ = combine(rows, columns, np.ones(len(rows), np.bool_), users, items, duplicates)
        matrix = matrix.astype(np.float32)
    elif duplicates == "sum":
        both = zip(pairs, (was.sums, more.sums), strict=True)
        values = np.concatenate([one.data if exact.values is None else exact.values for one, exact in both])
        total = sp.coo_array((values.astype(np.float64), (rows, columns)), shape=(len(users), len(items)))
        matrix, sums = _added(total.tocsr(), was.sums, more.sums)
    else:
        values = np.concatenate([one.data for one in pairs]).astype(np.float32)
        matrix, _ = combine(rows, columns, values, users, items, duplicates)
    named = chain.from_iterable(
        zip(index.tolist(), data.titles or (), strict=False)
        for data, index in zip((old, new), item, strict=True)
    )
    titles = first_titles(len(items), named)
    keep, times, notes = matrix.data != 0, None, new.notes
    if was.times is not None and more.times is not None:
        times = last_times(rows, columns, np.concatenate([was.times, more.times]), matrix)
    elif was.times is not None:
        raise DataError(
            "the new events have no times, and those of the earlier ones would be lost. Name the column: "
            'time=… (--time-column). Or give the table itself to update with missing_time="oldest" '
            "(--missing-time oldest): its rows then count as the oldest. To give up times, fit again on all "
            "events with time=False."
        )
    elif more.times is not None:
        text = (
            "the earlier events have no times: those of the new ones are not kept. To keep times, fit again."
        )
        notes += (DataNote("missing times", len(new), text),)
        warn(text)
    if times is not None and was.moving_window is not None:
        keep &= times > times.max() - was.moving_window
    origin = replace(was, users=user_type, items=item_type, sums=sums, times=times, is_matrix=False)
    if not keep.all():
        if not keep.any():
            raise DataError("no interactions are left: the values of all pairs add up to 0.")
        matrix, users, items, titles = keep_pairs(matrix, users, items, titles, keep)
        origin = origin.only(keep)
    out = Interactions(matrix, users, items, titles, copy=False).replace(
        library=old.library,
        origin=origin,
        notes=notes,
        table=new.table or old.table,
        erased=old.erased.joined(new.erased),
    )
    if old.features is None:
        return out
    # The items of the table of features stay.
    return out.with_features(old.features.of_table_items(old.titles, old.used))


def added_before(old: Interactions, new: Interactions) -> int:
    """Count the pairs of new events that the data has already, at the same time or a later one.

    If times are missing on one side, every pair that the data has counts.
    """
    known = [
        have.find([str(x) for x in ids] if have.is_text else ids, role)
        for have, ids, role in ((old.users, new.users, "user"), (old.items, new.items, "item"))
    ]
    pairs = new.matrix.tocoo()
    row, column = known[0][pairs.row], known[1][pairs.col]
    both = np.flatnonzero((row >= 0) & (column >= 0))
    m = old.n_items
    codes = np.repeat(np.arange(old.n_users) * m, np.diff(old.matrix.indptr)) + old.matrix.indices
    wanted = row[both] * m + column[both]
    # The codes ascend.
    index = np.minimum(np.searchsorted(codes, wanted), len(codes) - 1)
    there = codes[index] == wanted
    was, more = origin_of_data(old).times, origin_of_data(new).times
    if was is not None and more is not None:
        there &= more[both] <= was[index]
    return int(there.sum())


def without_users(data: Interactions, users: npt.NDArray[np.integer[Any]]) -> Interactions:
    """Remove users by their indices, and the items without features that only they used."""
    stays = np.ones(data.n_users, np.bool_)
    stays[users] = False
    return _only(data, stays, np.repeat(stays, np.diff(data.matrix.indptr)))


def without_erased(data: Interactions, erased: Erasures) -> Interactions:
    """Leave out the pairs of forgotten people up to the day of the erasure; the result has `erased`."""
    out = data
    if erased.beyond(data.erased) and (ends := erased.ends(data.users)) is not None:
        lengths = np.diff(data.matrix.indptr)
        keep = ~are_erased(np.repeat(ends, lengths), origin_of_data(data).times)
        owner = np.repeat(np.arange(data.n_users), lengths)
        stays = (ends == NEVER) | (np.bincount(owner, weights=keep, minlength=data.n_users) > 0)
        if not (keep.all() and stays.all()):
            left_out = owner[~keep]
            text = text_of(len(left_out), np.unique(left_out).size, "pair")
            note = DataNote("erased people", len(left_out), text)
            note.tell()
            out = _only(data, stays, keep).replace(notes=(*data.notes, note))
    return out.replace(erased=erased)


def _only(data: Interactions, stays: npt.NDArray[np.bool_], keep: npt.NDArray[np.bool_]) -> Interactions:
    """Keep some users and some of their pairs; drop items that lose all users and have no features."""
    origin = origin_of_data(data)
    if not keep.any():
        raise DataError("all users of the data would be removed: nothing would be left to fit.")
    origin.check_can_shrink(keep)
    matrix = only_entries(data.matrix, keep)[np.flatnonzero(stays)]
    stay = (np.bincount(matrix.indices, minlength=data.n_items) > 0) | ~data.used
    # Items with features need no users.
    if data.features is not None:
        stay[data.features.matrix.indices] = True
    kept = np.flatnonzero(stay)
    titles = None if data.titles is None else data.titles.take(kept)
    out = Interactions(
        matrix[:, kept], data.users.subset(np.flatnonzero(stays)), data.items.subset(kept), titles, copy=False
    )
    return out.replace(
        library=data.library,
        origin=origin.only(keep),
        table=data.table,
        erased=data.erased,
        features=None if data.features is None else data.features.over(out.items),
    )


def _added(total: sp.csr_array, first: Sums, second: Sums) -> tuple[sp.csr_array, Sums]:
    """Return the sums in single precision, and the exact sums."""
    grain = None if first.grain is None or second.grain is None else min(first.grain, second.grain)
    sums = Sums(total.data, grain, first.bound + second.bound)
    if not sums.are_exact:
        raise DataError(
            "the values of the events are too different in size to be added exactly. Fit again on all "
            "events, or round the values."
        )
    matrix = sp.csr_array((total.data.astype(np.float32), total.indices, total.indptr), shape=total.shape)
    if not np.isfinite(matrix.data).all():
        raise DataError("the values of a pair add up to more than single precision holds. Scale them.")
    return matrix, sums.shortened(matrix.data)


def _union(
    old: Ids, new: Ids, old_type: str, new_type: str, role: str
) -> tuple[Ids, tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]], str]:
    """Return the sorted union of the ids, the index of each table's ids in it, and their type.

    The ids keep the type they have in `old`; only new integers from a text file become strings.
    """
    types = {old_type, new_type}
    type_ = "untyped" if types == {"untyped"} else next(iter(sorted(types - {"untyped"})))
    values: list[Any] = [list(ids) if ids.is_text else ids.values for ids in (old, new)]
    if old.is_text != new.is_text:
        if new.is_text or new_type != "untyped":
            integers, strings = ("new events", "model") if old.is_text else ("model", "new events")
            odd = "" if old.is_text else f", such as {min(values[1], key=_looks_whole)!r}"
            raise DataError(
                f"{role} ids are integers in the {integers} and strings in the {strings}{odd}. Correct those "
                "of the new events, or fit again on all events."
            )
        values[1] = [str(x) for x in new]
    elif not old.is_text and values[0].dtype != values[1].dtype:
        if any(len(part) and part.min() < 0 for part in values):
            raise DataError(f"{role} ids are both below 0 and above 2**63. Make them strings.")
        values = [part.astype(np.uint64) for part in values]
    if isinstance(values[0], list):
        union = Ids(Texts.of(sorted({*values[0], *values[1]})))
        indices = [union.find(part, role) for part in values]
    else:
        both = np.union1d(*values)
        union = Ids(both)
        indices = [np.searchsorted(both, part) for part in values]
    return union, (indices[0].astype(np.int32), indices[1].astype(np.int32)), type_


def _looks_whole(text: str) -> bool:
    return text.isdecimal() and text[0] != "0"
