"""Models of fully_shard: the same parameters as DDP and one process, on the same batches."""

from __future__ import annotations

import unittest

import numpy as np

from sharded_case import ShardedRun


class Equality(ShardedRun):
    def compare(self, expected: dict, name: str, got: dict, bound: float) -> None:
        self.assertEqual(sorted(got), sorted(expected))
        worst = max(float(np.abs(got[key] - expected[key]).max()) for key in expected)
        print(f"{name}: at most {worst:.2g} beside one process (bound {bound:g})", flush=True)
        self.assertLessEqual(worst, bound)
        self.assertGreater(float(np.abs(expected["end"] - expected["r0"]).max()), 1e-2)

    def test_fp32(self) -> None:
        one = self.train("one", odd=True)
        for parallel, processes in (("ddp", 2), ("fsdp", 2), ("fsdp", 4), ("ddp", 4), ("hsdp", 4)):
            name = f"{parallel}{processes}"
            self.compare(one, name, self.train(name, processes, parallel=parallel, odd=True), 1e-6)


if __name__ == "__main__":
    unittest.main()
