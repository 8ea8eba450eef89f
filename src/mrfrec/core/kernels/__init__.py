"""The compiled inner loops. Private: they take arrays, check nothing, and hold no Python objects.

This is the only folder with `@njit`. Kernels release the interpreter's lock and are called from several
threads (`engines.local`); each call writes to its own part of the output. Hot loops use unsigned indices, so
that numba omits the test for negative ones, which takes a third of the time.
"""
