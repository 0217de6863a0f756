"""Sharded models beside whole ones: a frozen base in shards, evaluations, numbers that are not finite."""

from __future__ import annotations

import re
import unittest

import numpy as np

from rig import entries
from sharded_case import SECONDS, ShardedRun


class Together(ShardedRun):
    def finish_all(self, *processes) -> None:
        for process in processes:
            self.finish(process, SECONDS)

    def test_frozen_base_in_shards(self) -> None:
        """A sharded and a whole model with the same frozen tensors train one run, whoever comes first; another base is
        refused. The checkpoint has the frozen tensors."""
        bases = []
        for first in ("fsdp", "one"):
            self.run_dir = self.folder / f"run-{first}"
            coordinator = self.start_coordinator(train={"max_steps": 10, "batch_size": 8},
                                                 coordinator={"min_workers": 2})
            boxes = {
                "fsdp": lambda: self.box(f"fsdp-{first}", 2, parallel="fsdp", frozen=True, odd=True),
                "one": lambda: self.box(f"one-{first}", frozen=True, odd=True),
            }
            earlier = boxes.pop(first)()
            self.wait_for(60, "the model", (self.run_dir / "checkpoints" / "latest" / "model.safetensors").exists)
            (later,) = boxes.values()
            self.finish_all(earlier, later(), coordinator)
            self.assertEqual(self.theta(f"fsdp-{first}"), self.theta(f"one-{first}"))
            self.assertEqual(self.theta(f"fsdp-{first}"), self.summary()["theta_hash"])
            _, tensors = entries(self.run_dir / "checkpoints" / "latest" / "model.safetensors")
            bases.append(tensors["wte.weight"])
        self.assertEqual(*bases)
        self.assertEqual(bases[0][:2], ("F32", [257, 10]))
        self.assertGreater(np.frombuffer(bases[0][2], np.float32).std(), 0.1)

    def test_evaluations_are_collective(self) -> None:
        """73 validation samples in parts of 8 over 2 ranks: each calls evaluate equally often, with parts of equal
        size, and the loss is that of one process."""
        sections = {"train": {"max_steps": 10, "batch_size": 8, "eval_every": 1, "eval_tokens": 73 * 32}}
        self.train(1, sections, one={"evaluate": True})
        self.train(2, sections, fsdp={"evaluate": True, "parallel": "fsdp"}, ddp={"evaluate": True, "parallel": "ddp"})
        losses = {}
        for name in ("one", "fsdp", "ddp"):
            self.run_dir = self.folder / f"run-{name}"
            losses[name] = [e["loss"] for e in self.events("eval")]
        self.assertGreater(len(losses["one"]), 1)
        for name in ("fsdp", "ddp"):
            np.testing.assert_allclose(losses[name], losses["one"], rtol=1e-6)
        calls = re.findall(r"fsdp rank . hash \w* calls (\d+)", self.log("fsdp"))
        self.assertEqual(len(calls), 2)
        self.assertEqual(*calls)

    def test_not_finite_on_one_rank(self) -> None:
        """NaN in the shard of rank 1 drops the round on both; the next rounds train."""
        for codec in ("fp32", "int8"):
            name = f"nan-{codec}"
            self.train(2, {"codec": {"up": codec, "down": codec}},
                       **{name: {"parallel": "fsdp", "not_finite": [1, 8]}})
            self.assertEqual(len(re.findall("the round is dropped", self.log(name))), 1)
            self.assertIn("ln_f.bias", self.log(name))
            self.assertEqual(self.summary()["steps"], 25)


if __name__ == "__main__":
    unittest.main()
