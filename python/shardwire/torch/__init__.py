# SPDX-License-Identifier: Apache-2.0
"""Optimizer state of PyTorch between ranks: publish a model with its optimizers, restore it into another.

Tested with torch 2.13. Calls use the tensors of the calling rank only and run no collective of torch.
"""

from ._catalog import catalog_of
from ._join import join
from ._publish import PerRank, publish
from ._restore import RestoreResult, restore_into
from ._tensor import layout_of

__all__ = ["PerRank", "RestoreResult", "catalog_of", "join", "layout_of", "publish", "restore_into"]
