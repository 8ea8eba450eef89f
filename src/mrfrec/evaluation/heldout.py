"""Hold out users by a hash of their ids: the same users, and the same of their items, every day."""

import numpy as np

from mrfrec.checks import check_count, check_flag, check_number
from mrfrec.data.heldout import FEWEST, by_lowest_hash, hashed, hidden_entries
from mrfrec.data.interactions import Interactions, only
from mrfrec.errors import DataError
from mrfrec.evaluation.splits import Split, check_type, hidden_questions


def by_hash(
    data: Interactions,
    heldout: float = 0.1,
    *,
    hidden: float = 0.2,
    most: int = 10_000,
    validation: bool = False,
) -> Split:
    """Hold out the users whose hash is below a limit, and hide some of their items.

    Parameters
    ----------
    heldout
        Share of the users with five items or more to hold out.
    hidden
        Share of each held-out user's items that are to be guessed, rounded down.
    most
        Hold out at most so many users, those with the lowest hashes.
    validation
        Hold out as many again, to tune on.
    """
    check_type("data", data, Interactions)
    limit = 0.5 if validation else 1.0
    heldout = check_number("heldout", heldout, f"above 0 and below {limit:g}", lambda x: 0 < x < limit)
    hidden = check_number("hidden", hidden, "above 0 and below 1", lambda x: 0 < x < 1)
    most = check_count("most", most)
    X = data.matrix
    names = ("test", "validation") if check_flag("validation", validation) else ("test",)
    lengths = np.diff(X.indptr)
    parts = by_lowest_hash(data.users, lengths, heldout, most, len(names))
    trains = np.ones(data.n_users, np.bool_)
    trains[np.concatenate(parts)] = False
    trained = np.repeat(trains, lengths)
    for name, part in zip(names, parts, strict=True):
        if not len(part) or not trained.any():
            raise DataError(
                f"{len(part):,} {name} users can be held out of {data.n_users:,}, of whom "
                f"{(lengths >= FEWEST).sum():,} have {FEWEST} items or more. Hold out another share "
                "(heldout), or wait for more data."
            )
    training = Interactions(*only(X, data.users, data.items, data.titles, trained), copy=False)
    training.features = None if data.features is None else data.features.over(training.items)
    items = np.flatnonzero(np.bincount(X.indices[trained], minlength=data.n_items))
    of_items, asked = hashed(data.items, items), []
    nothing = "there is nothing to ask the held-out users: raise hidden, or hold out more of them (heldout)."
    for part in parts:  # hide the items whose hashes with the user are lowest
        shown = X[part][:, items]
        lengths = np.diff(shown.indptr)
        count = np.where(lengths >= FEWEST, (hidden * lengths).astype(np.int64), 0)
        hide = hidden_entries(shown, hashed(data.users, part), of_items, count)
        asked.append(hidden_questions(data.users.subset(part), shown, hide, nothing))
    name = f"{' + '.join(f'{len(part):,}' for part in parts)} users held out by hash"
    return Split(training, asked[0], asked[1] if validation else None, name, whole=data.size)
