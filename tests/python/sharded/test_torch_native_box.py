"""Boxes of several processes and a native worker in one run."""

from __future__ import annotations

import unittest

import atoll
from rig import GPT2 as SIZES
from sharded_case import SECONDS, ShardedRun


class Native(ShardedRun):
    def test_native_beside_boxes(self) -> None:
        """Two boxes of two ranks and one native worker: one hash."""
        inner = {"learning_rate": 1e-3, "warmup_steps": 0, "schedule": "constant", "grad_clip": 0}
        data = {kind: str(self.folder / "data" / f"{kind}_*.bin") for kind in ("train", "val")}
        for codec in ("fp32", "int8"):
            self.run_dir = self.folder / f"run-{codec}"
            coordinator = self.start_coordinator(
                train={"max_steps": 20, "batch_size": 8}, coordinator={"min_workers": 3}, model=SIZES, inner=inner,
                data={**data, "tokenizer": "bytes"}, codec={"up": codec, "down": codec})
            self.wait_for(20, "the run", (self.run_dir / "config.yaml").exists)
            native = [atoll.program("atoll-worker"), "--join", str(self.run_dir), "--dir", f"{self.run_dir}-native",
                      "--name", "native", "--train.threads=1"]
            native += [f"--data.{kind}={pattern}" for kind, pattern in data.items()]
            names = [f"fsdp-{codec}", f"ddp-{codec}"]
            boxes = [self.box(name, 2, parallel=name[:-5]) for name in names]
            for process in (self.start(native, f"native-{codec}.log"), *boxes, coordinator):
                self.finish(process, SECONDS)
            theta = self.summary()["theta_hash"]
            self.assertEqual([self.theta(name) for name in names], [theta, theta])
            self.assertIn(f"theta_hash {theta}", self.log(f"native-{codec}"))
            taken = [e["worker"] for e in self.events("step")]
            self.assertEqual({n: taken.count(n) for n in ("native", *names)}, dict.fromkeys(("native", *names), 20))


if __name__ == "__main__":
    unittest.main()
