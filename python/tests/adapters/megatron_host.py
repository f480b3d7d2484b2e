# SPDX-License-Identifier: Apache-2.0
"""Megatron-Core on the host. It names CUDA in places that need none; what is changed for that is all in this file.

* `device="cuda"` of functions that make tensors means the host, `Tensor.cuda()` gives the tensor itself.
* `Tensor.type()` of a tensor of the host has the name that a tensor of a GPU has: optimizers sort parameters by it.
* `torch.cuda.current_device()` gives the host.
* `torch.cuda.Stream()` gives None: several instances of the distributed optimizer make one, but use it only to overlap.
* Without Transformer Engine routers fail with a NameError: `moe_utils.te_general_gemm` is None, as its users expect.
* Generators of random numbers of GPUs are not forked. No model here has dropout, and weights are made on the host.
"""

from __future__ import annotations

import contextlib
from typing import Any, Iterator
from unittest import mock

import torch
from megatron.core.tensor_parallel.random import CudaRNGStatesTracker
from megatron.core.transformer.moe import moe_utils
from torch.overrides import TorchFunctionMode


class _Host(TorchFunctionMode):
    def __torch_function__(self, function: Any, types: Any, arguments: Any = (), options: Any = None) -> Any:
        options = dict(options or {})
        if str(options.get("device", "")).startswith("cuda"):
            options["device"] = "cpu"
        if function is torch.Tensor.type and len(arguments) == 1 and not options:
            return function(*arguments).replace("torch.", "torch.cuda.")
        if function is torch.Tensor.cuda:
            return arguments[0]
        return function(*arguments, **options)


@contextlib.contextmanager
def on_the_host() -> Iterator[None]:
    with (_Host(), mock.patch.object(moe_utils, "te_general_gemm", None, create=True),
          mock.patch.object(torch.cuda, "current_device", lambda: "cpu"),
          mock.patch.object(torch.cuda, "Stream", lambda device=None: None),
          mock.patch.object(CudaRNGStatesTracker, "fork", lambda self, name="": contextlib.nullcontext())):
        yield
