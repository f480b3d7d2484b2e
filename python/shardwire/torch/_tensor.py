# SPDX-License-Identifier: Apache-2.0
"""The layout of one tensor."""

from __future__ import annotations

import torch

from .. import Layout
from ._catalog import default_ranks
from ._layouts import local_of


def layout_of(tensor: torch.Tensor) -> Layout:
    """The layout of a DTensor over the ranks of the default process group; `Layout.replicated()` of another tensor.

    Parameters of FSDP1 do not know theirs: see catalog_of().
    """
    return local_of(tensor, default_ranks()).layout
