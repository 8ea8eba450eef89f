"""The Debian data set that comes with the package, and the data sets of the paper."""

from mrfrec.datasets.prepared import (
    Check,
    Listed,
    available,
    events,
    load,
    prepare,
    split,
    verify,
    write_vae_cf,
)

__all__ = [
    "Check",
    "Listed",
    "available",
    "events",
    "load",
    "prepare",
    "split",
    "verify",
    "write_vae_cf",
]
