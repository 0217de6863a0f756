"""A worker process of the PyTorch tests: python torch_program.py NAME OPTIONS

OPTIONS is JSON, with the defaults below. It trains tiny_gpt2 on token shards. `record`: a folder for NAME.npz with the
parameters at the start of each round (r0, r1, ... [n_params]), those at the end of the run, and the samples [n].
ATOLL_TEST_DEVICE=cuda: the model is on the GPU, and equal inputs give equal results (CUBLAS_WORKSPACE_CONFIG=:4096:8).
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import numpy as np
import torch

import atoll
from rig import GPT2 as SIZES, end_process
from tiny_gpt2 import GPT2, loss_of

DEVICE = os.environ.get("ATOLL_TEST_DEVICE", "cpu")
DEFAULTS = {
    "run": "",
    "folder": "",
    "data": "",
    "batch_size": 4,
    "accumulation": 1,
    "dropout": 0.0,
    "seed": 1,
    "rate": 1e-3,
    "pause": 0.0,
    "dtype": "float32",
    "record": "",
    "optimizer": "adamw",
    "ddp": 0,
    "num_workers": 0,
}


def flat(model: torch.nn.Module) -> np.ndarray:
    """[n_params] all parameters in the order of state_dict."""
    return torch.cat([p.detach().float().reshape(-1).cpu() for p in model.parameters()]).numpy().copy()


def main(name: str, given: dict) -> None:
    o = {**DEFAULTS, **given}
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(DEVICE != "cpu")
    torch.manual_seed(o["seed"])
    model = GPT2(**{k: v for k, v in SIZES.items() if k != "family"}, dropout=o["dropout"])
    model.to(DEVICE, getattr(torch, o["dtype"]))
    trained = model
    if o["ddp"]:
        torch.distributed.init_process_group("gloo")
        trained = torch.nn.parallel.DistributedDataParallel(model)
        torch.manual_seed(o["seed"] + torch.distributed.get_rank())  # dropout differs between ranks
    kinds = {"adamw": torch.optim.AdamW, "sgd": torch.optim.SGD}
    optimizer = kinds[o["optimizer"]](model.parameters(), lr=o["rate"])
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1, (step + 1) / 10))
    samples, starts, n = [], {}, 0
    dataset = Numbered(f"{o['data']}/train_*.bin")
    worker = atoll.Worker(
        trained, optimizer, join=o["run"], dir=f"{o['folder']}/{name}", name=name, state=[scheduler], max_wait=60
    )
    with worker:
        for x, y, i in atoll.batches(dataset, worker, batch_size=o["batch_size"], num_workers=o["num_workers"]):
            starts.setdefault(f"r{worker.round}", flat(model) if o["record"] else None)
            samples.extend(i.tolist())
            loss = worker.loss(loss_of(trained, x.to(DEVICE), y.to(DEVICE)))
            (loss / o["accumulation"]).backward()
            n += 1
            if n % o["accumulation"] == 0:
                optimizer.step()
                optimizer.zero_grad()
                scheduler.step()
                time.sleep(o["pause"])
    if o["record"]:
        rank = torch.distributed.get_rank() if o["ddp"] else 0
        path = Path(o["record"]) / (f"{name}.{rank}.npz" if rank else f"{name}.npz")
        np.savez(path, samples=np.array(samples), end=flat(model), **starts)
    print("hash", worker.info().theta_hash, "steps", scheduler.last_epoch)
    if o["ddp"]:
        end_process()


class Numbered:
    """Token shards whose samples carry their number: (x, y, index)."""

    def __init__(self, pattern: str) -> None:
        self.tokens = atoll.Tokens(pattern, SIZES["block_size"])
        self.data = self.tokens.data

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, i: int):
        x, y = self.tokens[i]
        return x, y, float(i)  # a float: the targets are the last integers


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]))
