# SPDX-License-Identifier: Apache-2.0
"""Python imports this module when it starts, in every rank too. It changes modules of torch right after they are imported."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import os
import sys
from typing import Any, Callable


class _After(importlib.abc.MetaPathFinder):
    def __init__(self, changes: dict[str, Callable[[Any], None]]) -> None:
        self._changes = changes

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        change = self._changes.get(name)
        spec = importlib.machinery.PathFinder.find_spec(name, path) if change else None
        if change is None or spec is None or spec.loader is None:
            return None
        execute = spec.loader.exec_module

        def exec_module(module: Any) -> None:
            execute(module)
            change(module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


changes: dict[str, Callable[[Any], None]] = {}
if os.environ.get("TORCHS_OWN_CPU"):
    import cpu

    changes.update(cpu.changes)
if os.environ.get("TORCHS_OWN_PEERS"):
    import peers

    changes["torch.distributed.checkpoint"] = peers.replace
    changes.setdefault("torch.testing._internal.common_distributed", lambda module: None)
    before = changes["torch.testing._internal.common_distributed"]

    def both(module: Any) -> None:
        before(module)
        peers.name_cases(module)

    changes["torch.testing._internal.common_distributed"] = both
sys.meta_path.insert(0, _After(changes))
