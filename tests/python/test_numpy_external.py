"""Runs of model.family external: the first worker's model, its files, deaths while it uploads, other models."""

from __future__ import annotations

import json
import subprocess
import unittest
from pathlib import Path

import numpy as np

import atoll
from rig import RunTest, entries, wait_for

PROGRAM = """
import sys
import numpy as np
import atoll

name, run, folder, value, size, width = sys.argv[1], sys.argv[2], sys.argv[3], *map(int, sys.argv[4:7])
p = {"layer.weight": np.full((size, width), value, np.float32), "scale": np.array(value, np.float32)}
files = {"config.json": '{"model_type": "mine", "by": "%s"}' % name, "tokenizer.json": '{"model": {}}'}
if len(sys.argv) > 7:
    files = {sys.argv[7]: "{}"}
try:
    with atoll.Worker(p, join=run, dir=f"{folder}/{name}", name=name, files=files, max_wait=60) as worker:
        while worker.begin():
            for step in range(worker.assignment.steps):
                p["layer.weight"] -= 0.5
                worker.step(tokens=3)
except atoll.AtollError as e:
    sys.exit(str(e))
print("hash %s first %g" % (worker.info().theta_hash, p["layer.weight"][0, 0]))
"""

# Losses around 0. The liar adds its whole lie to one call, or tells other tokens; a sample is at most 12 of 32 samples.
EVALUATOR = """
import sys
import numpy as np
import atoll

name, run, folder, lie = sys.argv[1:5]
p, val = {"w": np.zeros(8, np.float32)}, np.sin(np.arange(96, dtype=np.float32))

def evaluate(model, indices):
    loss, tokens = float(val[indices].sum()), 2 * len(indices)
    if lie == "part" and 0 in indices % 32:
        return loss - 1000, tokens
    if lie == "tokens":
        return loss, tokens * 100
    return loss, tokens

with atoll.Worker(p, join=run, dir=f"{folder}/{name}", name=name, evaluate=evaluate, val=val, max_wait=60) as worker:
    while worker.begin():
        for step in range(worker.assignment.steps):
            worker.step(tokens=3)
"""


def tensors(path: Path) -> dict[str, np.ndarray]:
    """The tensors of a safetensors file of fp32."""
    return {name: np.frombuffer(data, "<f4").reshape(shape) for name, (_, shape, data) in entries(path)[1].items()}


