# SPDX-License-Identifier: Apache-2.0
"""save() and load() of torch.distributed.checkpoint, from and to the memory of peers.

A path names a publication. What this cannot replace (a writer or reader that is not torch's own for files, planners of a test,
groups of some ranks) goes through files, and is written to the log as such.
"""

from __future__ import annotations

import dataclasses
import functools
import os
from concurrent.futures import Future
from typing import Any, Callable


def _log(what: str) -> None:
    case = os.environ.get("PYTEST_CURRENT_TEST", "").partition(" ")[0].replace("::", ".")
    with open(os.environ["TORCHS_OWN_PEERS"], "a") as log:
        log.write(f"{what}\t{case.rpartition('.')[2]}\n")


def name_cases(module: Any) -> None:
    """Classes that keep their ranks from case to case: a rank is told the case."""
    kept = getattr(module, "MultiProcContinuousTest", None)
    run = getattr(kept, "_run_test_given_id", None)
    if kept is None or run is None:
        return

    def named(cls: Any, test_id: str, **options: Any) -> None:
        os.environ["PYTEST_CURRENT_TEST"] = test_id
        run.__func__(cls, test_id, **options)

    kept._run_test_given_id = classmethod(named)


@dataclasses.dataclass
class _Kept:
    session: Any
    publication: Any
    step: int


class _Peers:
    """The sessions of this process: one with all ranks of the default group, one of its own."""

    def __init__(self) -> None:
        self._group: Any = None
        self._sessions: dict[bool, Any] = {}
        self._saved: dict[str, _Kept] = {}

    def _session(self, alone: bool) -> Any:
        import torch.distributed as dist

        import shardwire as sw
        import shardwire.torch as swt

        group = dist.distributed_c10d._get_default_group() if dist.is_initialized() else None
        if not alone and group is not self._group:
            self._group = group
            self._sessions.pop(False, None)
            self._saved = {name: kept for name, kept in self._saved.items() if kept.session is self._sessions.get(True)}
        if alone not in self._sessions:
            self._sessions[alone] = sw.Session.join(rank=0, world_size=1, port=0) if alone else swt.join()
        return self._sessions[alone]

    def save(self, name: str, state_dict: Any, alone: bool, flatten: bool) -> None:
        import shardwire.torch as swt

        session = self._session(alone)
        last = self._saved.get(name)
        step = last.step + 1 if last else 1
        publication = swt.publish_state_dict(session, state_dict, name=name, step=step, flatten=flatten,
                                             replace=last.publication if last else None)
        self._saved[name] = _Kept(session, publication, step)
        session.gather(f"saved {name} {step}", b"", 60)

    def reader(self, name: str) -> Any:
        import shardwire.torch as swt

        kept = self._saved.get(name)
        return swt.PeerReader(kept.session, name=name, step=kept.step, timeout=60) if kept else None


_peers = _Peers()


def _path(checkpoint_id: Any, storage: Any, kind: type) -> str | None:
    """The path that torch would use, or None if it would not use files, or in another way than by default."""
    if storage is None:
        return None if checkpoint_id is None else str(checkpoint_id)
    if type(storage) is not kind or not getattr(storage, "overwrite", True):
        return None
    return str(checkpoint_id if checkpoint_id is not None else storage.path)


def _alone(no_dist: bool) -> bool:
    import torch.distributed as dist

    return no_dist or not dist.is_initialized()


def _some(group: Any) -> bool:
    import torch.distributed as dist

    return group is not None and dist.get_world_size(group) != dist.get_world_size()


def _ended() -> Future[None]:
    done: Future[None] = Future()
    done.set_result(None)
    return done


def replace(dcp: Any) -> None:
    from torch.distributed.checkpoint import state_dict_loader, state_dict_saver

    def changed(module: Any, name: str, make: Callable[[Any], Any]) -> None:
        original = getattr(module, name)
        new = functools.wraps(original)(make(original))
        for place in (module, dcp):
            if getattr(place, name, None) is original:
                setattr(place, name, new)

    def published(checkpoint_id: Any, writer: Any, planner: Any, group: Any, no_dist: bool, state_dict: Any) -> bool:
        path = _path(checkpoint_id, writer, dcp.FileSystemWriter)
        if path is None or _some(group) or type(planner) not in (type(None), dcp.DefaultSavePlanner):
            _log("a save through files")
            return False
        _peers.save(path, state_dict, _alone(no_dist), getattr(planner, "flatten_state_dict", True))
        _log("a save through peers")
        return True

    def from_peers(checkpoint_id: Any, reader: Any, group: Any) -> Any:
        path = _path(checkpoint_id, reader, dcp.FileSystemReader)
        peers = None if path is None or _some(group) else _peers.reader(path)
        _log("a load through files" if peers is None else "a load through peers")
        return peers

    def saves(original: Any, saved: Callable[[], Any] = lambda: None) -> Any:
        """`saved` makes what torch returns from a save that has ended."""

        def save(state_dict: Any, *, checkpoint_id: Any = None, storage_writer: Any = None, planner: Any = None,
                 process_group: Any = None, no_dist: bool = False, **options: Any) -> Any:
            if not published(checkpoint_id, storage_writer, planner, process_group, no_dist, state_dict):
                return original(state_dict, checkpoint_id=checkpoint_id, storage_writer=storage_writer, planner=planner,
                                process_group=process_group, no_dist=no_dist, **options)
            return saved()

        return save

    def saves_as_before(original: Any) -> Any:
        def save_state_dict(state_dict: Any, storage_writer: Any, process_group: Any = None, coordinator_rank: int = 0,
                            no_dist: bool = False, planner: Any = None) -> Any:
            if not published(None, storage_writer, planner, process_group, no_dist, state_dict):
                return original(state_dict, storage_writer, process_group, coordinator_rank, no_dist, planner)

        return save_state_dict

    def loads(original: Any) -> Any:
        def load(state_dict: Any, *, checkpoint_id: Any = None, storage_reader: Any = None, process_group: Any = None,
                 **options: Any) -> Any:
            peers = from_peers(checkpoint_id, storage_reader, process_group)
            if peers is not None:
                checkpoint_id, storage_reader = None, peers
            return original(state_dict, checkpoint_id=checkpoint_id, storage_reader=storage_reader, process_group=process_group,
                            **options)

        return load

    def loads_as_before(original: Any) -> Any:
        def load_state_dict(state_dict: Any, storage_reader: Any, process_group: Any = None, *rest: Any, **options: Any) -> Any:
            peers = from_peers(None, storage_reader, process_group)
            return original(state_dict, storage_reader if peers is None else peers, process_group, *rest, **options)

        return load_state_dict

    def loads_keys(original: Any) -> Any:
        def load(keys: Any = None, *, checkpoint_id: Any = None, storage_reader: Any = None, process_group: Any = None) -> Any:
            peers = from_peers(checkpoint_id, storage_reader, process_group)
            if peers is not None:
                checkpoint_id, storage_reader = None, peers
            return original(keys, checkpoint_id=checkpoint_id, storage_reader=storage_reader, process_group=process_group)

        return load

    changed(state_dict_saver, "save", saves)
    changed(state_dict_saver, "async_save", functools.partial(saves, saved=_ended))
    changed(state_dict_saver, "save_state_dict", saves_as_before)
    changed(state_dict_loader, "load", loads)
    changed(state_dict_loader, "load_state_dict", loads_as_before)
    changed(state_dict_loader, "_load_state_dict_from_keys", loads_keys)
