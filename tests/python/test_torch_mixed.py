"""Two PyTorch programs and one native atoll-worker train one run."""

from __future__ import annotations

import unittest

import numpy as np

import atoll
from rig import GPT2 as SIZES
from test_torch_run import TorchRun


class Mixed(TorchRun):
    def test_same_hash(self) -> None:
        """All three end with the same parameters; the loss falls as that of the native workers does."""
        inner = {"learning_rate": 1e-3, "warmup_steps": 10, "schedule": "constant", "weight_decay": 0.01}
        inner["grad_clip"] = 0
        steps = {"max_steps": 60, "eval_every": 1}
        losses = []
        for natives in (1, 3):
            self.run_dir = self.folder / f"run{natives}"
            coordinator = self.coordinator(train=steps, inner=inner, coordinator={"min_workers": 3})
            self.wait_for(20, "the run", (self.run_dir / "config.yaml").exists)
            names = ["native0", "native1", "native2"][:natives] + ["torch0", "torch1"][: 3 - natives]
            workers = [self.native(n) if n.startswith("native") else self.worker(n) for n in names]
            for process in (*workers, coordinator):
                self.finish(process, 100)
            losses.append(self.summary()["final_val_loss"])
            if natives == 1:
                theta = self.summary()["theta_hash"]
                for name in ("torch0", "torch1"):
                    self.assertIn(f"hash {theta}", self.log(name))
                self.assertIn(f"theta_hash {theta}", self.log("native0"))
                taken = [e["worker"] for e in self.events("step")]
                self.assertEqual({n: taken.count(n) for n in names}, dict.fromkeys(names, 60))
        first = self.events("eval")[0]["loss"]
        self.assertLess(abs(losses[0] - losses[1]), 0.03)
        self.assertGreater(np.log(SIZES["vocab_size"]) - losses[0], 0.5)
        self.assertGreater(first, losses[1])

    def native(self, name: str):
        command = [atoll.program("atoll-worker"), "--join", str(self.run_dir), "--dir", str(self.run_dir) + name]
        data = [f"--data.{kind}={self.folder}/data/{kind}_*.bin" for kind in ("train", "val")]
        return self.start([*command, "--name", name, *data, "--train.threads=1"], f"{name}.log")


if __name__ == "__main__":
    unittest.main()
