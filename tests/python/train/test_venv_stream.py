"""Streams of the package `datasets`: shuffled by pass, read by number; in the Trainer."""

from __future__ import annotations

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
