"""Processes that do not find the memory of rank 0, as on another host."""

from __future__ import annotations

import unittest

import numpy as np

from sharded_case import ShardedRun

CASES = {2: (("fsdp", [1]), ("ddp", [1])), 4: (("hsdp", [1, 3]), ("hsdp", [2, 3]))}


class OtherHosts(ShardedRun):
    def test_same_bits(self) -> None:
        """They send their blocks to rank 0, and get them from it: the same bits, in both forms of the exchange."""
        for processes, cases in CASES.items():
            for codec in ("fp32", "int8"):
                workers = {}
                for parallel, ranks in cases:
                    name = f"{parallel}-{codec}-{''.join(map(str, ranks))}"
                    workers[name] = {"parallel": parallel}
                    workers[f"{name}-there"] = {"parallel": parallel, "elsewhere": ranks}
                ends = self.train(processes, {"codec": {"up": codec, "down": codec}}, **workers)
                lines = self.log(self.last).count(f" of {processes} processes are on other hosts")
                self.assertEqual(lines, len(cases))
                for name in [name for name in workers if not name.endswith("there")]:
                    np.testing.assert_array_equal(ends[f"{name}-there"]["end"], ends[name]["end"])
                    self.assertEqual(self.theta(f"{name}-there"), self.theta(name))


if __name__ == "__main__":
    unittest.main()
