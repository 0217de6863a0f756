"""Streams of the package `datasets`: shuffled by pass, read by number, and in a run that is killed; in the Trainer."""

from __future__ import annotations

import collections
import os
import sys
import unittest
import warnings
from collections.abc import Iterator
from typing import Any

import torch

try:
    import accelerate  # noqa: F401
    import datasets
    from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments
except ImportError as missing:
    raise unittest.SkipTest(f"no {missing.name}") from None

import atoll.hf
from atoll.train.samples import is_stream
from atoll.train.stream import Stream
from rig import RunTest

N = 60


def rows() -> Iterator[dict[str, Any]]:
    for i in range(N):
        ids = [(i + j) % 64 for j in range(8)]
        yield {"number": i, "input_ids": ids, "labels": ids}


def stream() -> Any:
    return datasets.IterableDataset.from_generator(rows).shuffle(seed=3, buffer_size=16)


def order(passes: int) -> list[int]:
    """The numbers as the package gives them, pass by pass."""
    data, numbers = stream(), []
    for epoch in range(passes):
        data.set_epoch(epoch)
        numbers += [row["number"] for row in data]
    return numbers


PROGRAM = """
import os, signal, sys
import torch, atoll
from test_venv_stream import stream

name, run, folder, kill = sys.argv[1:5]
torch.manual_seed(1)
model = torch.nn.Linear(1, 1)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
record, steps = open(f"{folder}/{name}.txt", "a", buffering=1), 0
with atoll.Worker(model, optimizer, join=run, dir=f"{folder}/{name}", name=name) as worker:
    for batch in atoll.batches(stream(), worker, batch_size=4):
        steps += 1
        if steps == int(kill):
            os.kill(os.getpid(), signal.SIGKILL)
        x = batch["number"].float()[:, None]
        (model(x / 60) - x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        print(worker.round, *batch["number"].tolist(), file=record)
"""


class Streams(RunTest):
    def test_by_number(self) -> None:
        """Two passes have two orders; skip() leads to the same samples."""
        self.assertTrue(is_stream(stream()))
        expected = order(3)
        self.assertNotEqual(expected[:N], expected[N : 2 * N])
        self.assertEqual([Stream(stream())[k]["number"] for k in (0, 7, N, N + 9, 2 * N + 5)],
                         [expected[k] for k in (0, 7, N, N + 9, 2 * N + 5)])
        read = Stream(stream())
        numbers = [3, 4, 20, N + 1, 8, 2 * N + 30, N]
        self.assertEqual([read[k]["number"] for k in numbers], [expected[k] for k in numbers])

    def test_a_killed_run_has_the_same_bits(self) -> None:
        """32 steps of 4 samples are more than two passes. The kill is in the second one."""
        hashes = []
        for name, kills in (("plain", [0]), ("again", [19, 0])):
            self.run_dir = self.folder / f"run-{name}"
            train = {"max_steps": 32, "sync_every": 4, "batch_size": 4}
            coordinator = self.start_coordinator(train=train, coordinator={"evict_after_s": 600})
            for kill in kills:
                arguments = (str(self.run_dir), str(self.folder), str(kill))
                worker = self.start_script(PROGRAM, name, *arguments, PYTHONPATH=os.pathsep.join(sys.path))
                self.finish(worker, 120, code=-9 if kill else 0)
            self.finish(coordinator)
            hashes.append(self.summary()["theta_hash"])
        self.assertEqual(hashes[0], hashes[1])
        self.assertEqual(self.taken("plain"), order(3)[:128])
        self.assertEqual(self.taken("again"), order(3)[:128])

    def taken(self, name: str) -> list[int]:
        """Numbers in the order of training; of a round that was trained twice, the second time."""
        rounds: dict[int, list[int]] = collections.defaultdict(list)
        for line in (self.folder / f"{name}.txt").read_text().splitlines():
            round_, *numbers = map(int, line.split())
            rounds[round_] += numbers
        return sum((rounds[r][-16:] for r in sorted(rounds)), [])

    def test_trainer(self) -> None:
        torch.set_num_threads(1)
        warnings.simplefilter("ignore")
        coordinator = self.start_coordinator(train={"max_steps": 20, "sync_every": 5, "batch_size": 4})
        sizes = {"vocab_size": 64, "n_positions": 8, "n_embd": 8, "n_layer": 1, "n_head": 1}
        options: dict[str, Any] = {"max_steps": 20, "per_device_train_batch_size": 4, "use_cpu": True}
        options |= {"save_strategy": "no", "report_to": [], "disable_tqdm": True}
        Trainer(
            model=GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=None, eos_token_id=None)),
            args=TrainingArguments(str(self.folder / "out"), **options),
            train_dataset=stream(),
            callbacks=[atoll.hf.Callback(self.run_dir, dir=self.folder / "w", name="w")],
        ).train()
        self.finish(coordinator)
        self.assertEqual(self.summary()["tokens"], 20 * 4 * 8)


if __name__ == "__main__":
    unittest.main()
