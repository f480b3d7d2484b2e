# SPDX-License-Identifier: Apache-2.0
"""Small GPT models under Megatron's kinds of parallelism, and their full state gathered without the package under test."""

from __future__ import annotations

import dataclasses
import logging
import warnings
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig, finalize_model_grads
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.optimizer import ChainedOptimizer, DistributedOptimizer, OptimizerConfig, get_megatron_optimizer
from megatron.core.transformer import TransformerConfig
from megatron.core.transformer.module import Float16Module

warnings.filterwarnings("ignore")
logging.getLogger("megatron").setLevel(logging.ERROR)

WORDS, LENGTH, BATCH = 16, 8, 12


@dataclasses.dataclass(frozen=True)
class Kind:
    tp: int = 1
    pp: int = 1
    ep: int = 1
    vp: int | None = None
    instances: int = 1
    layers: int = 2
    dtype: torch.dtype = torch.float32
    swiglu: bool = True
    distributed: bool = True
    overlap: bool = False
    experts: int | None = None
    tied: bool = False
    words: int = WORDS
    hidden: int = 12
    lr: float = 1e-2
    decoupled_lr: float | None = None
    optimizer: str = "adam"


def _destroy_groups() -> None:
    """Those of the job before, which communicates no more. Megatron only forgets them, and their threads stay."""
    parallel_state.destroy_model_parallel()
    for group in list(dist.distributed_c10d._world.pg_map):
        if group is not dist.group.WORLD:
            dist.destroy_process_group(group)


