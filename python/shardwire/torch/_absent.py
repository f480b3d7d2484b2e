# SPDX-License-Identifier: Apache-2.0
"""Wanted tensors that no peer has."""

from __future__ import annotations

import fnmatch
import math
from typing import Iterable, Mapping

import torch

from .. import TensorKey
from .._types import Absent
from ._layouts import Local


def absence_of(key: TensorKey, absent: Mapping[str, Absent] | None) -> Absent | None:
    """What the first glob that matches "name" or "name:state" chooses; None without one."""
    for pattern, chosen in (absent or {}).items():
        if fnmatch.fnmatchcase(key.fqn, pattern) or fnmatch.fnmatchcase(f"{key.fqn}:{key.state}", pattern):
            return chosen
    return None


class OneElement:
    """Wanted tensors of one element with "zero". The library refuses to zero them, since one might be a step.

    Scalars are skipped. Others are skipped by the library, and become zero after the restore.
    """

    def __init__(self) -> None:
        self._zeroed: dict[TensorKey, torch.Tensor] = {}

    def ask(self, key: TensorKey, local: Local, absent: Absent) -> Absent:
        """What to ask the library for."""
        if absent != "zero" or math.prod(local.shape) != 1:
            return absent
        if local.shape != ():
            self._zeroed[key] = local.tensor
        return "skip"

    def zero(self, skipped: Iterable[TensorKey]) -> None:
        """After a restore that skipped these."""
        for key in skipped:
            if key in self._zeroed:
                self._zeroed[key].zero_()
