"""Products of a sparse matrix with a narrow one."""

from mrfrec.core.kernels.compile import kernel


@kernel
def sum_rows(first, last, ptr, rows, values, weight, Z, out):
    """Write weight_u·Σ value·Z[row] over the rows of each u from first to last into `out`, as wide as Z.

    Eight rows are added in each round, so that the sums are read and written less often.
    """
    k, one = Z.shape[1], Z.dtype.type(1.0)
    binary = len(values) == 0
    for u in range(first, last):
        sums, t, stop = out[u], ptr[u], ptr[u + 1]
        for f in range(k):
            sums[f] = 0
        while binary and t + 8 <= stop:
            z0, z1, z2, z3 = Z[rows[t]], Z[rows[t + 1]], Z[rows[t + 2]], Z[rows[t + 3]]
            z4, z5, z6, z7 = Z[rows[t + 4]], Z[rows[t + 5]], Z[rows[t + 6]], Z[rows[t + 7]]
            for f in range(k):
                sums[f] += ((z0[f] + z1[f]) + (z2[f] + z3[f])) + ((z4[f] + z5[f]) + (z6[f] + z7[f]))
            t += 8
        while t < stop:
            x, z0 = one if binary else values[t], Z[rows[t]]
            for f in range(k):
                sums[f] += x * z0[f]
            t += 1
        for f in range(k):
            sums[f] *= weight[u]
