"""The stages of a fit on a GPU: the dense model, Eq. 4 in one m × m array, and the singular vectors.

The lower triangle of the array is S, its Cholesky factor L, W = L⁻¹ and C = Wᵀ·W in turn; at the end both
triangles are B. All steps work in place, on strips of rows, so that the model may fill the memory of the
device. Products are in the precision of the model: TF32 is not used.
"""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import embedding_bag

from mrfrec.core import closed_form
from mrfrec.core.engine import Array, Engine, Floats, ranges
from mrfrec.core.low_rank import Operations, Side, basis_size, fill_basis
from mrfrec.core.statistics import Statistics, not_positive_definite
from mrfrec.engines.gpu.device import LIBRARIES, Device, computes, dtype_name
from mrfrec.engines.gpu.rows import StreamedRows, rows_bytes

# With fewer items, "auto" does not use the device: starting a GPU takes as long as the fit without it.
_LEAST_ITEMS = 5_000
# A tile of the factorisation has so many rows and columns.
_TILE_SIDE = 2048
# So many rows are turned into weights at one time.
_STRIP_ROWS = 512


def dense_bytes(m: int, itemsize: int) -> int:
    """Return the bytes of the array and of the strips that a step works on."""
    return itemsize * m * (m + 3 * max(_TILE_SIDE, _STRIP_ROWS))


@computes
def dense_weights(
    device: Device, statistics: Statistics, ridge: Floats, dtype: str, mean_constraint: bool, engine: Engine
) -> Array:
    """Return B, on the host."""
    m = statistics.m
    streamed = StreamedRows(statistics, device)
    with device.host_array(m, dtype, engine.threads) as out:
        with engine.stage("matrix", m):
            A = torch.empty((m, m), dtype=getattr(torch, dtype), device=device.torch)
            item = torch.arange(m, device=device.torch)
            for i0, i1, sums in streamed.strips():
                A[i0:i1, :i1] = streamed.entries(sums, item[i0:i1, None], item[:i1])
                engine.advance(i1 - i0)
            streamed.free()
        A.diagonal().copy_(device.to_device(np.where(statistics.active, statistics.S_diagonal + ridge, 1.0)))
        _invert(A, engine)
        with engine.stage("weights", m):
            _weights(A, statistics, mean_constraint, device)
    with engine.stage("weights", m):
        return device.to_host(A, out, engine)


# ── C ─────────────────────────────────────────────────────────────────────────────────────────────


def _invert(A: Tensor, engine: Engine) -> None:
    """Replace the lower triangle of A by that of A⁻¹."""
    m = len(A)
    tiles = ranges(0, m, _TILE_SIDE)
    space = torch.empty(min(_TILE_SIDE, m) * m, dtype=A.dtype, device=A.device)  # for a row of tiles
    with engine.stage("factorise", m):
        # A = L·Lᵀ, one column of tiles at a time.
        for k0, k1 in tiles:
            A[k0:, k0:k1].addmm_(A[k0:, :k0], A[k0:k1, :k0].T, alpha=-1)
            L, failed = torch.linalg.cholesky_ex(A[k0:k1, k0:k1])
            if int(failed):
                raise not_positive_definite(f"the item-item matrix of {m} items", dtype_name(A))
            A[k0:k1, k0:k1] = L  # with zeros above the diagonal
            if k1 < m:
                A[k1:, k0:k1] = torch.linalg.solve_triangular(L.T, A[k1:, k0:k1], upper=True, left=False)
            engine.advance(k1 - k0)
    with engine.stage("invert factor", m):
        # W = L⁻¹, one row of tiles at a time.
        for i0, i1 in tiles:
            identity = torch.eye(i1 - i0, dtype=A.dtype, device=A.device)
            own = torch.linalg.solve_triangular(A[i0:i1, i0:i1], identity, upper=False)
            panel = space[: (i1 - i0) * i0].view(i1 - i0, i0)
            torch.mm(own, A[i0:i1, :i0], out=panel).neg_()
            for j0, j1 in ranges(0, i0, _TILE_SIDE):
                torch.mm(panel[:, j0:], A[j0:i0, j0:j1], out=A[i0:i1, j0:j1])
            A[i0:i1, i0:i1] = own
            engine.advance(i1 - i0)
    with engine.stage("multiply factor", m):
        # C = Wᵀ·W, one row of tiles at a time.
        for i0, i1 in tiles:
            row = space[: (i1 - i0) * i1].view(i1 - i0, i1)
            A[i0:i1, :i1] = torch.mm(A[i0:, i0:i1].T, A[i0:, :i1], out=row)
            engine.advance(i1 - i0)


# ── B ─────────────────────────────────────────────────────────────────────────────────────────────


