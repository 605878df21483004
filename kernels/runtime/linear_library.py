"""cuBLASLt called with an algorithm that is named, not chosen anew at every call; no process-wide setting is touched.

An algorithm is 64 bytes that one version of the library can read. Offered are algorithms that walk k in one chain, or
that split it in so many parts and add their float32 sums in order: seen to cut where chunks of ceil(steps / parts)
would. Whether two of them give the same bits is for the caller to check.
"""

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any

import torch

NAME = "libcublasLt.so.13"
WORKSPACE_BYTES = 32 << 20
"""What an algorithm may use at most; taken from torch's allocator for each call, so streams do not share it."""
_BFLOAT16, _FLOAT32, _SUMS_FLOAT32, _TRANSPOSED = 14, 0, 68, 1
_TRANSPOSE_FIRST, _EPILOGUE, _BIAS = 3, 7, 8
_ADD_BIAS = 4
_MOST_WORKSPACE, _REDUCTIONS, _SPLITS = 1, 3, 2
_NO_REDUCTION, _FLOAT32_REDUCTION = 0, 2


class LibraryFailed(RuntimeError):
    """cuBLASLt is missing or refused a call; the message names the call and the status."""


@dataclass(frozen=True, slots=True)
class Algorithm:
    """`code` in hexadecimal, and the bytes of workspace it needs for the product it was offered for."""

    code: str
    workspace_bytes: int


class _Algorithm(ctypes.Structure):
    _fields_ = (("words", ctypes.c_uint64 * 8),)


class _Offer(ctypes.Structure):
    """cublasLtMatmulHeuristicResult_t."""

    _fields_ = (
        ("algorithm", _Algorithm),
        ("workspace_bytes", ctypes.c_size_t),
        ("status", ctypes.c_int),
        ("waves", ctypes.c_float),
        ("reserved", ctypes.c_int * 4),
    )


def version() -> int:
    """The library's, such as 130100. Raises LibraryFailed."""
    library = _library()
    library.cublasLtGetVersion.restype = ctypes.c_size_t
    return int(library.cublasLtGetVersion())


def offers(rows: int, outs: int, width: int, count: int, parts: int = 1) -> tuple[Algorithm, ...]:
    """Of `count` algorithms for x [rows, width] and weight [outs, width] those with so many parts, favourites first."""
    product, found, got = _product(rows, outs, width), (_Offer * count)(), ctypes.c_int()
    with _preference(_NO_REDUCTION if parts == 1 else _FLOAT32_REDUCTION) as preference:
        status = _library().cublasLtMatmulAlgoGetHeuristic(
            *(
                _handle(torch.cuda.current_device()),
                _plain_operation(),
                product.weight,
                product.x,
                product.y,
                product.y,
            ),
            *(preference, count, found, ctypes.byref(got)),
        )
    taken = () if status else (offer for offer in found[: got.value] if offer.status == 0)
    split = (offer for offer in taken if _parts(offer.algorithm) == parts)
    return tuple(Algorithm(bytes(offer.algorithm).hex(), offer.workspace_bytes) for offer in split)


def _parts(algorithm: _Algorithm) -> int:
    """In how many parts an algorithm splits k; 1 for those that know no splitting."""
    value, written = ctypes.c_uint32(), ctypes.c_size_t()
    _library().cublasLtMatmulAlgoConfigGetAttribute(
        *(ctypes.byref(algorithm), _SPLITS, ctypes.byref(value), ctypes.c_size_t(4), ctypes.byref(written))
    )
    return max(1, int(value.value))


def workspace_bytes(code: str, rows: int, outs: int, width: int) -> int | None:
    """What the algorithm needs for this product; None when it cannot do it."""
    product, offer = _product(rows, outs, width), _Offer()
    status = _library().cublasLtMatmulAlgoCheck(
        *(_handle(torch.cuda.current_device()), _plain_operation(), product.weight, product.x, product.y, product.y),
        *(ctypes.byref(_decoded(code)), ctypes.byref(offer)),
    )
    return None if status else int(offer.workspace_bytes)


def run(code: str, x: torch.Tensor, weight: torch.Tensor, out: torch.Tensor, bias: torch.Tensor | None = None) -> None:
    """out [rows, outs] = x [rows, width] times weight [outs, width] transposed, plus bias, on torch's current stream.

    The bias [outs] is added to the float32 sum, which is rounded once. Raises LibraryFailed.
    """
    rows, outs, width = x.shape[0], weight.shape[0], x.shape[1]
    product, needed = _product(rows, outs, width), _needed(code, rows, outs, width)
    space = torch.empty(needed, dtype=torch.uint8, device=x.device) if needed else None
    with _operation(bias) as operation:
        _call(
            "cublasLtMatmul",
            *(_handle(x.device.index), operation, ctypes.byref(ctypes.c_float(1.0))),
            *(_pointer(weight), product.weight, _pointer(x), product.x, ctypes.byref(ctypes.c_float(0.0))),
            *(_pointer(out), product.y, _pointer(out), product.y, ctypes.byref(_decoded(code))),
            *(None if space is None else _pointer(space), ctypes.c_size_t(needed)),
            ctypes.c_void_p(torch.cuda.current_stream(x.device).cuda_stream),
        )


