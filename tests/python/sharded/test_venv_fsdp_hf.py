"""Hugging Face models in shards by accelerate's FSDP2: Trainer, LoRA, a loop of accelerate. Boxes are killed."""

# ctest: timeout=900
from __future__ import annotations

import importlib.util
import json
import os
import re
import signal
import sys
import unittest
from pathlib import Path

import rig

PROGRAM = Path(__file__).with_name("hf_box.py")
MISSING = [name for name in ("accelerate", "peft") if importlib.util.find_spec(name) is None]
SECONDS = 240  # of a phase, in which all processes import transformers


@unittest.skipIf(MISSING, f"not installed: {', '.join(MISSING)}")
class FsdpTest(rig.RunTest):
    def start_run(self, name: str, workers: int) -> None:
        self.run_dir = self.folder / name
        self.start_coordinator(train={"max_steps": 20, "batch_size": 4, "eval_every": 0},
                               codec={"up": "int8:256", "down": "int8:256"},
                               coordinator={"min_workers": workers, "evict_after_s": 600})
        self.wait_for(20, "the address", (self.run_dir / "address").exists)

    def box(self, name: str, **options):
        """Starts a worker of two processes."""
        given = {"run": str(self.run_dir), "dir": f"{self.run_dir}-{name}", **options}
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(PROGRAM),
                   name, json.dumps(given)]
        return self.start(command, f"{self.run_dir.name}-{name}.log", PYTHONPATH=os.pathsep.join(sys.path))

    def kill_processes(self, box, ranks: bool) -> None:
        """kill -9 of all processes, or of one rank: torchrun then ends the other one, and itself."""
        found = Path(f"/proc/{box.pid}/task/{box.pid}/children").read_text().split()
        for pid in (found[-1:] if ranks else [box.pid, *found]):
            os.kill(int(pid), signal.SIGKILL)
        box.wait(60)

    def train(self, run: str, names: str = "ab", **options) -> str:
        """Undisturbed: one box for each letter. Returns theta_hash."""
        self.start_run(run, len(names))
        for box in [self.box(name, **options) for name in names]:
            self.finish(box, SECONDS)
        return self.theta(names)

    def train_killed(self, run: str, **options) -> str:
        """Each of two boxes is killed once, and started again."""
        self.start_run(run, 2)
        boxes = {name: self.box(name, pause=0.2, **options) for name in "ab"}
        for name, ranks in (("a", False), ("b", True)):
            done = self.rounds()
            self.wait_for(SECONDS, f"a round before {name} is killed", lambda done=done: self.rounds() > done)
            self.assertIsNone(boxes[name].poll(), self.logs())
            self.kill_processes(boxes[name], ranks)
            boxes[name] = self.box(name, pause=0.2, **options)
        for box in boxes.values():
            self.finish(box, SECONDS)
        for name in "ab":
            self.assertIn("loaded the saved state", self.log(f"{run}-{name}"))
        return self.theta("ab")

    def theta(self, names: str) -> str:
        """The hash of all boxes and of the coordinator; all parameters were in shards."""
        rig.wait_for(20, "the summary", (self.run_dir / "summary.json").exists)
        for name in names:
            log = self.log(f"{self.run_dir.name}-{name}")
            found = re.findall(r"rank 0 sharded (\d+) of (\d+) hash (\w+)", log)
            self.assertEqual(len(found), 1, log)
            self.assertEqual(found[0][0], found[0][1])
            self.assertEqual(found[0][2], self.summary()["theta_hash"])
        return self.summary()["theta_hash"]

    def test_trainer(self) -> None:
        """bf16, checkpointed activations, tied embeddings, weights by way of the meta device, clipped gradients."""
        options = {"fsdp": {"activation_checkpointing": True, "cpu_ram_efficient_loading": True},
                   "arguments": {"bf16": True, "max_grad_norm": 0.5}}
        self.assertEqual(self.train_killed("killed", **options), self.train("whole", **options))
        steps = self.events("step")
        self.assertEqual({e["step"] for e in steps}, set(range(1, 21)))
        self.assertTrue(all(e["lr"] >= 0 and e["loss"] > 0 for e in steps), steps)
        self.assertEqual(self.summary()["tokens"], 2 * 20 * 4 * 16)

    def test_lora(self) -> None:
        """The base is in shards, too, and in bf16. It is not exchanged."""
        options = {"lora": True, "base": "bfloat16", "arguments": {"bf16": True}}
        self.assertEqual(self.train_killed("killed", **options), self.train("whole", **options))
        found = "model: 1984 parameters in 28 tensors, 1 fragment, and 20 frozen tensors"
        self.assertIn(found, self.log("coordinator"))
        self.check_adapter()

    def check_adapter(self) -> None:
        """The checkpoint is an adapter folder, whose numbers are the run's."""
        from peft import PeftModel
        from transformers import LlamaForCausalLM

        import hf_box

        base = hf_box.make_model({**hf_box.DEFAULTS, "lora": False})
        self.assertIsInstance(base, LlamaForCausalLM)
        model = PeftModel.from_pretrained(base, self.run_dir / "checkpoints" / "latest")
        moved = [p.abs().max() for name, p in model.named_parameters() if "lora_B" in name]
        self.assertEqual(len(moved), 14)
        self.assertTrue(all(m > 0 for m in moved))  # zero before the run

    def test_accelerate(self) -> None:
        """An optimizer made before prepare and wrapped by it, accumulated gradients, clip_grad_norm_."""
        options = {"loop": "accelerate", "arguments": {}}
        whole = self.train("whole", "a", **options)
        self.assertIn("norm DTensor", self.log("whole-a"))
        self.start_run("killed", 1)
        box = self.box("a", pause=0.1, **options)
        self.wait_for(SECONDS, "a round", lambda: self.rounds() > 0)
        self.kill_processes(box, ranks=True)
        self.finish(self.box("a", **options), SECONDS)
        self.assertEqual(self.theta("a"), whole)

    def test_worker_before_prepare_is_one_line(self) -> None:
        self.start_run("early", 1)
        self.finish(self.box("a", loop="early"), SECONDS, code=1)
        self.assertRegex(self.log("early-a"), r"InvalidError: tensor 'model.embed_tokens.weight' is float32 \[64, 16\] "
                                              r"in shards now, and was float32 \[64, 16\] at the join")

    def test_compiled(self) -> None:
        plain = self.train("plain", "a")
        compiled = self.train("compiled", "a", arguments={"torch_compile": True, "torch_compile_backend": "aot_eager"})
        self.assertEqual(compiled, plain)


if __name__ == "__main__":
    unittest.main()
