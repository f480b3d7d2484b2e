# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of torchft that recovering replicas pull from the memory of a healthy one. Tested with torchft 0.2."""

from __future__ import annotations

import collections
import datetime
import io
import json
import logging
import threading
import time
import uuid
from typing import Any, Callable, Mapping, TypeVar

import torch
from torch.distributed.tensor import DTensor
from torchft.checkpointing.transport import CheckpointTransport

from . import InvalidArgument, Inventory, Layout, LayoutMismatch, Publication, Session, TensorKey, TimedOut, Unsupported
from ._types import Verify
from .torch.adapter import Deadline, Entries, Local, Ranks, dtype_of, publish_entries, restore_entries, value_of

T = TypeVar("T")

logger = logging.getLogger(__name__)

_NAME = "torchft"
_FORM, _OBJECTS = TensorKey("", "form"), TensorKey("", "objects")
_WHOLE = Ranks(0, 1, None)
# The layouts have one rank, because a receiver has the same part of the state as its sender.


class _Rendezvous:
    """The store of a session: the sender keeps its address in it, receivers read it there."""

    def __init__(self, values: dict[str, bytes]) -> None:
        self.values = values

    def put(self, key: str, value: bytes) -> None:
        self.values[key] = value

    def get(self, key: str, timeout: float) -> bytes | None:
        if key not in self.values:
            time.sleep(timeout)
        return self.values.get(key)


_MAPPINGS: dict[type, str] = {dict: "dict", collections.OrderedDict: "ordered",
                              collections.defaultdict: "dict", collections.Counter: "dict"}
_SEQUENCES: dict[type, str] = {list: "list", tuple: "tuple"}
_PLAIN = (bool, float, str, bytes, type(None))


class _State:
    """A state dict taken apart: tensors and specs of DTensors by path, other objects, and a tree that refers to both."""

    def __init__(self, state_dict: Any, sent: bool) -> None:
        self._sent = sent
        self.tensors: dict[str, torch.Tensor] = {}
        self.specs: dict[str, Any] = {}
        self.objects: list[Any] = []
        self.tree = self._node(state_dict, "")

    def _node(self, thing: Any, path: str) -> list[Any]:
        kind = type(thing)
        if kind in _MAPPINGS:
            return [_MAPPINGS[kind], [(key, self._node(item, f"{path}[{key!r}]")) for key, item in thing.items()]]
        if kind in _SEQUENCES:
            return [_SEQUENCES[kind], [self._node(item, f"{path}[{at}]") for at, item in enumerate(thing)]]
        if isinstance(thing, torch.Tensor):
            self.tensors[path] = thing
            if isinstance(thing, DTensor):
                self.specs[path] = thing._spec
            return ["tensor", path]
        if self._sent and kind not in _PLAIN:
            value_of(f"state{path}", thing)  # raises where receivers could not make it again
        self.objects.append(thing)
        return ["object", len(self.objects) - 1]

    def form(self) -> bytes:
        """Tree and specs. In one piece, because values are not nested as deep, and specs share meshes."""
        file = io.BytesIO()
        try:
            torch.save((self.tree, self.specs), file)
            _read_form(file.getvalue(), self.specs)
        except Exception as error:
            raise Unsupported("receivers would refuse the keys of the state dict, or the meshes of its DTensors: "
                              f"{error}") from error
        return file.getvalue()


