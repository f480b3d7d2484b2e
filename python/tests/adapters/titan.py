# SPDX-License-Identifier: Apache-2.0
"""TorchTitan's trainer on the CPU: a small llama3, bytes as tokens, and texts of its own.

TorchTitan is written for GPUs and for a later torch. It takes its device from a module that is looked up once, so that is set
here; `torch.distributed.set_timeout` is not in torch 2.13 under this name; of its attention only the one without masks computes
gradients on the CPU. Its models import `triton`. gloo needs FSDP2's plain sum of gradients, and `spmd_backend` has to be
`partial_dtensor`. CUDA graphs, compilation, float8 and mixed precision are off.
"""

from __future__ import annotations

import collections
import json
import pathlib
import types
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
import torchtitan.tools.utils
from torch.distributed.fsdp import FSDPModule


class Cpu(types.ModuleType):
    """torch.cpu with what TorchTitan's report of memory asks a device for."""

    def __getattr__(self, name: str) -> Any:
        return getattr(torch.cpu, name)

    def get_device_name(self, device: Any = None) -> str:
        return "cpu"

    def get_device_properties(self, device: Any = None) -> Any:
        return types.SimpleNamespace(total_memory=1 << 30, name="cpu")

    def current_device(self) -> int:
        return 0

    def reset_peak_memory_stats(self, device: Any = None) -> None: ...

    def empty_cache(self) -> None: ...

    def memory_stats(self, device: Any = None) -> Any:
        return collections.defaultdict(int)


torchtitan.tools.utils.device_type, torchtitan.tools.utils.device_module = "cpu", Cpu("cpu")
if not hasattr(dist, "set_timeout"):
    dist.set_timeout = dist.distributed_c10d._set_pg_timeout  # type: ignore[attr-defined]

from torchtitan.components.tokenizer import BaseTokenizer  # noqa: E402
from torchtitan.models.common.attention import ScaledDotProductAttention  # noqa: E402
from torchtitan.models.llama3 import model_registry  # noqa: E402
from torchtitan.models.llama3.config_registry import llama3_debugmodel  # noqa: E402
from torchtitan.trainer import Trainer  # noqa: E402


class Bytes(BaseTokenizer):
    @dataclass(kw_only=True, slots=True)
    class Config(BaseTokenizer.Config):
        pass

    def __init__(self, config: Config, **options: Any) -> None:
        super().__init__()
        self.eos_id = 0

    def encode(self, text: str, add_bos: bool = True, add_eos: bool = True) -> list[int]:  # type: ignore[override]
        return [1] * add_bos + list(text.encode()) + [0] * add_eos

    def decode(self, tokens: list[int]) -> str:  # type: ignore[override]
        return bytes(tokens).decode()

    def get_vocab_size(self) -> int:
        return 256


def write_texts(folder: pathlib.Path) -> str:
    folder.mkdir()
    (folder / "data.json").write_text("".join(
        json.dumps({"text": f"{number} bottles of beer on the wall, {number % 7} fell, {number * number} are left. " * 3}) + "\n"
        for number in range(64)))
    return str(folder)


def config(texts: str, folder: str, checkpoint: Any, *, steps: int, width: int = 64, seed: int = 1, batch: int = 4,
           **parallelism: Any) -> Trainer.Config:
    made = llama3_debugmodel()
    made.model_spec = model_registry("debugmodel")
    model = made.model_spec.model
    del model.layers[2:]
    for layer in model.layers:
        layer.attention.inner_attention = ScaledDotProductAttention.Config()
    made.tokenizer, made.dataloader.dataset_path, made.dump_folder = Bytes.Config(), texts, folder
    made.training.global_batch_size, made.training.local_batch_size = batch, batch // max(1, dist.get_world_size())
    made.training.seq_len, made.training.steps = width, steps
    made.parallelism.spmd_backend = "partial_dtensor"  # the others need a later torch
    made.training.disable_cuda_graphs, made.training.mixed_precision_param = True, "float32"
    made.optimizer.implementation = "foreach"
    made.lr_scheduler.total_steps = 20
    made.debug.seed, made.debug.enable_structured_logging = seed, False
    for name, value in parallelism.items():
        setattr(made.parallelism, name, value)
    made.checkpoint = checkpoint
    return made


def on_cpu(trainer: Trainer) -> Trainer:
    """gloo lacks the reduction by which FSDP2 would scale gradients on the way."""
    for part in trainer.model_parts:
        for module in part.modules():
            if isinstance(module, FSDPModule):
                module.set_force_sum_reduction_for_comms(True)
    return trainer


def losses_of(trainer: Trainer) -> dict[int, float]:
    """Filled while the trainer trains."""
    found: dict[int, float] = {}
    log = trainer.metrics_processor.log

    def logged(step: int, loss: float, *others: Any, **options: Any) -> None:
        found[step] = loss
        log(step, loss, *others, **options)

    trainer.metrics_processor.log = logged  # type: ignore[method-assign]
    return found


def full(tensor: Any) -> Any:
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def state_of(trainer: Trainer, loader: bool = True) -> dict[str, Any]:
    """Everything that a checkpoint has, in forms that compare: whole tensors as bytes."""
    found: dict[str, Any] = {}
    for part in trainer.model_parts:
        found.update({f"model.{name}": full(value).numpy().tobytes() for name, value in part.state_dict().items()})
    for name, value in trainer.optimizers.state_dict().items():
        found[f"optimizer.{name}"] = full(value).numpy().tobytes() if isinstance(value, torch.Tensor) else value
    found["scheduler"], found["trainer"] = trainer.lr_schedulers.state_dict(), trainer.state_dict()
    if loader:
        found["loader"] = trainer.dataloader.state_dict()
    return found
