"""Models of fully_shard: the same parameters as DDP and one process, on the same batches."""

from __future__ import annotations

import unittest

import numpy as np

from sharded_case import ShardedRun

FSDP, DDP, HSDP = ({"parallel": kind} for kind in ("fsdp", "ddp", "hsdp"))
WRAPPED: dict[str, list[str]] = {
    "checkpoint": ["checkpoint", "accumulate", "offload"],
    "meta": ["meta", "columns", "keep"],
    "compile": ["compile"],
    "layers": ["layers", "checkpoint"],
    "hand": ["by hand"],  # worker.step, with a norm that is a DTensor
}


class Equality(ShardedRun):
    def compare(self, expected: dict, got: dict[str, dict], bound: float) -> None:
        for name, one in got.items():
            self.assertEqual(sorted(one), sorted(expected))
            worst = max(float(np.abs(one[key] - expected[key]).max()) for key in expected)
            print(f"{name}: at most {worst:.2g} beside one process (bound {bound:g})", flush=True)
            self.assertLessEqual(worst, bound)
        self.assertGreater(float(np.abs(expected["end"] - expected["r0"]).max()), 100 * min(bound, 1e-4))

    def test_fp32(self) -> None:
        one = self.train(one={})["one"]
        self.compare(one, self.train(2, ddp2=DDP, fsdp2=FSDP), 1e-6)
        self.compare(one, self.train(4, ddp4=DDP, fsdp4=FSDP, hsdp4=HSDP), 1e-6)

    def test_adamw(self) -> None:
        """Adam divides by the root of small sums, whose order differs between numbers of processes."""
        adam = {"optimizer": "adamw", "rate": 1e-3}
        one = self.train(1, one=adam)["one"]
        self.compare(one, self.train(2, ddp2={**DDP, **adam}, fsdp2={**FSDP, **adam}), 1e-4)

    def test_wrappers(self) -> None:
        """Activation checkpointing, gradient accumulation, CPU offload, initialization on the meta device, shards of
        columns, parameters that stay whole after forward, torch.compile: parameters and names of one process."""
        one = self.train(one={})["one"]
        self.compare(one, self.train(2, **{name: {**FSDP, "with": with_} for name, with_ in WRAPPED.items()}), 1e-6)
        for name in WRAPPED:
            self.assertEqual(self.printed(name)[2], self.printed("one")[2])

    def test_added_changes(self) -> None:
        """With a lossy codec each number's change is added once, also where ranks hold replicas. A code of int8 may fall
        on the other side: an error of 1/127 of the largest change."""
        sections = {"codec": {"up": "int8", "down": "fp32"}}
        one = self.train(1, sections, one={})["one"]
        self.compare(one, self.train(4, sections, ddp4=DDP, fsdp4=FSDP, hsdp4=HSDP), 1e-3)

    def test_exchange_in_a_forward(self) -> None:
        """A loop with data of its own: the forward that finds a sync point due has the new parameters."""
        own = {"with": ["own"]}
        ends = [self.train(1, one=own)["one"]["end"], self.train(2, fsdp={**FSDP, **own})["fsdp"]["end"]]
        self.assertLessEqual(float(np.abs(ends[0] - ends[1]).max()), 1e-6)

    def test_bf16(self) -> None:
        """A policy of bf16, and parameters of bf16, to the rounding of 8 bits; both forms of the exchange."""
        for codec in ("fp32", "int8"):
            sections = {"codec": {"up": codec, "down": "fp32"}}
            one = self.train(1, sections, **{f"full-{codec}": {}, f"half-{codec}": {"dtype": "bfloat16"}})
            policy = self.train(2, sections, **{f"policy-{codec}": {**FSDP, "policy": "bf16"}})
            self.compare(one[f"full-{codec}"], policy, 2**-7)
            halves = {f"{kind}-{codec}": {"parallel": kind, "dtype": "bfloat16"} for kind in ("ddp", "fsdp")}
            # Of parameters of bf16 the largest ones, from 2 to 4, differ by one step.
            self.compare(one[f"half-{codec}"], self.train(2, sections, **halves), 2**-6)


if __name__ == "__main__":
    unittest.main()