def _weights(A: Tensor, statistics: Statistics, mean_constraint: bool, device: Device) -> None:
    """Replace C by B; the letters are those of the core's `closed_form`."""
    z = np.zeros(len(A))
    if mean_constraint:
        mu = statistics.mu * statistics.scaling.a
        z = _symmetric_product(A, mu, device)
        z /= np.sqrt(mu @ z) if mu.any() else 1.0
    diagonal = A.diagonal().double().cpu().numpy() - z**2
    factor = closed_form.column_factor(statistics, diagonal, dtype_name(A))
    a, f, rank_one = (device.to_device(x).to(A.dtype) for x in (statistics.scaling.a, factor, z))
    # The largest strip comes first, so that later strips use its memory again.
    for i0, i1 in reversed(ranges(0, len(A), _STRIP_ROWS)):
        strip = torch.addcmul(A[i0:i1, :i1], rank_one[i0:i1, None], rank_one[:i1], value=-1).neg_()
        own = strip[:, i0:].tril(-1)
        strip[:, i0:] = own + own.T  # zeros on the diagonal
        A[:i1, i0:i1] = strip.T * a[:i1, None] * f[i0:i1]
        A[i0:i1, :i1] = strip * a[i0:i1, None] * f[:i1]


def _symmetric_product(A: Tensor, x: Floats, device: Device) -> Floats:
    """Return C·x in float64, from the lower triangle of C."""
    x_on_device = device.to_device(x)
    out = torch.zeros(len(A), dtype=torch.float64, device=A.device)
    for i0, i1 in ranges(0, len(A), _STRIP_ROWS):
        strip = A[i0:i1, :i1].double()
        own = strip[:, i0:].tril()
        out[i0:i1] += strip[:, :i0] @ x_on_device[:i0] + (own + own.tril(-1).T) @ x_on_device[i0:i1]
        out[:i0] += strip[:, :i0].T @ x_on_device[i0:i1]
    return np.asarray(out.cpu().numpy())


# ── the low-rank part: products and projections of block Lanczos ─────────────────────────────────────


def low_rank_bytes(pairs: int, m: int, rank: int, itemsize: int) -> int:
    """Return the bytes of both sides of the data, the basis and a few of its blocks; 0 without a rank."""
    if not rank:
        return 0
    block, columns = basis_size(rank, m)
    return (8 + 2 * itemsize) * pairs + itemsize * m * (columns + rank + 8 * block)


@computes
def leading_vectors(
    device: Device,
    parts: list[tuple[Side, Side]],
    a: Array,
    random: Callable[[int], Array],
    columns: int,
    rank: int,
    engine: Engine,
) -> Array:
    """Return the leading right singular vectors of N as rows, on the host; see the core's `low_rank`."""
    to_device = device.to_device
    scale = to_device(a)[:, None]
    on_device = [[_side_on(device, side) for side in part] for part in parts]

    def multiply(Z: Tensor) -> Tensor:
        Z = Z * scale
        out = torch.zeros_like(Z)
        for part in on_device:
            product = Z
            for ptr, rows, values, weight in part:
                # The rows of a bag are added one after the other, so every run gives the same sum.
                sums = embedding_bag(rows, product, ptr, mode="sum", per_sample_weights=values)
                product = sums * weight
            out += product
        return out * scale

    def project(basis: Tensor, product: Tensor) -> Array:
        inside = basis @ product
        product -= basis.T @ inside
        product -= basis.T @ (basis @ product)  # again, for the rounding of the first time
        return np.asarray(inside.cpu().numpy())

    basis = torch.empty((columns, len(a)), dtype=scale.dtype, device=scale.device)
    operations = Operations(
        random=lambda seed: to_device(random(seed)),
        multiply=multiply,
        project=project,
        gram=lambda Q: (Q.T.double() @ Q.double()).cpu().numpy(),
        transform=lambda Q, R: Q @ to_device(R.astype(a.dtype)),
    )
    vectors = fill_basis(basis, operations, engine)
    chosen = to_device(vectors[:, :rank].T.astype(a.dtype))
    return np.asarray((chosen @ basis).cpu().numpy())


def _side_on(device: Device, side: Side) -> tuple[Tensor, Tensor, Tensor | None, Tensor]:
    """Return a side with its arrays on the device, as `embedding_bag` takes them."""
    ptr = side.ptr[:-1].astype(np.int32)
    values = device.to_device(side.values) if len(side.values) else None
    return device.to_device(ptr), device.to_device(side.rows), values, device.to_device(side.weight)[:, None]


# ── the device of a fit ───────────────────────────────────────────────────────────────────────────


class TorchAccelerator(Device):
    """The stages of a fit on a device of PyTorch.

    Results equal those of the core up to rounding, and are the same for every run on one device. With
    `if_it_pays`, the device fits only models of `_LEAST_ITEMS` or more, where it has room for them.
    """

    def __init__(self, name: str, *, if_it_pays: bool = False) -> None:
        super().__init__(name)
        self.name = name
        self.if_it_pays = if_it_pays

    def takes(self, m: int, pairs: int, binary: bool, dtype: str, rank: int) -> bool:
        """Return whether the device is to fit a dense model of this size.

        With `if_it_pays`, a device without room returns False; else it raises `MemoryPlanError`.
        """
        if self.if_it_pays and m < _LEAST_ITEMS:
            return False
        itemsize = np.dtype(dtype).itemsize
        weights = max(itemsize * m * m + rows_bytes(pairs, binary), dense_bytes(m, itemsize))
        needed = LIBRARIES + max(weights, low_rank_bytes(pairs, m, rank, itemsize))
        memory = self.memory
        if self.if_it_pays and needed > memory.limit:
            return False
        advice = 'Use a sparse model, device="cpu", or a device with more memory.'
        memory.check("dense, on the device", needed, advice)
        return True

    leading_vectors = leading_vectors
    dense_weights = dense_weights
