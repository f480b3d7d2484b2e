# SPDX-License-Identifier: Apache-2.0
"""Objects of a trainer as values of the library, and back.

Values have text keys and 64-bit integers only. A dict with one of the keys below stands for an object that is no value.
"""

from __future__ import annotations

import collections
import dataclasses
import io
import sys
from typing import Any

import torch

from .. import Error, TensorValue, Unsupported
from ._dtypes import dtype_of, name_of

_ITEMS = "\0items"  # a dict with other keys than text: its pairs
_SAVED = "\0saved"  # bytes of torch.save
_ARRAY = "\0array"  # an array of numpy: its elements
_SCALAR = "\0scalar"  # a scalar of numpy: an array without dims
_FILE = "\0file"  # io.BytesIO: its bytes, and the position in them
_TENSOR = "\0tensor"  # a tensor in a list that travels by a name of its own
_QUANTIZED = "\0quantized"  # a state whose tensors travel by names of their own: its class, and what else it consists of
_DICT = "\0dict"  # a dict of another class: that, what it calls for missing keys, its items, and its attributes
_RESERVED = (_ITEMS, _SAVED, _ARRAY, _SCALAR, _FILE, _TENSOR, _QUANTIZED, _DICT)

_DICTS: dict[str, Any] = {kind.__name__: kind for kind in (collections.OrderedDict, collections.defaultdict, collections.Counter)}
_FACTORIES: dict[str, Any] = {kind.__name__: kind for kind in (bool, int, float, str, bytes, list, tuple, dict)}


class _Elsewhere:
    """What a list has in place of a tensor that travels by a name of its own."""


ELSEWHERE = _Elsewhere()


@dataclasses.dataclass(frozen=True)
class Quantized:
    """What a quantized state is beside its tensors, which travel by names of their own."""

    kind: str
    """The name of its class."""
    context: tuple[Any, ...]

    def __str__(self) -> str:
        return f"{self.kind}({', '.join(map(repr, self.context))})"


def tensor_value(tensor: torch.Tensor) -> TensorValue:
    """A copy of the tensor, which has to be whole on this rank."""
    # A copy: contiguous() leaves one element its stride, with which view() makes no bytes of it.
    plain = tensor.detach().cpu().resolve_conj().resolve_neg().clone(memory_format=torch.contiguous_format)
    data = bytes(plain.reshape(-1).view(torch.uint8).numpy()) if plain.numel() else b""
    return TensorValue(name_of(plain.dtype), tuple(plain.shape), data)


def tensor_of(value: TensorValue) -> torch.Tensor:
    """A new tensor of the host."""
    out = torch.empty(value.shape, dtype=dtype_of(value.dtype), device="cpu")  # whatever the default device is
    if value.data:
        out.reshape(-1).view(torch.uint8).copy_(torch.frombuffer(bytearray(value.data), dtype=torch.uint8))
    return out


def _array_value(thing: Any) -> dict[str, Any] | None:
    """The value of an array or scalar of numpy, such as the state of its random generator has."""
    numpy = sys.modules.get("numpy")
    # Other classes of arrays have more than elements, such as masks.
    if numpy is None or type(thing) is not numpy.ndarray and not isinstance(thing, numpy.generic):
        return None
    try:
        tensor = torch.from_numpy(numpy.array(thing, order="C"))  # a copy: torch refuses arrays that are read-only
    except TypeError:  # text, records
        return None
    return {_SCALAR if isinstance(thing, numpy.generic) else _ARRAY: tensor_value(tensor)}


def _dict_value(thing: Any) -> tuple[Any, ...]:
    factory = getattr(thing, "default_factory", None)
    if factory is not None and factory not in _FACTORIES.values():
        raise Unsupported(f"a defaultdict that calls {factory!r} cannot be sent, because receivers run no code of senders: it may call "
                          f"one of {', '.join(_FACTORIES)}")
    items = [(to_value(key), to_value(item)) for key, item in thing.items()]  # in their order, which values of dicts do not keep
    return type(thing).__name__, factory.__name__ if factory else None, items, to_value(getattr(thing, "__dict__", {}))


