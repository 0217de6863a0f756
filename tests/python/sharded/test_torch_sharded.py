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

    def test_other_hosts(self) -> None:
        """Ranks that do not find the memory of rank 0 send their blocks: the same bits."""
        for parallel, processes, elsewhere in (("fsdp", 2, [1]), ("ddp", 2, [1]), ("hsdp", 4, [1, 3]),
                                               ("hsdp", 4, [2, 3])):
            for codec in ("fp32", "int8"):
                sections = {"codec": {"up": codec, "down": codec}}
                name = f"{parallel}-{codec}-{''.join(map(str, elsewhere))}"
                options = {"parallel": parallel, "odd": True}
                here = self.train(f"{name}-here", processes, sections, **options)
                there = self.train(f"{name}-there", processes, sections, elsewhere=elsewhere, **options)
                self.assertIn(f"{len(elsewhere)} of {processes} processes are on other hosts", self.log(f"{name}-there"))
                self.assertNotIn("other hosts", self.log(f"{name}-here"))
                self.assertEqual(self.theta(f"{name}-there"), self.theta(f"{name}-here"))
                np.testing.assert_array_equal(there["end"], here["end"])


if __name__ == "__main__":
    unittest.main()