def _read_form(form: bytes, known: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    """Tree and specs. Meshes that equal one of `known` are replaced by it: those have process groups of this job."""
    tree, specs = torch.load(io.BytesIO(form), weights_only=True)
    for spec in specs.values():
        spec.mesh = next((mine.mesh for mine in known.values() if mine.mesh == spec.mesh), spec.mesh)
    return tree, specs


def _put_together(node: Any, tensors: dict[str, torch.Tensor], objects: list[Any]) -> Any:
    kind, content = node
    if kind in ("dict", "ordered"):
        items = ((key, _put_together(item, tensors, objects)) for key, item in content)
        return collections.OrderedDict(items) if kind == "ordered" else dict(items)
    if kind in ("list", "tuple"):
        return (list if kind == "list" else tuple)(_put_together(item, tensors, objects) for item in content)
    return tensors[content] if kind == "tensor" else objects[content]


def _require_alike(theirs: dict[str, Any], known: _State) -> None:
    """Destinations have to be split as the sender's tensors are: local parts of another mesh would be other elements."""
    for path in known.tensors:
        ours, other = known.specs.get(path), theirs.get(path)
        if (ours is None) != (other is None) or ours is not None and other is not None and (
                ours.placements, ours.mesh.shape, ours.shape, ours.mesh.get_coordinate()) != (
                other.placements, other.mesh.shape, other.shape, other.mesh.get_coordinate()):
            raise LayoutMismatch(f"state{path}: source has {other or 'a plain tensor'}, target wants {ours or 'a plain tensor'}")


def _whole(tensor: torch.Tensor) -> Local:
    """The part that this rank has. To the layouts it is a whole tensor."""
    local = tensor._local_tensor if isinstance(tensor, DTensor) else tensor.detach()
    return Local(tuple(local.shape), Layout.replicated(), local, tensor)


class ShardwireTransport(CheckpointTransport[T]):
    """A checkpoint transport for `torchft.Manager`. The sender only publishes; receivers read its memory.

    `timeout` limits how long disallow_checkpoint() and shutdown() wait for receivers that are reading. `state_dict` gives a
    state dict whose tensors are overwritten where the received one has the same path; other tensors come in new host memory.
    `verify`: see Session.restore(). `options` are those of Session.join(), such as `interface`, `job_key` and `transport`.
    """

    def __init__(self, timeout: datetime.timedelta | float = 60, *, state_dict: Callable[[], object] | None = None,
                 verify: Verify = "generation", **options: Any) -> None:
        self._timeout, self._state_dict, self._verify = timeout, state_dict, verify
        # Guests may come from other hosts, also where a launcher says that the one member has its host to itself. Other trainers
        # share the host, so that a session copies by one thread.
        self._options: dict[str, Any] = {"copy_threads": 1, **options, "local_size": 0}
        self._publication: Publication | None = None
        self._lock = threading.Lock()  # torchft sends on its quorum thread, and disallows on the main thread
        self._run = uuid.uuid4().hex
        store = _Rendezvous({})
        self._session = Session.join(rank=0, world_size=1, store=store, run_id=self._run, **self._options)
        self._metadata = json.dumps({"run": self._run, "at": {key: value.decode() for key, value in store.values.items()}})

    def metadata(self) -> str:
        return self._metadata

    def send_checkpoint(self, dst_ranks: list[int], step: int, state_dict: T, timeout: datetime.timedelta) -> None:
        """Makes the state dict readable until disallow_checkpoint(). Does not wait for receivers, and keeps no copy."""
        state = _State(state_dict, sent=True)
        entries = Entries({TensorKey(path, ""): _whole(tensor) for path, tensor in state.tensors.items()},
                          {_FORM: state.form(), _OBJECTS: state.objects})
        with self._lock:
            self._retire()
            self._publication = publish_entries(self._session, entries, step=step, name=_NAME, snapshot="none", ranks=_WHOLE)

    def disallow_checkpoint(self) -> None:
        """Returns when no receiver reads any more. A receiver that takes longer than the timeout gets an error, not the caller."""
        with self._lock:
            self._retire()

    def _retire(self) -> None:
        publication, self._publication = self._publication, None
        if publication is None:
            return
        try:
            publication.retire(self._timeout)
        except TimedOut as error:
            # The receivers' restores fail. The sender is healthy and has to go on.
            logger.warning("a receiver did not finish in time: %s", error)

    def recv_checkpoint(self, src_rank: int, metadata: str, step: int, timeout: datetime.timedelta) -> T:
        """Pulls the checkpoint. Errors: TimedOut, PeerLost, Withdrawn, StepMismatch, LayoutMismatch before a byte is written."""
        until = Deadline(timeout)
        try:
            where = json.loads(metadata)
            run, store = where["run"], _Rendezvous({key: value.encode() for key, value in where["at"].items()})
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise InvalidArgument(f"replica rank {src_rank} does not use ShardwireTransport: "
                                  f"its metadata is {metadata!r}") from error
        try:
            # `rank` counts for nothing: the sender gives a guest its number.
            with Session.join(guest=True, rank=0, world_size=1, store=store, run_id=run, join_timeout=until.left(),
                              **self._options) as session:
                return self._received(session, step, until)
        except TimedOut as error:
            raise TimedOut(f"timed out: step {step} from replica rank {src_rank}: {error}", error.gaps, error.ranks,
                           error.report) from error

    def _received(self, session: Session, step: int, until: Deadline) -> T:
        known = _State(self._state_dict() if self._state_dict else None, sent=False)
        parts: dict[str, Local] = {}
        form: list[Any] = []

        def wanted(inventory: Inventory) -> Entries:
            entries, places = Entries(values={_FORM: None, _OBJECTS: None}), set[tuple[int, ...]]()
            for key, info in inventory.tensors.items():
                mine = known.tensors.get(key.fqn)
                part = parts[key.fqn] = _whole(torch.empty(info.shape, dtype=dtype_of(info.dtype), device="cpu") if mine is None
                                               else mine)
                place = (part.tensor.data_ptr(), *part.tensor.shape, *part.tensor.stride())
                if not part.tensor.numel() or place not in places:  # else a second name of the same tensor
                    places.add(place)
                    entries.tensors[key] = part
            known.tensors = {path: tensor for path, tensor in known.tensors.items() if path in parts}
            return entries

        def check(values: Mapping[TensorKey, Any]) -> None:
            form[:] = _read_form(values[_FORM], known.specs)
            _require_alike(form[1], known)

        _, values = restore_entries(session, wanted, step=step, name=_NAME, timeout=until.left(), verify=self._verify,
                                    ranks=_WHOLE, check=check)
        tree, specs = form
        # A tensor that was overwritten is given back itself.
        tensors = {path: DTensor(part.tensor, specs[path], requires_grad=False)  # type: ignore[no-untyped-call]
                   if path in specs and path not in known.tensors else part.source for path, part in parts.items()}
        received: T = _put_together(tree, tensors, values[_OBJECTS])
        return received

    def shutdown(self, wait: bool = True) -> None:
        if wait:
            self.disallow_checkpoint()
        self._session.close(0)
