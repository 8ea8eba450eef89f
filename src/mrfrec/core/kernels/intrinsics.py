"""What kernels need and numba lacks or compiles slowly.

Kernels take the addresses of LAPACK routines as plain integers, because numba does not cache a function that
holds a ctypes pointer.
"""

from functools import cache
from typing import Any, NamedTuple

from llvmlite import ir
from numba import extending, types
from numba.core import cgutils

# The decorated functions are called without their first parameter, which a type checker cannot know.
intrinsic: Any = extending.intrinsic


class Lapack(NamedTuple):
    """Addresses of the BLAS and LAPACK routines of one precision, taken from SciPy's own library."""

    gemm: int
    trsm: int
    trsv: int
    potrf: int
    trtri: int


@cache
def lapack(dtype: str) -> Lapack:
    """Return the routines for "float32" or "float64"."""
    letter = {"float32": "s", "float64": "d"}[dtype]

    def address(name: str) -> int:
        module = "cython_blas" if name in ("gemm", "trsm", "trsv") else "cython_lapack"
        return int(extending.get_cython_function_address(f"scipy.linalg.{module}", letter + name))

    return Lapack(*map(address, Lapack._fields))


@intrinsic
def fortran(typingctx: Any, address: Any, arguments: Any) -> Any:
    """Call the Fortran routine at `address`, every argument by reference.

    An array is passed as the address of its first element, and a pair (array, offset) as the address of the
    element at that offset in memory. An integer is passed as a 32-bit copy, and a float as a copy of its own
    type. A letter such as "L" is written as `ord("L")`: Fortran reads the first byte of the little-endian
    integer. Return the last argument as the routine left it if it is an integer, such as LAPACK's `info`;
    otherwise 0.
    """
    signature = types.int32(types.intp, arguments)

    def codegen(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        def data(kind: Any, array: Any) -> Any:
            return context.make_array(kind)(context, builder, array).data

        byte_pointer = ir.IntType(8).as_pointer()
        pointers: list[Any] = []
        last = None
        for kind, value in zip(
            signature.args[1].types, cgutils.unpack_tuple(builder, values[1]), strict=True
        ):
            if isinstance(kind, types.Array):
                last = data(kind, value)
            elif isinstance(kind, types.Tuple):
                array, offset = cgutils.unpack_tuple(builder, value)
                last = builder.gep(data(kind.types[0], array), [offset])
            elif isinstance(kind, types.Integer):
                last = cgutils.alloca_once_value(builder, context.cast(builder, value, kind, types.int32))
            else:
                last = cgutils.alloca_once_value(builder, value)
            pointers.append(builder.bitcast(last, byte_pointer))
        routine = ir.FunctionType(ir.VoidType(), [byte_pointer] * len(pointers))
        builder.call(builder.inttoptr(values[0], routine.as_pointer()), pointers)
        if isinstance(kind, types.Integer):
            return builder.load(last)
        return context.get_constant(types.int32, 0)

    return signature, codegen


@intrinsic
def prefetch(typingctx: Any, address: Any) -> Any:
    """Load the cache line at `address` before it is used; an invalid address does no harm."""
    signature = types.void(types.intp)

    def codegen(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        byte_pointer, int32 = ir.IntType(8).as_pointer(), ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [byte_pointer, int32, int32, int32])
        hint = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        read, keep_in_every_cache, data = int32(0), int32(3), int32(1)
        builder.call(hint, [builder.inttoptr(values[0], byte_pointer), read, keep_in_every_cache, data])
        return context.get_dummy_value()

    return signature, codegen


@intrinsic
def integers_128(typingctx: Any) -> Any:
    """Return a pointer to 128 integers of 64 bits on the stack, valid until the function returns."""

    def codegen(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        return cgutils.alloca_once(builder, ir.IntType(64), 128)

    return types.CPointer(types.int64)(), codegen
