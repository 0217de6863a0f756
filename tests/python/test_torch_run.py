"""Runs of PyTorch programs: equality with an independent implementation, half precision, DDP, restarts."""

from __future__ import annotations

import json
import os
import sys
import unittest
from pathlib import Path

import numpy as np
import torch

import atoll
from rig import GPT2 as SIZES
from rig import RunTest
from tiny_gpt2 import GPT2, loss_of
from torch_program import DEVICE

PROGRAM = str(Path(__file__).with_name("torch_program.py"))
torch.set_num_threads(1)


class TorchRun(RunTest):
    def setUp(self) -> None:
        super().setUp()
        self.prepare_data()

    def coordinator(self, **sections: dict):
        data = {kind: str(self.folder / "data" / f"{kind}_*.bin") for kind in ("train", "val")}
        defaults = {"model": SIZES, "data": {**data, "tokenizer": "bytes"}, "inner": {"warmup_steps": 0}}
        return self.start_coordinator(**{**defaults, **sections})

    def worker(self, name: str, *launcher: str, **options):
        given = {"run": str(self.run_dir), "folder": str(self.folder), "data": str(self.folder / "data"), **options}
        command = [sys.executable, *launcher, PROGRAM, name, json.dumps(given)]
        return self.start(command, f"{name}.log", PYTHONPATH=os.pathsep.join(sys.path))

    def recorded(self, name: str) -> dict[str, np.ndarray]:
        with np.load(self.folder / f"{name}.npz") as file:
            return dict(file)


def dataset(folder: Path) -> atoll.Tokens:
    return atoll.Tokens(folder / "data" / "train_*.bin", SIZES["block_size"])


class Replica:
    """One worker of the reference: its own model and AdamW, with the schedule of torch_program.py."""

    def __init__(self, data: atoll.Tokens, samples: np.ndarray) -> None:
        self.model = GPT2(**{k: v for k, v in SIZES.items() if k != "family"}).to(DEVICE)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        self.schedule = torch.optim.lr_scheduler.LambdaLR(self.optimizer, lambda step: min(1, (step + 1) / 10))
        self.data, self.samples = data, [int(i) for i in samples]

    def train(self, theta: list[torch.Tensor], steps: int) -> list[torch.Tensor]:
        """Trains from theta; returns the parameters after `steps` steps."""
        with torch.no_grad():
            for p, value in zip(self.model.parameters(), theta):
                p.copy_(value)
        for _ in range(steps):
            batch, self.samples = self.samples[:4], self.samples[4:]
            x, y = (torch.from_numpy(np.stack(rows)).to(DEVICE) for rows in zip(*[self.data[i] for i in batch]))
            self.optimizer.zero_grad()
            loss_of(self.model, x, y).backward()
            self.optimizer.step()
            self.schedule.step()
        return [p.detach().cpu().clone() for p in self.model.parameters()]


class Equality(TorchRun):
    """Two workers by the package against the rules of the papers in one process, on the same batches."""

    def compare(self, outer_optimizer, **sections: dict) -> None:
        coordinator = self.coordinator(
            train={"max_steps": 25, **sections.pop("train")}, coordinator={"min_workers": 2}, **sections
        )
        workers = [self.worker(name, record=str(self.folder)) for name in ("a", "b")]
        for process in (*workers, coordinator):
            self.finish(process, 100)
        runs = [self.recorded(name) for name in ("a", "b")]
        replicas = [Replica(dataset(self.folder), run["samples"]) for run in runs]
        shapes = [p.shape for p in replicas[0].model.parameters()]
        begin = torch.from_numpy(runs[0]["r0"]).split([s.numel() for s in shapes])
        theta = [torch.nn.Parameter(t.view(s).clone()) for t, s in zip(begin, shapes)]
        outer = outer_optimizer(theta)
        for round in range(5):
            trained = [replica.train([t.detach() for t in theta], 5) for replica in replicas]
            for t, *ends in zip(theta, *trained):
                t.grad = t.detach() - torch.stack(ends).mean(0)  # the outer gradient of DiLoCo
            outer.step()
            expected = torch.cat([t.detach().reshape(-1) for t in theta]).numpy()
            for run in runs:
                got = run["end"] if round == 4 else run[f"r{round + 1}"]
                self.assertLess(np.abs(got - expected).max(), 1e-5)
                self.assertGreater(np.abs(got - run["r0"]).max(), 1e-3)
        self.assertEqual(len({*runs[0]["samples"], *runs[1]["samples"]}), 200)  # none twice

    def test_diloco(self) -> None:
        outer = {"optimizer": "nesterov", "learning_rate": 0.7, "momentum": 0.9}
        self.compare(
            lambda p: torch.optim.SGD(p, lr=0.7, momentum=0.9, nesterov=True), train={"method": "diloco"}, outer=outer
        )

    def test_local_sgd(self) -> None:
        self.compare(lambda p: torch.optim.SGD(p, lr=1.0), train={"method": "local-sgd"})


