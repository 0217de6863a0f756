"""Sharded models beside whole ones: a frozen base in shards, evaluations, and one hash with native workers."""

from __future__ import annotations

import re
import unittest

import numpy as np

import atoll
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
            self.finish_all(self.start(native, f"native-{codec}.log"), *boxes, coordinator)
            theta = self.summary()["theta_hash"]
            self.assertEqual([self.theta(name) for name in names], [theta, theta])
            self.assertIn(f"theta_hash {theta}", self.log(f"native-{codec}"))
            taken = [e["worker"] for e in self.events("step")]
            self.assertEqual({n: taken.count(n) for n in ("native", *names)}, dict.fromkeys(("native", *names), 20))


if __name__ == "__main__":
    unittest.main()
