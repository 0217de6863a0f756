"""Models of fully_shard: the same parameters as DDP and one process, on the same batches."""

from __future__ import annotations

import unittest

import numpy as np

from sharded_case import DDP, FSDP, HSDP, ShardedRun


class Equality(ShardedRun):
    def test_fp32(self) -> None:
        one = self.train(one={})["one"]
        self.compare(one, self.train(2, ddp2=DDP, fsdp2=FSDP), 1e-6)
        self.compare(one, self.train(4, ddp4=DDP, fsdp4=FSDP, hsdp4=HSDP), 1e-6)

    def test_adamw(self) -> None:
        """Adam divides by the root of small sums, whose order differs between numbers of processes."""
        adam = {"optimizer": "adamw", "rate": 1e-3}
        one = self.train(1, one=adam)["one"]
        self.compare(one, self.train(2, ddp2={**DDP, **adam}, fsdp2={**FSDP, **adam}), 1e-4)

    def test_added_changes(self) -> None:
        """With a lossy codec each number's change is added once, also where ranks hold replicas. A code of int8 may
        fall on the other side: an error of 1/127 of the largest change."""
        sections = {"codec": {"up": "int8", "down": "fp32"}}
        one = self.train(1, sections, one={})["one"]
        self.compare(one, self.train(4, sections, ddp4=DDP, fsdp4=FSDP, hsdp4=HSDP), 1e-3)

    def test_exchange_in_a_forward(self) -> None:
        """A loop with data of its own: the forward that finds a sync point due has the new parameters."""
        own = {"with": ["own"]}
        ends = [self.train(1, one=own)["one"]["end"], self.train(2, fsdp={**FSDP, **own})["fsdp"]["end"]]
        self.assertLessEqual(float(np.abs(ends[0] - ends[1]).max()), 1e-6)


if __name__ == "__main__":
    unittest.main()