class Job:
    def __init__(self, kind: Kind, seed: int) -> None:
        self.kind = kind
        _destroy_groups()
        parallel_state.initialize_model_parallel(
            kind.tp, kind.pp, kind.vp, expert_model_parallel_size=kind.ep, distributed_timeout_minutes=1,
            num_distributed_optimizer_instances=kind.instances)
        half = {"bf16": kind.dtype == torch.bfloat16, "fp16": kind.dtype == torch.float16}
        config = TransformerConfig(
            num_layers=kind.layers, hidden_size=kind.hidden, num_attention_heads=4, num_query_groups=2, ffn_hidden_size=22,
            gated_linear_unit=kind.swiglu, activation_func=torch.nn.functional.silu if kind.swiglu else torch.nn.functional.gelu,
            tensor_model_parallel_size=kind.tp, pipeline_model_parallel_size=kind.pp, expert_model_parallel_size=kind.ep,
            params_dtype=kind.dtype, pipeline_dtype=kind.dtype, use_cpu_initialization=True, attention_dropout=0.0,
            hidden_dropout=0.0, bias_activation_fusion=False, masked_softmax_fusion=False, persist_layer_norm=False,
            gradient_accumulation_fusion=False, bias_dropout_fusion=False, num_moe_experts=kind.experts,
            moe_token_dispatcher_type="allgather", add_bias_linear=kind.experts is None,
            batch_p2p_comm=False, virtual_pipeline_model_parallel_size=kind.vp, **half)
        torch.manual_seed(seed)
        self.models = [self._model(config, seed, stage) for stage in range(kind.vp or 1)]
        self.chunks = [DistributedDataParallel(config, DistributedDataParallelConfig(
            use_distributed_optimizer=kind.distributed, overlap_grad_reduce=kind.overlap, overlap_param_gather=kind.overlap,
            num_distributed_optimizer_instances=kind.instances, grad_reduce_in_fp32=True, bucket_size=1000), model)
            for model in self.models]
        self.ddp = self.chunks[0]
        self.optimizer = get_megatron_optimizer(OptimizerConfig(
            optimizer=kind.optimizer, lr=kind.lr, decoupled_lr=kind.decoupled_lr, decoupled_min_lr=kind.decoupled_lr,
            weight_decay=0.1, params_dtype=kind.dtype, clip_grad=1.0, use_distributed_optimizer=kind.distributed,
            overlap_param_gather=kind.overlap, initial_loss_scale=2.0**10, loss_scale_window=4,
            hysteresis=1, min_loss_scale=1.0, **half), self.chunks)

    def _model(self, config: Any, seed: int, stage: int) -> Any:
        kind = self.kind
        virtual = {"ignore_virtual": False, "vp_stage": stage if kind.vp else None}
        model: Any = GPTModel(
            config, get_gpt_layer_local_spec(num_experts=kind.experts, moe_grouped_gemm=False), vocab_size=kind.words,
            max_sequence_length=LENGTH, pre_process=parallel_state.is_pipeline_first_stage(**virtual),
            post_process=parallel_state.is_pipeline_last_stage(**virtual), share_embeddings_and_output_weights=kind.tied,
            position_embedding_type="learned_absolute", vp_stage=virtual["vp_stage"])
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if name.endswith("layernorm.weight"):  # otherwise equal for all seeds
                    parameter += 0.01 * seed
        return model if kind.dtype == torch.float32 else Float16Module(config, model)

    def train(self, steps: int, seed: int = 0) -> list[float]:
        """Mean losses of the whole batch, by step, of all ranks. Batches do not depend on the number of ranks."""
        losses = []
        for step in range(steps):
            words = torch.randint(0, WORDS, (BATCH, LENGTH + 1), generator=torch.Generator().manual_seed(100 * seed + step))
            ranks, rank = parallel_state.get_data_parallel_world_size(), parallel_state.get_data_parallel_rank()
            own = words.chunk(ranks)[rank]
            self.ddp.zero_grad_buffer()
            self.optimizer.zero_grad()
            loss = self._forward_backward(own[:, :-1], own[:, 1:])
            finalize_model_grads([self.ddp])
            self.optimizer.step()
            dist.all_reduce(loss, group=parallel_state.get_data_parallel_group())
            losses.append(loss.item() / ranks)
        return losses

    def _forward_backward(self, words: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        mask = torch.triu(torch.ones(LENGTH, LENGTH, dtype=torch.bool), 1)[None, None]
        positions = torch.arange(LENGTH)[None].expand(words.shape)
        first, last = parallel_state.is_pipeline_first_stage(), parallel_state.is_pipeline_last_stage()
        before = parallel_state.get_pipeline_model_parallel_prev_rank()
        after = parallel_state.get_pipeline_model_parallel_next_rank()
        received = None
        if not first:
            received = torch.empty(LENGTH, len(words), self.kind.hidden, dtype=self.kind.dtype)
            dist.recv(received, before)
            received.requires_grad_()
            unwrapped(self.ddp).set_input_tensor(received)
        out = self.ddp(words, positions, mask, labels=labels if last else None)
        loss = torch.zeros(())
        if last:
            loss = out.float().mean()
            self.optimizer.scale_loss(loss).sum().backward()
        else:
            dist.send(out.detach(), after)
            gradient = torch.empty_like(out)
            dist.recv(gradient, after)
            out.backward(gradient)
        if received is not None:
            dist.send(received.grad, before)
        loss = loss.detach().clone()
        dist.broadcast(loss, parallel_state.get_pipeline_model_parallel_last_rank(),
                       group=parallel_state.get_pipeline_model_parallel_group())
        return loss


    def parts(self) -> dict[str, Any]:
        """What this rank has itself."""
        states = _states(self)
        return {f"{name}:{state}": tensor.detach().clone() for model in self.models
                for name, parameter in unwrapped(model).named_parameters()
                for state, _, tensor in [("model", 0, parameter), *states.get(id(parameter), [])]}


def unwrapped(module: Any) -> Any:
    while hasattr(module, "module"):
        module = module.module
    return module


def _inner(optimizer: Any) -> list[Any]:
    return optimizer.chained_optimizers if isinstance(optimizer, ChainedOptimizer) else [optimizer]


def _name(model: Any, name: str) -> str:
    """With numbers of layers and experts of the whole model."""
    parts = name.split(".")
    if parts[:2] == ["decoder", "layers"]:
        layer = model.decoder.layers[int(parts[2])]
        parts[2] = str(layer.layer_number - 1)
        if "local_experts" in parts:
            place = parts.index("local_experts") + 1
            experts = layer.mlp.experts
            parts[place] = str(int(parts[place]) + parallel_state.get_expert_model_parallel_rank() * experts.num_local_experts)
    return ".".join(parts)


def _states(job: Job) -> dict[int, list[tuple[str, int, torch.Tensor]]]:
    """By id of the parameter: state, first element, elements in a row."""
    found: dict[int, list[tuple[str, int, torch.Tensor]]] = {}
    for one in _inner(job.optimizer):
        if isinstance(one, DistributedOptimizer):
            for by_type in one.gbuf_ranges:
                for buckets in by_type.values():
                    for bucket in buckets:
                        for parameter, ranges in bucket["param_map"].items():
                            tensors = one._get_main_param_and_optimizer_states(parameter)
                            found[id(parameter)] = [(state, ranges["param"].start, tensor) for state, tensor in tensors.items()]
        else:
            pairs = [(main, main) for group in one.optimizer.param_groups for main in group["params"]]
            if hasattr(one, "float16_groups"):
                pairs = [(model, main) for models, mains in zip(one.float16_groups, one.fp32_from_float16_groups)
                         for model, main in zip(models, mains)]
                pairs += [(main, main) for mains in one.fp32_from_fp32_groups for main in mains]
            for parameter, main in pairs:
                found[id(parameter)] = [("param", 0, main)]
                found[id(parameter)] += [(state, 0, tensor) for state, tensor in one.state.get(main, {}).items()]
    return found


def reference(job: Job) -> dict[str, Any]:
    """Every parameter, state and option of the whole job by name. All ranks call it."""
    states = _states(job)
    own: list[Any] = []
    for model, name, parameter in ((model, *named) for model in map(unwrapped, job.models) for named in model.named_parameters()):
        shared = job.kind.tied and name == "output_layer.weight"
        split = getattr(parameter, "tensor_model_parallel", False)
        expert = not getattr(parameter, "allreduce", True)
        index = (parallel_state.get_expert_tensor_parallel_rank() if expert else parallel_state.get_tensor_model_parallel_rank())
        count = (parallel_state.get_expert_tensor_parallel_world_size() if expert
                 else parallel_state.get_tensor_model_parallel_world_size())
        about = ("embedding.word_embeddings.weight" if shared else _name(model, name), tuple(parameter.shape),
                 (index, count, parameter.partition_dim, parameter.partition_stride) if split else None)
        own.append((about, "model", 0, parameter.detach().reshape(-1).clone()))
        for state, start, tensor in states.get(id(parameter), []):
            own.append((about, state, start if tensor.dim() else -1, tensor.detach().clone().reshape(-1)))
    everything: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everything, own)
    out: dict[str, Any] = {}
    flat: dict[Any, torch.Tensor] = {}
    for about, state, start, tensor in (entry for one in everything for entry in one):
        if start < 0:
            assert out.setdefault(f"{about[0]}:{state}", tensor.item()) == tensor.item()
            continue
        size = torch.Size(about[1]).numel()
        whole = flat.setdefault((about, state), torch.full((size,), float("nan"), dtype=tensor.dtype))
        whole[start:start + tensor.numel()] = tensor
    for ((name, shape, split), state), local in flat.items():
        assert not local.isnan().any(), (name, state)
        local = local.reshape(shape)
        if split is None:
            out[f"{name}:{state}"] = local
            continue
        index, count, dim, stride = split
        target = list(shape)
        target[dim] *= count
        whole = out.setdefault(f"{name}:{state}", torch.full(target, float("nan"), dtype=local.dtype))
        for number, part in enumerate(local.chunk(stride, dim)):
            whole.narrow(dim, (number * count + index) * part.shape[dim], part.shape[dim]).copy_(part)
    for number, group in enumerate(group for one in _inner(job.optimizer) for group in one.optimizer.param_groups):
        out[f"group {number}"] = {option: value for option, value in group.items() if option != "params"}
    for number, one in enumerate(_inner(job.optimizer)):
        if getattr(one, "grad_scaler", None):
            out.update({f"scaler {number}: {name}": value for name, value in one.grad_scaler.state_dict().items()})
    return out


def differences(source: dict[str, Any], target: dict[str, Any], rows: int | None = None) -> list[str]:
    """Names that one side lacks, and of things that are not bit for bit the same. `rows`: of vocabularies, those that count."""
    def same(name: str, a: Any, b: Any) -> bool:
        if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
            if rows is not None and name.split(":")[0] in ("embedding.word_embeddings.weight", "output_layer.weight"):
                a, b = a[:rows], b[:rows]
            return a.dtype == b.dtype and a.shape == b.shape and torch.equal(*(
                one.reshape(-1).view(torch.uint8) for one in (a, b)))
        return type(a) is type(b) and a == b

    return sorted(name for name in source.keys() | target.keys()
                  if name not in source or name not in target or not same(name, source[name], target[name]))
