"""Workers of one or several processes: [torchrun] box.py LIST

LIST is JSON: the options of one worker after the other, with the defaults below. Each worker trains tiny_gpt2 on token
shards, in the way of `parallel`. `record`: a folder for NAME.npz of rank 0: r0, r1, ... [n_params], the whole
parameters at the start of each round, and `end`.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import apply_activation_checkpointing
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import Shard

import atoll
from atoll.train.shards import segment
from rig import GPT2 as SIZES, end_process
from tiny_gpt2 import GPT2, Block, loss_of
from torch_program import Numbered

DEFAULTS = {
    "name": "",
    "run": "",
    "folder": "",
    "data": "",
    "parallel": "one",  # one, ddp, fsdp, hsdp
    "batch_size": 8,
    "rate": 0.1,
    "optimizer": "sgd",
    "odd": False,  # sizes that no number of processes divides
    "policy": "",  # bf16: forward and backward in bf16
    "dtype": "float32",  # of the parameters
    "record": "",
    "frozen": False,  # the embeddings do not train
    "evaluate": False,
    "with": [],  # compile, layers, checkpoint, offload, meta, columns, accumulate, keep, by hand, own
    "elsewhere": [],  # ranks that find no memory of rank 0, as on another host
    "not_finite": [],  # rank, step: of a parameter that becomes NaN
    "pause": 0.0,
    "dir": "",
}


class Odd(GPT2):
    """tiny_gpt2 with three more numbers, and a buffer."""

    def __init__(self, **sizes: Any) -> None:
        super().__init__(**sizes)
        self.scale = nn_scale()
        self.register_buffer("level", torch.tensor([1.0, 2.0]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            self.level += 1
        return super().forward(x) * self.scale.mean()


def nn_scale() -> torch.nn.Parameter:
    return torch.nn.Parameter(torch.tensor([0.9, 1.0, 1.1]))


def make_model(o: dict[str, Any]) -> GPT2:
    """The whole model, equal in all processes."""
    torch.manual_seed(1)
    sizes = {k: v for k, v in SIZES.items() if k != "family"}
    model = Odd(**{**sizes, "n_embd": 10, "vocab_size": 257}) if o["odd"] else GPT2(**sizes)
    if o["frozen"]:
        model.wte.weight.requires_grad_(False)
    return model.to(getattr(torch, o["dtype"]))


def sharded(model: GPT2, o: dict[str, Any]) -> GPT2:
    """The model after fully_shard."""
    size, with_ = dist.get_world_size(), set(o["with"])
    names = ("replicas", "shards")
    mesh = init_device_mesh("cpu", (2, size // 2), mesh_dim_names=names) if o["parallel"] == "hsdp" else None
    options: dict[str, Any] = {"mesh": mesh or init_device_mesh("cpu", (size,))}
    if o["policy"] == "bf16":
        options["mp_policy"] = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    if "offload" in with_:
        options["offload_policy"] = CPUOffloadPolicy(pin_memory=False)
    if "keep" in with_:
        options["reshard_after_forward"] = False
    if "columns" in with_:
        options["shard_placement_fn"] = lambda p: Shard(1) if p.ndim > 1 and p.shape[1] % size == 0 else None
    if "checkpoint" in with_:
        apply_activation_checkpointing(model, check_fn=lambda m: isinstance(m, Block))
    if "layers" in with_:
        for i, block in enumerate(model.h):
            model.h[i] = torch.compile(block, backend="aot_eager")
    values = model.state_dict()
    if "meta" in with_:
        with torch.device("meta"):
            model = make_model(o)
    for block in model.h:
        fully_shard(block, **options)
    fully_shard(model, **options)
    if "meta" in with_:
        model.to_empty(device="cpu")
        model.lm_head.weight = model.wte.weight
        from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict

        set_model_state_dict(model, values, options=StateDictOptions(full_state_dict=True))
    return model


def whole(model: GPT2) -> np.ndarray:
    """[n_params] all parameters, on every rank."""
    full = [p.full_tensor() if hasattr(p, "full_tensor") else p for p in model.parameters()]
    return torch.cat([p.detach().float().reshape(-1) for p in full]).numpy().copy()


def own_batches(data: Numbered, count: int, rank: int, size: int) -> Iterator[Any]:
    """The same samples for any number of processes, without an end."""
    for at in itertools.count(rank, size):
        rows = [data[i % len(data)] for i in range(at * count, (at + 1) * count)]
        yield tuple(torch.from_numpy(np.stack(column)) for column in zip(*rows))


def main(listed: list[dict[str, Any]]) -> None:
    torch.set_num_threads(1)
    rank, size, found = 0, 1, segment._open
    if "RANK" in os.environ:
        dist.init_process_group("gloo")
        rank, size = dist.get_rank(), dist.get_world_size()
    for given in listed:
        o = {**DEFAULTS, **given}
        segment._open = (lambda place: -1) if rank in o["elsewhere"] else found
        train(o, rank, size)
    if size > 1:
        end_process()


def train(o: dict[str, Any], rank: int, size: int) -> None:
    name = o["name"]
    model = trained = make_model(o)
    if o["parallel"] in ("fsdp", "hsdp"):
        trained = model = sharded(model, o)
    elif o["parallel"] == "ddp":
        trained = torch.nn.parallel.DistributedDataParallel(model)
    if "compile" in o["with"]:
        trained = torch.compile(trained, backend="aot_eager")
    kinds = {"adamw": torch.optim.AdamW, "sgd": torch.optim.SGD}
    optimizer = kinds[o["optimizer"]]([p for p in model.parameters() if p.requires_grad], lr=o["rate"])
    data = Numbered(f"{o['data']}/train_*.bin")
    held = atoll.Tokens(f"{o['data']}/val_*.bin", SIZES["block_size"])
    calls = 0

    def evaluate(module: torch.nn.Module, indices: np.ndarray) -> tuple[float, int]:
        nonlocal calls
        loss = tokens = 0
        for at in range(0, len(indices), 2):  # as many forwards as there are samples
            x, y = (torch.from_numpy(np.stack(rows)) for rows in zip(*(held[int(i)] for i in indices[at : at + 2])))
            loss += float(loss_of(module, x, y)) * y.numel()
            tokens += y.numel()
            calls += 1
        return loss, tokens

    options = {"evaluate": evaluate, "val": held} if o["evaluate"] else {}
    micro = 2 if "accumulate" in o["with"] else 1
    starts, n, by_hand = {}, 0, "by hand" in o["with"]
    options.update(join=o["run"], dir=o["dir"] or f"{o['folder']}/{name}", name=name, max_wait=60)
    with atoll.Worker(trained, None if by_hand else optimizer, **options) as worker:
        batches = atoll.batches(data, worker, batch_size=o["batch_size"] // size // micro)
        if "own" in o["with"]:  # the worker learns of a batch by its forward
            batches = own_batches(data, o["batch_size"] // size, rank, size)
        for x, y, _ in batches:
            if o["record"]:
                starts.setdefault(f"r{worker.round}", whole(model))
            loss = worker.loss(loss_of(trained, x, y))
            (loss / micro).backward()
            n += 1
            if n % micro:
                continue
            norm = torch.nn.utils.get_total_norm([p.grad for p in model.parameters() if p.grad is not None])
            optimizer.step()
            optimizer.zero_grad()
            if by_hand:
                worker.step(loss.detach(), grad_norm=norm)
            if o["not_finite"] == [rank, n]:
                with torch.no_grad():
                    p = list(model.parameters())[-1]
                    (p.to_local() if hasattr(p, "to_local") else p).fill_(float("nan"))
            time.sleep(o["pause"])
    end = whole(model)
    if o["record"] and rank == 0:
        np.savez(f"{o['record']}/{name}.npz", end=end, **starts)
    names = ",".join(t.name for t in worker.model.tensors) if rank == 0 else ""
    print(f"{name} rank {rank} hash {worker.info().theta_hash} calls {calls} {names}", flush=True)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
