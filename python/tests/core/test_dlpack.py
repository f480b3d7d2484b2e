# SPDX-License-Identifier: Apache-2.0
"""Memory by DLPack, from stand-ins for arrays of frameworks and of devices that this machine need not have."""

from __future__ import annotations

import ctypes
import gc
from typing import Any

import numpy as np
import pytest

import shardwire as sw

CPU, CUDA, CUDA_HOST, ROCM, CUDA_MANAGED = 1, 2, 3, 10, 13
READ_ONLY = 1


class Tensor(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("device", ctypes.c_int32 * 2), ("ndim", ctypes.c_int32), ("code", ctypes.c_uint8),
                ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16), ("shape", ctypes.c_void_p), ("strides", ctypes.c_void_p),
                ("byte_offset", ctypes.c_uint64)]


Deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class Managed(ctypes.Structure):
    _fields_ = [("tensor", Tensor), ("context", ctypes.c_void_p), ("deleter", Deleter)]


class Versioned(ctypes.Structure):
    _fields_ = [("version", ctypes.c_uint32 * 2), ("context", ctypes.c_void_p), ("deleter", Deleter), ("flags", ctypes.c_uint64),
                ("tensor", Tensor)]


new_capsule = ctypes.pythonapi.PyCapsule_New
new_capsule.restype, new_capsule.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]


class Array:
    """Floats at an address that is never read, on a device of this type."""

    def __init__(self, device_type: int, address: int = 0x7F0000000000, flags: int = 0, device: int = 0) -> None:
        self.device_type, self.address, self.flags, self.device = device_type, address, flags, device
        self.calls: list[dict[str, Any]] = []
        self.exports: list[tuple[object, ...]] = []  # stay as they are until the array goes
        self.returned = 0

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device_type, self.device

    def __dlpack__(self, **arguments: Any) -> object:
        self.calls.append(arguments)
        shape, deleter = (ctypes.c_int64 * 1)(4), Deleter(self.take_back)
        tensor = Tensor(self.address, (self.device_type, self.device), 1, 2, 32, 1, ctypes.addressof(shape), None, 0)
        managed: ctypes.Structure
        if "max_version" in arguments:
            name, managed = b"dltensor_versioned", Versioned((1, 0), None, deleter, self.flags, tensor)
        else:
            name, managed = b"dltensor", Managed(tensor, None, deleter)
        self.exports.append((shape, deleter, managed))
        return new_capsule(ctypes.addressof(managed), name, None)

    def take_back(self, managed: int) -> None:
        self.returned += 1


class OldArray(Array):
    """Of before version 1."""

    def __dlpack__(self, stream: int | None = None) -> object:  # type: ignore[override]
        return super().__dlpack__(**({} if stream is None else {"stream": stream}))


def catalog_with(buffer: object) -> sw.Catalog:
    catalog = sw.Catalog(0, 1)
    catalog.add("weight", "", "f32", (4,), sw.Layout.replicated(), buffer)
    return catalog


@pytest.mark.parametrize("device_type, stream", [(CPU, None), (CUDA_HOST, None), (CUDA, 1), (CUDA_MANAGED, 1)])
@pytest.mark.parametrize("kind", [Array, OldArray])
def test_the_legacy_default_stream_waits_for_the_exporter(kind, device_type, stream):
    array = kind(device_type)
    assert sw.View(array).address == array.address
    [call] = array.calls
    assert call.get("stream") == stream and ("max_version" in call) == (kind is Array)


@pytest.mark.parametrize("kind", [Array, OldArray])
def test_exported_memory_is_given_back_once_when_the_view_goes(kind):
    array = kind(CUDA)
    view = sw.View(array)
    catalog = catalog_with(view)
    del view
    gc.collect()
    assert array.returned == 0
    del catalog
    gc.collect()
    assert array.returned == 1


def test_memory_of_other_devices_is_refused():
    array = Array(ROCM)
    with pytest.raises(sw.InvalidArgument, match="a view: a .*Array is on a device of DLPack's type 10"):
        sw.View(array)
    assert array.calls == []


def test_a_device_without_a_driver_is_refused_by_name(job):
    [session] = job(1)
    with pytest.raises(sw.Error, match="weight"):
        session.publish(catalog_with(Array(CUDA)))


@pytest.mark.parametrize("flags", [0, READ_ONLY])
def test_read_only_memory_is_no_destination(job, flags):
    [session] = job(1)
    held, memory = np.arange(4, dtype=np.float32), np.zeros(4, dtype=np.float32)
    array = Array(CPU, memory.ctypes.data, flags)
    with session.publish(catalog_with(held)):
        if flags:
            with pytest.raises(sw.InvalidArgument, match="weight"):
                session.restore(catalog_with(array), timeout=20)
        else:
            session.restore(catalog_with(array), timeout=20).wait()
    assert memory.any() == (not flags)
    with session.publish(catalog_with(array), name="read"):
        session.restore(catalog_with(held), name="read", timeout=20).wait()


def test_an_error_of_the_exporter_is_the_cause():
    class Busy(Array):
        def __dlpack__(self, **arguments: Any) -> object:
            raise BufferError("graph capture")

    with pytest.raises(sw.InvalidArgument, match="its memory cannot be used") as raised:
        sw.View(Busy(CUDA))
    assert str(raised.value.__cause__) == "graph capture"
