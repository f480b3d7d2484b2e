#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Uses the installed library with ctypes alone: calls every function of its headers with NULL, then joins two sessions over
the transport loopback, publishes, restores and reads an error: c_ctypes.py LIBRARY INCLUDE_FOLDER"""
import array
import ctypes
import pathlib
import re
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "python/tests"))
from ports import free_port

OK, INVALID_ARGUMENT, LAYOUT_MISMATCH = 0, 1, 2
F32 = 1
SECOND = 10**9
ROWS, COLUMNS = 7, 4
NULL = None


# Begins every struct that can grow. A struct may end early: the fields that it lacks have their defaults.
HEADER = [("size", ctypes.c_size_t), ("version", ctypes.c_uint32)]


class BootstrapFields(ctypes.Structure):
    _fields_ = HEADER + [("rank", ctypes.c_int32), ("world_size", ctypes.c_int32), ("local_size", ctypes.c_int32),
                         ("address", ctypes.c_char_p), ("interface", ctypes.c_char_p), ("job_key", ctypes.c_void_p),
                         ("job_key_bytes", ctypes.c_size_t), ("run_id", ctypes.c_char_p), ("port", ctypes.c_uint16)]


class SessionOptions(ctypes.Structure):
    _fields_ = HEADER + [("copy_threads", ctypes.c_uint32), ("transport", ctypes.c_char_p)]


class Tensor(ctypes.Structure):
    _fields_ = HEADER + [("dtype", ctypes.c_uint32), ("fqn", ctypes.c_char_p), ("state", ctypes.c_char_p),
                         ("shape", ctypes.POINTER(ctypes.c_int64)), ("dims", ctypes.c_size_t)]


class View(ctypes.Structure):
    _fields_ = HEADER + [("kind", ctypes.c_int32), ("data", ctypes.c_void_p)]


class RestoreOptions(ctypes.Structure):
    _fields_ = HEADER + [("verify", ctypes.c_int32), ("name", ctypes.c_char_p), ("step", ctypes.c_int64),
                         ("timeout_ns", ctypes.c_int64)]


class Box(ctypes.Structure):
    _fields_ = [("dims", ctypes.c_size_t), ("offset", ctypes.c_int64 * 8), ("extent", ctypes.c_int64 * 8)]


class Gap(ctypes.Structure):
    _fields_ = [("fqn", ctypes.c_char_p), ("state", ctypes.c_char_p), ("box", Box), ("target", ctypes.c_int32)]


class Failure(Exception):
    """A failed call: code, message and the boxes at fault."""

    def __init__(self, lib, error):
        count = ctypes.c_size_t()
        gaps = lib.shardwire_error_gaps(error, ctypes.byref(count))
        self.code = lib.shardwire_error_code(error)
        self.gaps = [(gaps[i].fqn.decode(), list(gaps[i].box.offset[:2]), gaps[i].target) for i in range(count.value)]
        super().__init__(lib.shardwire_error_message(error).decode())
        lib.shardwire_error_free(error)


def declared(include):
    """Number of parameters of each function, and whether it can fail."""
    found = {}
    for header in sorted(pathlib.Path(include, "c").glob("*.h")):
        text = re.sub(r"//[^\n]*|/\*.*?\*/", "", header.read_text(encoding="utf-8"), flags=re.S)
        for name, parameters in re.findall(r"^[a-z][\w ]*[ *]+(shardwire_\w+)\(([^;]*)\);", text, re.M):
            found[name] = (0 if parameters == "void" else parameters.count(",") + 1, "shardwire_error**" in parameters)
    return found


TAKES_NOTHING = {"shardwire_shape_strides"}  # no dimensions: the strides of a scalar


def call_with_nothing(lib, functions):
    """No function crashes; each that can fail and needs an argument reports it."""
    wrong = []
    for name, (parameters, can_fail) in functions.items():
        if name == "shardwire_stop_releasing_owners":
            continue  # has no pointer, and would have an effect
        code = lib[name](*[NULL] * parameters)
        if can_fail and code != (0 if name in TAKES_NOTHING else INVALID_ARGUMENT):
            wrong.append(f"{name}: {code}")
    assert not wrong, wrong
    return len(functions)


class Shardwire:
    """The library, with failed calls as exceptions."""

    def __init__(self, path):
        self.lib = ctypes.CDLL(path)
        self.lib.shardwire_error_message.restype = ctypes.c_char_p
        self.lib.shardwire_version.restype = ctypes.c_char_p
        self.lib.shardwire_error_gaps.restype = ctypes.POINTER(Gap)

    def call(self, name, *arguments):
        error = ctypes.c_void_p()
        if self.lib["shardwire_" + name](*arguments, ctypes.byref(error)) != OK:
            raise Failure(self.lib, error)

    def create(self, name, *arguments):
        """The handle that a function gives through its last out parameter."""
        handle = ctypes.c_void_p()
        self.call(name, *arguments, ctypes.byref(handle))
        return handle

    def free(self, kind, *handles):
        for handle in handles:
            self.lib[f"shardwire_{kind}_free"](handle)

    def struct(self, kind, name, **fields):
        out = kind()
        self.lib[f"shardwire_{name}_init"](ctypes.byref(out), ctypes.c_size_t(ctypes.sizeof(out)))
        assert out.size == ctypes.sizeof(out) and out.version == 1, name
        for field, content in fields.items():
            setattr(out, field, content)
        return ctypes.byref(out)


def join(wire, rank, port):
    bootstrap = wire.create("bootstrap_create", wire.struct(BootstrapFields, "bootstrap_fields", rank=rank, world_size=2,
                                                            port=port))
    session = wire.create("session_join", bootstrap, wire.struct(SessionOptions, "session_options",
                                                                 transport=b"loopback"))
    wire.free("bootstrap", bootstrap)
    return session


def catalog(wire, rank, name, layout, memory):
    shape = (ctypes.c_int64 * 2)(ROWS, COLUMNS)
    tensor = wire.struct(Tensor, "tensor", dtype=F32, fqn=name, state=b"exp_avg", shape=shape, dims=2)
    out = wire.create("catalog_create", rank, 2)
    wire.call("catalog_add", out, tensor, layout, wire.struct(View, "view", data=memory.buffer_info()[0]), 0)
    return out


def restore(wire, session, rank, name, layout, memory):
    wanted = catalog(wire, rank, name, layout, memory)
    options = wire.struct(RestoreOptions, "restore_options", timeout_ns=60 * SECOND)
    running = wire.create("session_restore", session, wanted, options)
    try:
        wire.call("restore_wait", running)
    finally:
        wire.free("restore", running)
        wire.free("catalog", wanted)


def main():
    path, include = sys.argv[1:]
    wire = Shardwire(path)
    print("shardwire", wire.lib.shardwire_version().decode())
    print(call_with_nothing(wire.lib, declared(include)), "functions called with nothing")

    whole = array.array("f", range(ROWS * COLUMNS))
    rows, everything = wire.create("layout_chunk", 0, 2), wire.create("layout_replicated")
    port = free_port()
    sessions = [join(wire, rank, port) for rank in range(2)]
    parts = [whole[:4 * COLUMNS], whole[4 * COLUMNS:]]  # torch.chunk: 4 and 3 rows
    held = [catalog(wire, rank, b"weight", rows, parts[rank]) for rank in range(2)]
    publications = [wire.create("session_publish", sessions[rank], held[rank], NULL) for rank in range(2)]
    wire.free("catalog", *held)

    restored = array.array("f", [-1.0] * len(whole))
    restore(wire, sessions[1], 1, b"weight", everything, restored)
    assert restored == whole, restored
    try:
        restore(wire, sessions[0], 0, b"bias", everything, restored)
        raise AssertionError("nobody holds this tensor")
    except Failure as failure:
        print("error:", failure)
        assert failure.code == LAYOUT_MISMATCH and failure.gaps == [("bias", [0, 0], 0)], (failure.code, failure.gaps)

    for publication in publications:
        wire.call("publication_retire", publication, ctypes.c_int64(60 * SECOND))
    wire.free("publication", *publications)
    wire.free("session", *reversed(sessions))
    wire.free("layout", rows, everything)
    print("all is there")


if __name__ == "__main__":
    main()