@lru_cache(maxsize=65536)
def _needed(code: str, rows: int, outs: int, width: int) -> int:
    needed = workspace_bytes(code, rows, outs, width)
    if needed is None or needed > WORKSPACE_BYTES:
        raise LibraryFailed(f"cuBLASLt {version()} cannot run algorithm {code[:16]}... for {rows} x {width} -> {outs}")
    return needed


@dataclass(frozen=True, slots=True)
class _Product:
    """Handles of the three matrices, column by column: y is [outs, rows] there, weight transposed."""

    weight: ctypes.c_void_p
    x: ctypes.c_void_p
    y: ctypes.c_void_p


@lru_cache(maxsize=65536)
def _product(rows: int, outs: int, width: int) -> _Product:
    return _Product(_matrix(width, outs), _matrix(width, rows), _matrix(outs, rows))


@contextmanager
def _operation(bias: torch.Tensor | None) -> Iterator[ctypes.c_void_p]:
    """A description of the product; with a bias one of its own, as the bias's address is part of it."""
    if bias is None:
        yield _plain_operation()
        return
    made = _new_operation()
    try:
        _set("cublasLtMatmulDescSetAttribute", made, _EPILOGUE, ctypes.c_uint32(_ADD_BIAS))
        _set("cublasLtMatmulDescSetAttribute", made, _BIAS, _pointer(bias))
        yield made
    finally:
        _library().cublasLtMatmulDescDestroy(made)


@cache
def _plain_operation() -> ctypes.c_void_p:
    return _new_operation()


def _new_operation() -> ctypes.c_void_p:
    made = ctypes.c_void_p()
    _call("cublasLtMatmulDescCreate", ctypes.byref(made), _SUMS_FLOAT32, _FLOAT32)
    _set("cublasLtMatmulDescSetAttribute", made, _TRANSPOSE_FIRST, ctypes.c_int32(_TRANSPOSED))
    return made


def _matrix(rows: int, columns: int) -> ctypes.c_void_p:
    made = ctypes.c_void_p()
    sizes = (ctypes.c_uint64(rows), ctypes.c_uint64(columns), ctypes.c_int64(rows))
    _call("cublasLtMatrixLayoutCreate", ctypes.byref(made), _BFLOAT16, *sizes)
    return made


@contextmanager
def _preference(reductions: int) -> Iterator[ctypes.c_void_p]:
    made = ctypes.c_void_p()
    _call("cublasLtMatmulPreferenceCreate", ctypes.byref(made))
    try:
        _set("cublasLtMatmulPreferenceSetAttribute", made, _MOST_WORKSPACE, ctypes.c_uint64(WORKSPACE_BYTES))
        _set("cublasLtMatmulPreferenceSetAttribute", made, _REDUCTIONS, ctypes.c_uint32(reductions))
        yield made
    finally:
        _library().cublasLtMatmulPreferenceDestroy(made)


@cache
def _handle(device: int) -> ctypes.c_void_p:
    made = ctypes.c_void_p()
    with torch.cuda.device(device):
        _call("cublasLtCreate", ctypes.byref(made))
    return made


@cache
def _library() -> ctypes.CDLL:
    try:
        return ctypes.CDLL(NAME)
    except OSError as error:
        raise LibraryFailed(f"{NAME} cannot be loaded: {error}; import torch built for CUDA 13 first") from error


@lru_cache(maxsize=4096)
def _decoded(code: str) -> _Algorithm:
    return _Algorithm.from_buffer_copy(bytes.fromhex(code))


def _pointer(tensor: torch.Tensor) -> ctypes.c_void_p:
    return ctypes.c_void_p(tensor.data_ptr())


def _set(name: str, handle: ctypes.c_void_p, attribute: int, value: "ctypes._SimpleCData[Any]") -> None:
    _call(name, handle, attribute, ctypes.byref(value), ctypes.c_size_t(ctypes.sizeof(value)))


def _call(name: str, *arguments: object) -> None:
    status = getattr(_library(), name)(*arguments)
    if status:
        raise LibraryFailed(f"{name}: cuBLAS status {status}")
