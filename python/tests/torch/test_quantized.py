# SPDX-License-Identifier: Apache-2.0
"""States that are quantized by blocks: codes, scales and a table."""

from __future__ import annotations

import concurrent.futures

import pytest
import quantized
import torch
import torch.distributed as dist
from torch import nn

import shardwire as sw
import shardwire.torch as swt
from shardwire.torch._quantized import new_part

PLAIN, ROWS, COLUMNS = (None, 1), 0, 1


@pytest.mark.parametrize("warm", [0, 7], ids=["cold", "warm"])
@pytest.mark.parametrize("source, target", [(PLAIN, PLAIN), (PLAIN, (ROWS, 3)), ((ROWS, 4), PLAIN), ((ROWS, 4), (ROWS, 3)),
                                            ((ROWS, 3), (COLUMNS, 4)), ((COLUMNS, 2), (ROWS, 4))])
def test_blocks_move_with_their_elements(pool, source, target, warm):
    assert pool(4, quantized.move, source, target, warm) == [("", [])] * 4


@pytest.mark.parametrize("source, columns", [((ROWS, 4), 20), ((COLUMNS, 4), 96)])
def test_blocks_that_do_not_end_where_shards_do_are_refused(pool, source, columns):
    results = pool(4, quantized.move, source, PLAIN, 0, columns)
    for text, _ in results:
        assert text.startswith("publish: Unsupported: weight:moment is quantized by blocks of 16 elements, and is Shard(")


def test_another_kind_is_refused(pool):
    [(text, _), *_] = pool(4, quantized.move, PLAIN, PLAIN, 7, quantized.COLUMNS, False)
    assert "restore: LayoutMismatch: moment: source has quantized.Blocks(True), target wants quantized.Blocks(False)" in text


def test_tensors_that_are_replaced_are_published():
    store = dist.HashStore()
    with concurrent.futures.ThreadPoolExecutor(2) as threads:
        holder, reader = threads.map(lambda rank: swt.join(store, rank, 2), range(2))
    source, target = nn.Linear(16, 3, bias=False), nn.Linear(16, 3, bias=False)
    theirs, ours = quantized.Optimizer(source.parameters(), 1), quantized.Optimizer(target.parameters(), 2)
    kept, wanted = swt.State(source, theirs, ranks=[0]), swt.State(target, ours, ranks=[1])
    with holder, reader:
        for step in (1, 2):
            theirs.state[source.weight]["moment"].scale = torch.full((3,), float(step))
            kept.publish(holder, step=step, snapshot="copy")
            wanted.restore(reader, step=step)
            assert ours.state[target.weight]["moment"].scale.tolist() == [step] * 3


class Nests(torch.optim.Adam):
    """Its state dict has the states of a parameter in a dict of their own, as optimizers of bitsandbytes have it."""

    def state_dict(self):
        given = super().state_dict()
        given["state"] = {number: {"quantized": states} for number, states in given["state"].items()}
        return given


def test_states_that_have_another_form_in_the_state_dict_are_refused():
    model = nn.Linear(16, 3)
    optimizer = Nests(model.parameters())
    model(torch.ones(1, 16)).sum().backward()
    optimizer.step()
    with swt.join(dist.HashStore(), 0, 1) as session, pytest.raises(sw.Unsupported, match=r"state_dict\(\) of optimizer 0 \(Nests\)"):
        swt.publish(session, model, optimizer, step=1)


@pytest.mark.parametrize("name", ["scale", "codes", "qmap"])
def test_states_may_be_named_as_parts_are(name):
    parameter = nn.Parameter(torch.zeros(3, 16))
    assert new_part(name, torch.float32, (), parameter) is None
    assert new_part(f"moment[{name}]", torch.float32, (3, 1), parameter).shape == (3, 1)


def test_a_class_that_is_not_loaded_is_named():
    with pytest.raises(sw.Unsupported, match="source has a nowhere.Blocks, which is not known here: import nowhere before"):
        from shardwire.torch._quantized import whole
        from shardwire.torch._values import Quantized
        whole("moment", Quantized("nowhere.Blocks", ()), {})
