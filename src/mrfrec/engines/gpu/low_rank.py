"""The singular vectors of the low-rank part on a GPU: products and projections of block Lanczos."""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import embedding_bag

from mrfrec.core.engine import Array, Engine
from mrfrec.core.lanczos import Operations, Side, basis_size, fill_basis
from mrfrec.engines.gpu.device import Device, computes


def needed_bytes(pairs: int, m: int, rank: int, itemsize: int) -> int:
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
    """Return the leading right singular vectors of N as rows, on the host; see the core's `lanczos`."""
    to_device = device.to_device
    scale = to_device(a)[:, None]
    on_device = [[_side_on(device, side) for side in part] for part in parts]

    def multiply(Z: Tensor) -> Tensor:
        Z = Z * scale
        out = torch.zeros_like(Z)
        for part in on_device:
            product = Z
            for ptr, rows, values, weight in part:
                # A sum over the rows of a bag, one after the other: the same for every run.
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
