# SPDX-License-Identifier: Apache-2.0
"""A trainer that torchrun starts: `restart.py WRAPPER STATE`, or with further jobs `restart.py WRAPPER STATE OFFSET RANKS PORT`.

Alone it trains, publishes, and restores into a model with the given wrapper. Of several jobs of RANKS ranks together, the job
at OFFSET 0 waits for the state of the other one, and restores it. Rank 0 of a job writes what it has to the file STATE.
"""

from __future__ import annotations

import os
import pathlib
import sys

sys.path[:0] = [str(pathlib.Path(__file__).parent)]

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
import torch.distributed.checkpoint as dcp  # noqa: E402
from training import build, full, reference, train  # noqa: E402

import shardwire.torch as swt  # noqa: E402

# Beside a busy machine the other job imports torch and trains for more than a minute before it publishes.
WAIT = 200


def main(wrapper: str, state: str, offset: int = 0, ranks: int = 0, port: int = 0) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    if ranks:
        session = swt.join(rank=offset + rank, world_size=ranks, address="127.0.0.1", port=port, run_id="restart")
    else:
        session = swt.join()
    written = {}
    with session:
        publication = None
        if not ranks or offset:
            before, before_optimizer = build("fsdp2", "adamw", 1, world)
            assert before is not None and before_optimizer is not None
            train(before, before_optimizer, 3)
            written["source"] = reference(before, before_optimizer)
            publication = swt.publish(session, before, before_optimizer, step=3, extra={"words": 7})
            state_dict = swt.publish_state_dict(session, {"model": before.state_dict()}, step=3)
        if not ranks or not offset:
            after, after_optimizer = build(wrapper, "adamw", 2, world)
            assert after is not None and after_optimizer is not None
            written["fresh"] = reference(after, after_optimizer)
            restored = swt.restore_into(session, after, after_optimizer, timeout=WAIT, verify="digest")
            assert (restored.step, restored.extra) == (3, {"words": 7})
            written["target"] = reference(after, after_optimizer)
            wanted = {name: torch.zeros_like(tensor) for name, tensor in after.state_dict().items()}
            dcp.load({"model": wanted}, storage_reader=swt.PeerReader(session, step=3, timeout=WAIT))
            written["loaded"] = {name: full(tensor) for name, tensor in wanted.items()}
        session.gather("restored", b"", WAIT)
        if publication is not None:
            publication.retire()
            state_dict.retire()
            written["source losses"] = train(before, before_optimizer, 12, seed=1)
        if "target" in written:
            written["target losses"] = train(after, after_optimizer, 12, seed=1)
    if rank == 0:
        torch.save(written, state + "~")
        os.rename(state + "~", state)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:3], *map(int, sys.argv[3:]))
