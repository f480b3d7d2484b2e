# SPDX-License-Identifier: Apache-2.0
"""Runs tests that ask for GPUs on CPUs: four devices, none of them real. Everything that names a GPU means the CPU.

Both runs of a file use it, so that a case which no CPU can run fails in both.
"""

from __future__ import annotations

import functools
import os
from typing import Any

DEVICES = 4


def _on_cpu(device: Any) -> Any:
    import torch

    if isinstance(device, int) and not isinstance(device, bool) or isinstance(device, str) and device.startswith("cuda"):
        return torch.device("cpu")
    return torch.device("cpu") if isinstance(device, torch.device) and device.type == "cuda" else device


def _torch(torch: Any) -> None:
    torch.accelerator.device_count = torch.cuda.device_count = lambda: DEVICES
    torch.accelerator.set_device_index = torch.cuda.set_device = lambda device: None
    torch.cuda.synchronize = torch.cuda.empty_cache = lambda *_: None
    torch.Tensor.pin_memory = lambda self, device=None: self
    if not os.environ.get("TORCHS_OWN_NAMES_GPU"):
        return  # a mode of all calls of torch is not for free

    from torch.overrides import TorchFunctionMode

    class OnCpu(TorchFunctionMode):
        def __torch_function__(self, function: Any, types: Any, arguments: Any = (), options: Any = None) -> Any:
            options = dict(options or {})
            if function is torch.Tensor.cuda:
                return arguments[0]
            if "device" in options:
                options["device"] = _on_cpu(options["device"])
            if function is torch.Tensor.to:
                arguments = (arguments[0], *map(_on_cpu, arguments[1:]))
            return function(*arguments, **options)

    OnCpu().__enter__()
    move = torch.nn.Module.to

    @functools.wraps(move)
    def to(self: Any, *arguments: Any, **options: Any) -> Any:
        return move(self, *map(_on_cpu, arguments), **{name: _on_cpu(value) for name, value in options.items()})

    torch.nn.Module.to = to
    torch.nn.Module.cuda = lambda self, device=None: self


def _distributed(module: Any) -> None:
    start = module.init_process_group

    @functools.wraps(start)
    def init_process_group(backend: Any = None, *arguments: Any, **options: Any) -> None:
        options.pop("device_id", None)
        start("gloo" if isinstance(backend, str) and backend != "fake" else backend, *arguments, **options)

    module.init_process_group = init_process_group


def _mesh(module: Any) -> None:
    start = module.DeviceMesh.__init__

    @functools.wraps(start)
    def init(self: Any, device_type: str, *arguments: Any, **options: Any) -> None:
        start(self, "cpu" if device_type == "cuda" else device_type, *arguments, **options)

    module.DeviceMesh.__init__ = init


def _fsdp1(module: Any) -> None:
    import torch

    start = module.FullyShardedDataParallel.__init__

    @functools.wraps(start)
    def init(self: Any, *arguments: Any, **options: Any) -> None:
        if options.get("device_id") is None or not isinstance(options["device_id"], torch.device):
            options["device_id"] = torch.device("cpu")  # without it, FSDP1 wants an accelerator
        start(self, *arguments, **options)

    module.FullyShardedDataParallel.__init__ = init


def _fsdp1_options(module: Any) -> None:
    # To offload to the CPU is to copy from a GPU. Without that copy FSDP1 would give memory away that it frees.
    module.FullStateDictConfig.offload_to_cpu = property(lambda self: False, lambda self, value: None)


def _ddp(module: Any) -> None:
    start = module.DistributedDataParallel.__init__

    @functools.wraps(start)
    def init(self: Any, wrapped: Any, device_ids: Any = None, output_device: Any = None, *arguments: Any, **options: Any) -> None:
        start(self, wrapped, None, None, *arguments, **options)  # models on the CPU have none

    module.DistributedDataParallel.__init__ = init


def _tests(module: Any) -> None:
    def runs(*_: Any, **__: Any) -> Any:
        return lambda function: function

    module.skip_if_lt_x_gpu = runs


def _dtensor_tests(module: Any) -> None:
    start = module.DTensorTestBase.init_pg

    @functools.wraps(start)
    def init_pg(self: Any, eager_init: Any = False, backend: Any = None) -> None:
        start(self, eager_init, "gloo")

    module.DTensorTestBase.init_pg = init_pg


def _fsdp_tests(module: Any) -> None:
    module.DEVICE_COUNT = DEVICES


changes = {
    "torch": _torch,
    "torch.distributed.distributed_c10d": _distributed,
    "torch.distributed.device_mesh": _mesh,
    "torch.distributed.fsdp.fully_sharded_data_parallel": _fsdp1,
    "torch.distributed.fsdp.api": _fsdp1_options,
    "torch.nn.parallel.distributed": _ddp,
    "torch.testing._internal.common_distributed": _tests,
    "torch.testing._internal.common_fsdp": _fsdp_tests,
    "torch.testing._internal.distributed._tensor.common_dtensor": _dtensor_tests,
}
