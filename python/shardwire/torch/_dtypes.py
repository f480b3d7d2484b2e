# SPDX-License-Identifier: Apache-2.0
"""Element types of both sides."""

from __future__ import annotations

import torch

from .. import Unsupported

_names: dict[torch.dtype, str] = {
    torch.float64: "f64", torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16", torch.int64: "i64",
    torch.int32: "i32", torch.int16: "i16", torch.int8: "i8", torch.uint8: "u8", torch.bool: "bool", torch.uint64: "u64",
    torch.uint32: "u32", torch.uint16: "u16", torch.complex128: "complex128", torch.complex64: "complex64",
    torch.float8_e4m3fn: "f8e4m3", torch.float8_e5m2: "f8e5m2", torch.float8_e4m3fnuz: "f8e4m3fnuz",
    torch.float8_e5m2fnuz: "f8e5m2fnuz", torch.float8_e8m0fnu: "f8e8m0",
}
_dtypes = {name: dtype for dtype, name in _names.items()}


def name_of(dtype: torch.dtype) -> str:
    """The library's name of a dtype."""
    name = _names.get(dtype)
    if name is None:
        raise Unsupported(f"tensors of {dtype} cannot be published or restored")
    return name


def dtype_of(name: str) -> torch.dtype:
    """The dtype of a name."""
    dtype = _dtypes.get(name)
    if dtype is None:
        raise Unsupported(f"torch has no dtype for elements of type {name}")
    return dtype