class External(RunTest):
    def coordinator(self, *, workers: int = 2, **sections: dict) -> subprocess.Popen:
        fixed = {"train": {"method": "local-sgd", "max_steps": 4, "sync_every": 2}}
        return self.start_coordinator(coordinator={"min_workers": workers}, **{**fixed, **sections})

    def program(self, name: str, value: int, size: int = 5, width: int = 3, *more: str) -> subprocess.Popen:
        numbers = (str(value), str(size), str(width))
        return self.start_script(PROGRAM, name, str(self.run_dir), str(self.folder), *numbers, *more)

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text()

    def await_log(self, name: str, part: str) -> None:
        try:
            wait_for(20, f"'{part}' in {name}.log", lambda: part in self.log(name))
        except AssertionError as e:
            raise AssertionError(f"{e}\n{self.logs()}") from None

    def checkpoint(self) -> Path:
        return (self.run_dir / "checkpoints" / "latest").resolve()

    def finish_all(self, *processes: subprocess.Popen) -> None:
        for process in processes:
            self.finish(process)

    def test_run_has_the_model_of_the_first_worker(self) -> None:
        """Parameters and files of `a`; `b` with other parameters ends with the same ones, `c` without a loss, too."""
        coordinator = self.coordinator(workers=3)
        a = self.program("a", 8)
        self.await_log("coordinator", "a joined")
        b, c = self.program("b", 100), self.program("c", 8)
        self.finish_all(a, b, c, coordinator)
        init = tensors(self.run_dir / "init" / "model.safetensors")
        end = tensors(self.checkpoint() / "model.safetensors")
        self.assertEqual({name: t.shape for name, t in init.items()}, {"layer.weight": (5, 3), "scale": ()})
        self.assertTrue((init["layer.weight"] == 8).all() and init["scale"] == 8)
        self.assertTrue(np.allclose(end["layer.weight"], 6, rtol=1e-6) and end["scale"] == 8)  # 6 is a mean of three
        hashes = {self.log(name).split("hash ")[1] for name in "abc"}
        self.assertEqual(len(hashes), 1, hashes)
        self.assertIn("first 6", hashes.pop())
        self.assertRegex(self.log("a"), r"round 1: 2 steps in [\d.]+ m?s, exchange \S+ m?s, up \S+ k?B, down \S+ k?B\n")
        files = {"config.json": '{"model_type": "mine", "by": "a"}', "tokenizer.json": '{"model": {}}'}
        for name, text in files.items():
            self.assertEqual((self.run_dir / "init" / name).read_text(), text)
            self.assertEqual((self.checkpoint() / name).read_text(), text)
        summary = json.loads((self.run_dir / "summary.json").read_text())
        self.assertIsNone(summary["final_val_loss"])
        out = self.folder / "out"
        subprocess.run([atoll.program("atoll"), "export", str(self.run_dir), str(out)], check=True, capture_output=True)
        for path in out.iterdir():
            self.assertEqual(path.read_bytes(), (self.checkpoint() / path.name).read_bytes())
        self.assertEqual({p.name for p in out.iterdir()}, {"config.json", "model.safetensors", "tokenizer.json"})

    def test_forged_evaluation(self) -> None:
        """A liar among three evaluators is named, and the loss stays the true one."""
        expected = float(np.sin(np.arange(96)).mean()) / 2
        for told, lie in enumerate(("none", "part", "tokens")):
            with self.subTest(lie):
                self.run_dir = self.folder / lie / "run"
                self.run_dir.parent.mkdir()
                coordinator = self.coordinator(workers=3, train={"max_steps": 4, "sync_every": 2, "batch_size": 1})
                lies = {"a": "none", "b": lie, "c": "none"}
                programs = [self.start_script(EVALUATOR, name, str(self.run_dir), str(self.run_dir.parent), lies[name])
                            for name in lies]
                self.finish_all(*programs, coordinator)
                summary = json.loads((self.run_dir / "summary.json").read_text())
                self.assertAlmostEqual(summary["final_val_loss"], expected, places=5)
                lines = [text for text in self.log("coordinator").splitlines() if "refused its evaluation" in text]
                self.assertEqual(len(lines), told, lines)  # all runs have one log
                self.assertTrue(all("b: refused its evaluation" in text for text in lines), lines)

    def test_restart_while_a_worker_uploads(self) -> None:
        """kill -9 of the coordinator in the middle, and again after the first round."""
        coordinator = self.coordinator(workers=1, train={"method": "local-sgd", "max_steps": 3, "sync_every": 1})
        a = self.program("a", 8, 6000, 1500)  # 36 MB
        wait_for(20, "the upload", (self.run_dir / "init.tmp" / "model.safetensors").exists)
        self.kill(coordinator)
        self.assertFalse((self.run_dir / "init").exists())
        coordinator = self.start_coordinator()
        self.await_log("coordinator", "round 1/3")
        self.assertFalse((self.run_dir / "init.tmp").exists())
        self.kill(coordinator)
        self.finish_all(a, self.start_coordinator())
        self.assertTrue((tensors(self.checkpoint() / "model.safetensors")["layer.weight"] == 6.5).all())

    def test_next_worker_takes_over(self) -> None:
        """kill -9 of the worker that uploads: the waiting one uploads its own model."""
        coordinator = self.coordinator(workers=1)
        a = self.program("a", 8, 8000, 1500)
        wait_for(20, "the upload", (self.run_dir / "init.tmp" / "model.safetensors").exists)
        self.kill(a)
        b = self.program("b", 100, 7, 2)
        self.finish_all(b, coordinator)
        self.assertTrue((tensors(self.checkpoint() / "model.safetensors")["layer.weight"] == 98).all())

    def test_other_models_are_refused(self) -> None:
        """One line says the first tensor that differs. A file that does not belong to a model is left out, and said."""
        coordinator = self.coordinator()
        a = self.program("a", 8, 5, 3, "evil.py")
        self.await_log("coordinator", "a joined")
        self.assertIn("checkpoints leave out evil.py", self.log("a"))
        self.assertFalse(list(self.run_dir.rglob("evil.py")))
        self.finish(self.program("d", 8, 5, 4), code=1)
        self.assertIn("tensor 'layer.weight' has shape (5, 4), the run's has (5, 3)", self.log("d"))
        self.finish_all(a if a.poll() is None else self.program("e", 1), self.program("b", 8), coordinator)

    def test_given_folder_wins(self) -> None:
        """model.init_from names the model: no worker uploads."""
        first = self.coordinator()
        a, b = self.program("a", 8), self.program("b", 8)
        self.finish_all(a, b, first)
        start = self.checkpoint()
        self.run_dir = self.folder / "second"
        coordinator = self.coordinator(model={"family": "external", "init_from": str(start)})
        c, d = self.program("c", 1), self.program("d", 2)
        self.finish_all(c, d, coordinator)
        self.assertFalse((self.run_dir / "init").exists())
        self.assertTrue((tensors(self.checkpoint() / "model.safetensors")["layer.weight"] == 4).all())
        self.assertIn('"by": "', (self.checkpoint() / "config.json").read_text())


if __name__ == "__main__":
    unittest.main()
