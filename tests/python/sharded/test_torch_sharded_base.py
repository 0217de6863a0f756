"""Sharded models beside whole ones: a frozen base in shards, evaluations, and one hash with native workers."""

from __future__ import annotations

import re
import unittest

import numpy as np

from rig import GPT2 as SIZES
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


if __name__ == "__main__":
    unittest.main()
