"""The arguments of a fit besides its data."""

from typing import TYPE_CHECKING, Any, NamedTuple

from mrfrec.core.sparse import Rows
from mrfrec.errors import DataError

if TYPE_CHECKING:
    from mrfrec.core.engine import Progress
    from mrfrec.models.measured import Measured


class FitContext(NamedTuple):
    """The arguments of a fit besides its data."""

    copied: int  # bytes of the matrix, unless the caller holds it
    progress: "Progress | None"
    reuse: dict[str, Any] | None
    validation: tuple[Rows, Rows] | None  # shown and hidden items of validation users
    client: Any = None  # of a cluster
    measured: "Measured | None" = None  # values of an earlier fit, to keep


def validation_rows(validation: object, m: int) -> tuple[Rows, Rows]:
    """Return the shown and the hidden items of validation users, for a model of m items.

    `validation` holds two matrices of users × items: in a pair, or as the attributes `shown` and `targets`.
    """
    from mrfrec.data.interactions import as_histories

    pair = getattr(validation, "shown", None), getattr(validation, "targets", None)
    if pair == (None, None) and isinstance(validation, tuple | list) and len(validation) == 2:
        pair = validation[0], validation[1]
    if pair[0] is None or pair[1] is None:
        kind = type(validation).__name__
        raise DataError(f"validation must be two matrices, of shown and of hidden items; got {kind}.")
    shown, targets = (as_histories(X, "validation") for X in pair)
    if not shown.shape == targets.shape == (shown.shape[0], m):
        raise DataError(
            f"validation must be two matrices with a row for each person and the {m} items of the data as "
            f"columns; got {shown.shape[0]} × {shown.shape[1]} and {targets.shape[0]} × {targets.shape[1]}."
        )
    if both := int(shown.astype(bool).multiply(targets.astype(bool)).nnz):
        raise DataError(f"validation must not show the hidden items; {both:,} pairs are in both matrices.")
    return Rows.of(shown), Rows.of(targets)
