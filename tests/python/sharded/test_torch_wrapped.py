"""Models of fully_shard in wrappers and with half precision, beside one process on the same batches."""

from __future__ import annotations

import unittest

from sharded_case import FSDP, ShardedRun

WRAPPED: dict[str, list[str]] = {
    "checkpoint": ["checkpoint", "accumulate", "offload"],
    "meta": ["meta", "columns", "keep"],
    "compile": ["compile"],
    "layers": ["layers", "checkpoint"],
    "hand": ["by hand"],  # worker.step, with a norm that is a DTensor
}


class Wrapped(ShardedRun):
    def test_wrappers(self) -> None:
        """Activation checkpointing, gradient accumulation, CPU offload, initialization on the meta device, shards of
        columns, parameters that stay whole after forward, torch.compile: parameters and names of one process."""
        one = self.train(one={})["one"]
        self.compare(one, self.train(2, **{name: {**FSDP, "with": with_} for name, with_ in WRAPPED.items()}), 1e-6)
        for name in WRAPPED:
            self.assertEqual(self.printed(name)[2], self.printed("one")[2])

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