class Programs(TorchRun):
    def finish_all(self, *processes) -> None:
        for process in processes:
            self.finish(process, 100)

    def test_bf16(self) -> None:
        """bf16 and fp32 programs train one run; the loss falls, and the parameters are those of the run, rounded."""
        coordinator = self.coordinator(train={"max_steps": 60}, coordinator={"min_workers": 2})
        a = self.worker("a", dtype="bfloat16", record=str(self.folder))
        b = self.worker("b", record=str(self.folder))
        self.finish_all(a, b, coordinator)
        half, full = self.recorded("a"), self.recorded("b")
        self.assertEqual(self.log("a").split()[-3], self.log("b").split()[-3])
        for key in ("r0", "r5", "end"):
            np.testing.assert_array_equal(half[key], torch.from_numpy(full[key]).bfloat16().float().numpy())
        losses = [e["loss"] for e in self.events("step") if e["worker"] == "a"]
        self.assertLess(np.mean(losses[-5:]), np.mean(losses[:5]) - 0.1)

    def test_accumulation(self) -> None:
        """Two batches of 2 are one batch of 4; a loader with processes gives the same batches."""
        ends = []
        for options in ({}, {"batch_size": 2, "accumulation": 2}, {"num_workers": 1}):
            self.run_dir = self.folder / f"run{len(ends)}"
            coordinator = self.coordinator(train={"max_steps": 15})
            self.finish_all(self.worker(f"w{len(ends)}", record=str(self.folder), **options), coordinator)
            ends.append(self.recorded(f"w{len(ends)}"))
            self.assertEqual(self.summary()["tokens"], 15 * 4 * 32)
        for other in ends[1:]:
            np.testing.assert_array_equal(ends[0]["samples"], other["samples"])
            np.testing.assert_allclose(ends[0]["end"], other["end"], atol=5e-6)  # sums in another order, through Adam
        np.testing.assert_array_equal(ends[0]["end"], ends[2]["end"])

    def test_ddp(self) -> None:
        """Two ranks of a DDP worker equal one process with the whole batch."""
        launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
        self.coordinator(train={"max_steps": 15})
        self.finish_all(self.worker("ranks", *launcher, ddp=1, batch_size=2, record=str(self.folder)))
        self.run_dir = self.folder / "single"
        self.coordinator(train={"max_steps": 15})
        self.finish_all(self.worker("one", record=str(self.folder)))
        first, second, one = self.recorded("ranks"), self.recorded("ranks.1"), self.recorded("one")
        for key in ("r0", "r1", "r2", "end"):
            np.testing.assert_array_equal(first[key], second[key])
            np.testing.assert_allclose(first[key], one[key], atol=5e-6)  # sums in another order, through Adam
        self.assertEqual(set(first["samples"]) & set(second["samples"]), set())
        self.assertEqual(set(first["samples"]) | set(second["samples"]), set(one["samples"]))


if __name__ == "__main__":
    unittest.main()
