"""One process of a box: torchrun box_program.py NAME OPTIONS

OPTIONS is JSON, with the defaults below. It trains tiny_gpt2 with dropout, whose random numbers differ between the
processes. It dies with its parent, also when that is killed.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import time

import torch
import torch.distributed as dist

import atoll
from rig import end_process
from tiny_gpt2 import GPT2, loss_of

SIZES = {"n_layer": 2, "n_head": 2, "n_embd": 64, "block_size": 32, "vocab_size": 256}
DEFAULTS = {"run": "", "folder": "", "data": "", "kind": "fsdp", "pause": 0.0, "batch_size": 2}
PR_SET_PDEATHSIG = 1


def die_with_parent() -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() == 1:
        sys.exit(1)


def spread(model: torch.nn.Module, kind: str) -> torch.nn.Module:
    """The model over all processes."""
    if kind == "ddp":
        return torch.nn.parallel.DistributedDataParallel(model)
    from torch.distributed.fsdp import fully_shard

    mesh = dist.device_mesh.init_device_mesh("cpu", (dist.get_world_size(),))
    for block in model.h:
        fully_shard(block, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def main(name: str, given: dict) -> None:
    o = {**DEFAULTS, **given}
    die_with_parent()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(1)
    model = spread(GPT2(**SIZES, dropout=0.1), o["kind"])
    torch.manual_seed(100 + dist.get_rank())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1, (step + 1) / 10))
    train, val = (atoll.Tokens(f"{o['data']}/{part}_*.bin", SIZES["block_size"]) for part in ("train", "val"))

    def evaluate(model: torch.nn.Module, indices) -> tuple[float, int]:
        x, y = (torch.stack([torch.as_tensor(val[int(i)][k]) for i in indices]) for k in (0, 1))
        return float(loss_of(model, x, y)) * y.numel(), y.numel()

    worker = atoll.Worker(model, optimizer, join=o["run"], dir=f"{o['folder']}/{name}", name=name, state=[schedule],
                          val=val, evaluate=evaluate, max_wait=120)
    with worker:
        for x, y in atoll.batches(train, worker, batch_size=o["batch_size"]):
            worker.loss(loss_of(model, x, y)).backward()
            optimizer.step()
            optimizer.zero_grad()
            schedule.step()
            time.sleep(o["pause"])
    if dist.get_rank() == 0:
        print("hash", worker.info().theta_hash, "steps", schedule.last_epoch, flush=True)
    end_process()


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]))
