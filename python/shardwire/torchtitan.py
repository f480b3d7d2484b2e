# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of TorchTitan in the memory of peers, and in files where wanted. Tested with TorchTitan 0.3."""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict_loader import load as load_state_dict
from torchtitan.components.checkpointer import MODEL, CheckpointManager
from torchtitan.tools import filesystem
from torchtitan.tools.utils import GarbageCollection

from . import Catalog, JobLayout, Layout, Publication, Session, StepMismatch, TimedOut, plan
from .torch import PeerReader, join, publish_state_dict
from .torch.adapter import Ranks, flat_state_dict

__all__ = ["PeerCheckpointManager", "use_session"]

logger = logging.getLogger(__name__)

_GENERATIONS = ("torchtitan/0", "torchtitan/1")
# Of two names one has the last checkpoint until every rank has published the next under the other. A rank that is lost
# meanwhile therefore never leaves peers with parts of two steps.


class _Peers:
    """A session, and what this process publishes in it. Outlives trainers."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.publications: dict[str, Publication] = {}
        self.complete: str | None = None
        """The name under which all ranks were seen to publish one step."""

    def retire(self, name: str) -> None:
        publication = self.publications.pop(name, None)
        if publication is None:
            return
        try:
            publication.retire()
        except TimedOut as error:
            logger.warning("peers that still read an earlier checkpoint lose it: %s", error)


_given: _Peers | None = None


def use_session(session: Session | None) -> None:
    """Checkpoint managers of this process, from the next on, publish and load in this session.

    Call it before a trainer is made. What managers published stays there when their trainer is closed, so a trainer of other
    ranks, or of this process, can load it. It is retired by `use_session(None)`, or with another session. Without a session each
    manager joins one of the ranks of the default process group, and leaves it when it is closed.
    """
    global _given
    if _given is not None and _given.session is session:
        return
    if _given is not None:
        for name in _GENERATIONS:
            _given.retire(name)
    _given = None if session is None else _Peers(session)


class PeerCheckpointManager(CheckpointManager):
    """TorchTitan's checkpoint manager, with peers in place of files.

    Each save publishes a copy of the state, which replaces the one before. Loading takes the newest complete step among those
    of peers and, if allowed, files. All settings of `CheckpointManager.Config` keep their meaning.
    """

    @dataclass(kw_only=True, slots=True)
    class Config(CheckpointManager.Config):
        files_interval: int = 0
        """Steps between saves to files besides, a multiple of `interval`. 0: only the last step goes to files."""

        load_from_files: bool = True
        """Whether files are loaded where no peer has the wanted step, or they have a newer one."""

        timeout: float = 60
        """Seconds that a load from peers may take."""

        verify: Literal["generation", "digest"] = "generation"
        """Whether loads from peers compare digests."""

        def __post_init__(self) -> None:
            CheckpointManager.Config.__post_init__(self)
            if self.files_interval < 0 or self.files_interval % self.interval:
                raise ValueError(f"files_interval {self.files_interval} is no multiple of interval {self.interval}")

    def __init__(self, config: Config, **components: Any) -> None:
        super().__init__(config, **components)
        if not self.enable:
            return
        self._own = _given is None
        self._peers = _Peers(join()) if _given is None else _given
        self._files_interval, self._from_files = config.files_interval, config.load_from_files
        self._timeout, self._verify = config.timeout, config.verify
        # Layouts number the ranks of the trainer, which need not be those of the session.
        self._ranks = Ranks(dist.get_rank(), dist.get_world_size(), None)

    def _save(self, curr_step: int, last_step: bool = False) -> bool:
        if not self._should_save(curr_step, last_step):
            return False
        self._publish(curr_step)
        if last_step or self._files_interval and curr_step % self._files_interval == 0:
            super()._save(curr_step, last_step)
        return True

    @torch.no_grad()
    def _publish(self, step: int) -> None:
        peers = self._peers
        known: list[str | None] = [None] * self._ranks.count
        dist.all_gather_object(known, peers.complete)
        name = _GENERATIONS[1 if _GENERATIONS[0] in known else 0]
        try:
            peers.publications[name] = publish_state_dict(
                peers.session, self._flattened_model_states_sd(), name=name, step=step, snapshot="copy", ranks=self._ranks,
                replace=peers.publications.get(name))
        except TimedOut as error:  # readers of what it replaces
            logger.warning("peers that still read an earlier checkpoint lose it: %s", error)
        dist.barrier()
        peers.complete = name
        for other in _GENERATIONS:
            if other != name:
                peers.retire(other)
        logger.info("Published step %d to peers.", step)

    @torch.no_grad()
    def _load(self, step: int = -1) -> bool:
        candidates = _agreed(self._candidates(step))
        for found, name, ranks_lost in candidates:
            lacking = self._lacking(found, name) if ranks_lost else []
            if not lacking:
                self._load_from_peers(found, name)
                self._peers.complete = name
                return True
            logger.warning("Ranks that held parts of step %d are gone, and with them: %s%s", found, ", ".join(lacking[:5]),
                           " .." if len(lacking) > 5 else "")
        if self._from_files:
            return bool(super()._load(step))
        if step != -1 or candidates:
            raise StepMismatch(f"peers do not have all of step {candidates[0][0] if step == -1 else step}, "
                               "and files are not to be loaded")
        logger.info("No peer has a checkpoint, this is a fresh start.")
        return False

    def _candidates(self, step: int) -> list[tuple[int, str, bool]]:
        """Steps of peers, newest first, that are the wanted one or newer than files; and whether some ranks do not publish them."""
        found = []
        for name in _GENERATIONS:
            inventory = self._peers.session.inventory(name, None if step == -1 else step, self._timeout)
            if inventory.publishers and step in (-1, inventory.step):
                found.append((inventory.step, name, bool(inventory.absent)))
        files = -1
        if step == -1 and self._from_files and filesystem.isdir(self.folder):
            files = self._find_load_step()
        return sorted((each for each in found if each[0] >= files), reverse=True)

    def _lacking(self, step: int, name: str) -> list[str]:
        """Names of what no peer has of a step, of all ranks of the trainer."""
        inventory = self._peers.session.inventory(name, step, self._timeout)
        whole = Catalog(0, 1)
        for key, info in inventory.tensors.items():
            # Only planned, never read: the address stands for memory that is not there.
            whole.add_address(key.fqn, key.state, info.dtype, info.shape, Layout.replicated(), 64, (), math.prod(info.shape), None)
        known = {key.fqn for key in (*inventory.tensors, *inventory.values)}
        lacking = {gap.fqn for gap in plan(inventory.held, JobLayout([whole]), 0).gaps}
        lacking.update(key for key in flat_state_dict(self._states_to_load(model_only=step == 0))[0] if key not in known)
        each: list[set[str]] = [set()] * self._ranks.count
        dist.all_gather_object(each, lacking)
        return sorted(set[str]().union(*each))

    def _load_from_peers(self, step: int, name: str) -> None:
        states = self._states_to_load(model_only=step == 0)
        reader = PeerReader(self._peers.session, name=name, step=step, timeout=self._timeout, verify=self._verify,
                            ranks=self._ranks, wait=False)
        load_state_dict(states, storage_reader=reader)
        self.states[MODEL].load_state_dict(states)
        GarbageCollection.collect("GC collection for checkpoint loading.")
        assert reader.report is not None
        logger.info("Loaded step %d from peers: %d bytes.", step, reader.report.moved_bytes + reader.report.local_bytes)

    def _close(self) -> None:
        super()._close()
        # A manager whose making failed has no peers.
        if getattr(self, "_own", False):
            self._own = False
            self._peers.session.close()


def _agreed(value: Any) -> Any:
    """What rank 0 of the trainer has."""
    values = [value]
    dist.broadcast_object_list(values)
    return values[0]
