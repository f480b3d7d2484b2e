# SPDX-License-Identifier: Apache-2.0
"""For those who publish and restore state that a framework keeps in its own way.

Entries tell which part of which tensor this rank has: an adapter makes them from what it finds in the framework, publishes them
by publish_entries(), and restores others by restore_entries(). Tensors move between any two layouts. Values, such as options of
groups, travel as they are; a restore gives them to the adapter, which sees them before a byte is written. Sources and targets
find each other by keys: what shardwire.torch publishes of a model has its parameters under the state PARAM, its buffers under
BUFFER, the options of a parameter's group under GROUP, and other states under their names.
"""

from ._awaiting import Deadline
from ._catalog import BUFFER, GROUP, PARAM
from ._dtypes import dtype_of
from ._entries import Entries, Wanted, entries_of, publish_entries, restore_entries
from ._fsdp1 import in_shard
from ._layouts import Local, Ranks, local_of, ranks_of
from ._moving import RestoreResult
from ._optimizers import groups_differ, options, step_device
from ._state_dict import flat_state_dict
from ._values import like, to_value, value_of

__all__ = ["BUFFER", "GROUP", "PARAM", "Deadline", "Entries", "Local", "Ranks", "RestoreResult", "Wanted", "dtype_of", "entries_of",
           "flat_state_dict", "groups_differ", "in_shard", "like", "local_of", "options", "publish_entries", "ranks_of",
           "restore_entries", "step_device", "to_value", "value_of"]
