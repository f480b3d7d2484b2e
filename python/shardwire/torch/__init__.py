# SPDX-License-Identifier: Apache-2.0
"""Optimizer state of PyTorch between ranks: publish a model with its optimizers, restore it into another.

Tried with the versions of torch that `_version` lists. Calls use the tensors of the calling rank only and run no collective of
torch.
"""

from ._extra import PerRank
from ._join import join
from ._layouts import layout_of
from ._moving import RestoreResult
from ._peer_reader import PeerReader
from ._peer_writer import PeerWriter
from ._state import State, catalog_of, publish, restore_into
from ._state_dict import publish_state_dict
from ._version import warn_if_untried

__all__ = ["PeerReader", "PeerWriter", "PerRank", "RestoreResult", "State", "catalog_of", "join", "layout_of", "publish",
           "publish_state_dict", "restore_into"]

warn_if_untried()
