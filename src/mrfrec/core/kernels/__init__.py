"""The compiled inner loops. Private: they take arrays, check nothing, and hold no Python objects.

The only folder with `@njit`. Kernels release the interpreter's lock and are called from several threads
(`engines.local`); each call writes to its own part of the output. Integers used as indices are
unsigned where the loop is hot: numba then skips the test for negative indices, a third of the time.
"""