def to_value(thing: Any) -> Any:
    """The value that stands for an object. Raises Unsupported if from_value() could not make the object again."""
    kind = type(thing)
    if thing is None or kind in (bool, float, str, bytes) or kind is int and -(1 << 63) <= thing < 1 << 63:
        return thing
    if kind in (torch.Tensor, torch.nn.Parameter) and thing.layout is torch.strided and not thing.is_meta and not thing.is_nested:
        return tensor_value(thing)
    if kind is list or kind is tuple:
        return kind(to_value(item) for item in thing)
    if kind in _DICTS.values():
        return {_DICT: _dict_value(thing)}
    if kind is dict:
        if all(type(key) is str and key not in _RESERVED for key in thing):
            return {key: to_value(item) for key, item in thing.items()}
        return {_ITEMS: [(to_value(key), to_value(item)) for key, item in thing.items()]}
    if thing is ELSEWHERE:
        return {_TENSOR: True}
    if kind is Quantized:
        return {_QUANTIZED: (thing.kind, to_value(thing.context))}
    if kind is io.BytesIO:
        return {_FILE: (thing.getvalue(), thing.tell())}
    array = _array_value(thing)
    if array is not None:
        return array
    file = io.BytesIO()
    try:
        torch.save(thing, file)
        file.seek(0)
        torch.load(file, weights_only=True)
    except Exception as error:
        raise Unsupported(f"a {kind.__module__}.{kind.__qualname__} cannot be sent, because receivers run no code of senders. "
                          "Send what it is made of, or allow it by torch.serialization.add_safe_globals() on both sides") from error
    return {_SAVED: file.getvalue()}


def value_of(name: str, thing: Any) -> Any:
    """As to_value(). Errors begin with the name."""
    try:
        return to_value(thing)
    except Error as error:
        raise type(error)(f"{name}: {error}") from error.__cause__


def is_same(first: Any, second: Any) -> bool:
    """Whether two values are equal, types and signs of zero included."""
    if type(first) is not type(second):
        return False
    if isinstance(first, dict):
        return first.keys() == second.keys() and all(is_same(value, second[key]) for key, value in first.items())
    if isinstance(first, (list, tuple)):
        return len(first) == len(second) and all(map(is_same, first, second))
    return repr(first) == repr(second) if type(first) is float else bool(first == second)


def from_value(value: Any) -> Any:
    """The object of a value. Never runs code of a sender: objects that torch.load would have to import are refused."""
    if isinstance(value, TensorValue):
        return tensor_of(value)
    if isinstance(value, (list, tuple)):
        return type(value)(from_value(item) for item in value)
    if isinstance(value, dict):
        if _TENSOR in value:
            return ELSEWHERE
        if _QUANTIZED in value:
            name, context = value[_QUANTIZED]
            return Quantized(name, from_value(context))
        if _ARRAY in value:
            return tensor_of(value[_ARRAY]).numpy()
        if _SCALAR in value:
            return tensor_of(value[_SCALAR]).numpy()[()]
        if _FILE in value:
            data, position = value[_FILE]
            opened = io.BytesIO(data)
            opened.seek(position)
            return opened
        if _DICT in value:
            kind, factory, items, attributes = value[_DICT]
            made = collections.defaultdict(_FACTORIES.get(factory)) if kind == "defaultdict" else _DICTS[kind]()
            made.update({from_value(key): from_value(item) for key, item in items})
            if attributes:
                made.__dict__.update(from_value(attributes))
            return made
        if _ITEMS in value:
            return {from_value(key): from_value(item) for key, item in value[_ITEMS]}
        if _SAVED in value:
            return torch.load(io.BytesIO(value[_SAVED]), map_location="cpu", weights_only=True)
        return {key: from_value(item) for key, item in value.items()}
    return value


def like(value: Any, local: Any) -> Any:
    """`value` in the type of the local object, which is written in place if it is a tensor."""
    if isinstance(local, torch.Tensor):
        return local.copy_(value) if isinstance(value, torch.Tensor) else local.fill_(value)
    if isinstance(value, torch.Tensor) and isinstance(local, (int, float)):
        return type(local)(value.item())
    if isinstance(local, tuple) and isinstance(value, list):
        return tuple(value)
    if isinstance(local, list) and isinstance(value, tuple):
        return list(value)
    return value
