"""Tensors that are not exchanged: compared when a worker joins, and held by checkpoints."""

from __future__ import annotations

import subprocess
import unittest
from pathlib import Path

import numpy as np

import atoll
from rig import RunTest, entries

# argv: name, run, folder, seed of the frozen values, "" or "any", "read" or ""
PROGRAM = """
import sys
import numpy as np
from atoll import _lib

name, run, folder, seed, any_, read = sys.argv[1:7]
draw = np.random.default_rng(int(seed))
values = {
    "base.weight": ("BF16", draw.integers(0, 1 << 14, (1000, 300), np.uint16)),
    "base.steps": ("I64", np.array(int(seed), np.int64)),
    "base.quant": ("U8", draw.integers(0, 256, 7, np.uint8)),
    "base.empty": ("F32", np.zeros((0, 4), np.float32)),
}
frozen = [_lib.Frozen(n, d, v.shape, v.nbytes, int(v.astype(np.uint64).sum())) for n, (d, v) in values.items()]
order = list(values)

def frozen_read(i, offset, out):
    if read == "fail" and i == 0 and offset:
        raise RuntimeError("the GPU is gone")
    out[:] = values[order[i]][1].tobytes()[offset : offset + len(out)]

handle = _lib.Handle(
    [_lib.Tensor("head.weight", (5, 3), 0)], join=run, name=name, dir=f"{folder}/{name}", devices="cpu",
    files={"config.json": b"{}"}, save=lambda cap: [], load=lambda data: None,
    max_wait_s=60, frozen=frozen, frozen_any=any_ == "any", frozen_read=frozen_read if read else None)
try:
    handle.params[:] = 8
    while (event := handle.wait(1000)) != _lib.DONE:
        if event != _lib.TRAIN:
            continue
        handle.begin()
        action = _lib.CONTINUE
        while action == _lib.CONTINUE:
            handle.params[:] -= 0.5
            action = handle.step(3, 1.0, 0.1, 1.0, 1000)
        handle.push()
except (_lib.Error, RuntimeError) as e:
    sys.exit(str(e))
finally:
    handle.close()
"""


class Frozen(RunTest):
    def coordinator(self, workers: int = 1, **model: str) -> subprocess.Popen:
        train = {"method": "local-sgd", "max_steps": 4, "sync_every": 2}
        return self.start_coordinator(coordinator={"min_workers": workers}, train=train, model=model)

    def program(self, name: str, seed: int = 1, any_: str = "", read: str = "read") -> subprocess.Popen:
        return self.start_script(PROGRAM, name, str(self.run_dir), str(self.folder), str(seed), any_, read)

    def checkpoint(self) -> Path:
        return (self.run_dir / "checkpoints" / "latest").resolve()

    def check_whole(self, folder: Path, head: float, seed: int = 1) -> None:
        """model.safetensors of `folder` holds the head and the frozen tensors of `seed`."""
        metadata, got = entries(folder / "model.safetensors")
        draw = np.random.default_rng(seed)
        weight, quant = draw.integers(0, 1 << 14, (1000, 300), np.uint16), draw.integers(0, 256, 7, np.uint8)
        self.assertEqual(
            list(got.items()),
            [
                ("base.steps", ("I64", [], np.int64(seed).tobytes())),
                ("head.weight", ("F32", [5, 3], np.full(15, head, np.float32).tobytes())),
                ("base.empty", ("F32", [0, 4], b"")),
                ("base.weight", ("BF16", [1000, 300], weight.tobytes())),
                ("base.quant", ("U8", [7], quant.tobytes())),
            ],
        )
        self.assertEqual(metadata, {"format": "pt", "theta": "8 68"})

    def check_bf16(self, folder: Path) -> None:
        """An export as bf16, in shards, changes the exchanged tensors only."""
        out = self.folder / "half"
        words = ["export", str(folder), str(out), "--dtype=bf16", "--max-shard-size=1KB"]
        subprocess.run([atoll.program("atoll"), *words], check=True, capture_output=True)
        _, whole = entries(folder / "model.safetensors")
        got: dict = {}
        for file in sorted(out.glob("model-*.safetensors")):
            got |= entries(file)[1]
        head = np.frombuffer(whole["head.weight"][2], np.uint32) >> 16  # small whole numbers: nothing is rounded
        want = whole | {"head.weight": ("BF16", [5, 3], head.astype(np.uint16).tobytes())}
        self.assertEqual(got, want)
        self.assertIn("bfloat16", (out / "config.json").read_text())

    def test_checkpoints_hold_frozen_tensors(self) -> None:
        """Also those after a restart, an export, and those of a run that starts from such a checkpoint."""
        coordinator = self.coordinator(workers=2)
        a = self.program("a")
        self.wait_for(20, "the upload", lambda: (self.run_dir / "init" / "frozen.safetensors").exists())
        self.wait_for(20, "a checkpoint", lambda: (self.checkpoint() / "coordinator_state.bin").exists())
        self.check_whole(self.checkpoint(), 8)
        followed = self.folder / "followed"
        follower = subprocess.Popen([atoll.program("atoll"), "follow", str(self.run_dir), str(followed)])
        self.addCleanup(follower.kill)
        self.wait_for(20, "a followed model", (followed / "atoll.json").exists)
        self.check_whole(followed, 8)
        self.kill(coordinator)
        coordinator = self.start_coordinator()
        b = self.program("b", read="")
        for process in (a, b, coordinator):
            self.finish(process)
        self.check_whole(self.checkpoint(), 6)
        self.assertEqual(follower.wait(20), 0)
        for name in ("model.safetensors", "config.json"):
            self.assertEqual((followed / name).read_bytes(), (self.checkpoint() / name).read_bytes())
        out = self.folder / "out"
        subprocess.run([atoll.program("atoll"), "export", str(self.run_dir), str(out)], check=True, capture_output=True)
        for name in ("model.safetensors", "config.json"):
            self.assertEqual((out / name).read_bytes(), (self.checkpoint() / name).read_bytes())
        self.check_bf16(first := self.checkpoint())
        self.run_dir = self.folder / "second"
        coordinator, c = self.coordinator(init_from=str(first)), self.program("c")
        self.finish(c)
        self.finish(coordinator)
        self.check_whole(self.checkpoint(), 4)

    def test_adapter_checkpoints_hold_exchanged_tensors_only(self) -> None:
        coordinator, a = self.coordinator(), self.program("a", read="")
        self.finish(a)
        self.finish(coordinator)
        _, got = entries(self.checkpoint() / "model.safetensors")
        self.assertEqual(list(got), ["head.weight"])
        self.assertFalse((self.run_dir / "init" / "frozen.safetensors").exists())

    def test_another_base_is_refused(self) -> None:
        """With frozen="any" it may differ."""
        coordinator, a = self.coordinator(workers=2), self.program("a")
        self.wait_for(20, "a", lambda: "a joined" in self.log("coordinator"))
        b = self.program("b", seed=2)
        self.finish(b, code=1)
        self.assertIn("the base model of 'b' differs from the run's: frozen tensor 'base.quant' has other values: use "
                      'the same base model as the other workers; frozen="any" allows another quantization of it',
                      self.log("b"))
        c = self.program("c", seed=2, any_="any")
        for process in (c, a, coordinator):
            self.finish(process)

    def test_failed_read_ends_the_upload(self) -> None:
        coordinator = self.coordinator()
        self.finish(self.program("a", read="fail"), code=1)
        self.assertIn("the GPU is gone", self.log("a"))
        self.finish(self.program("b", seed=2))
        self.finish(coordinator)
        self.check_whole(self.checkpoint(), 6, seed=2)


class Arguments(unittest.TestCase):
    def refused(self, text: str, frozen: list, read: bool = False) -> None:
        from atoll import _lib

        tensors = [_lib.Tensor("head.weight", (5, 3), 0)]
        with self.assertRaises(_lib.InvalidError) as e:
            _lib.Handle(tensors, join="tcp://127.0.0.1:1", name="x", dir=None, devices="cpu", files={},
                        save=lambda cap: [], load=lambda data: None, frozen=frozen,
                        frozen_read=(lambda i, offset, out: None) if read else None)
        self.assertIn(text, str(e.exception))

    def test_lists_are_checked(self) -> None:
        from atoll._lib import Frozen as F

        self.refused("has 70000 tensors, more than 16384", [F(f"t{i}", "U8", (1,), 1, 0) for i in range(70000)])
        self.refused("two frozen tensors have the name 'a'", [F("a", "U8", (1,), 1, 0), F("a", "I8", (1,), 1, 0)])
        self.refused("'head.weight' is exchanged and frozen", [F("head.weight", "U8", (1,), 1, 0)])
        self.refused("frozen tensor 0, 'a'", [F("a", "", (1,), 1, 0)])
        self.refused("frozen tensor 0, 'a'", [F("a", "A" * 16, (1,), 1, 0)])
        self.refused("frozen tensor 0, ''", [F("", "U8", (1,), 1, 0)])
        self.refused("has 3 bytes, but its dtype and shape say 4", [F("a", "BF16", (2,), 3, 0)], read=True)
        self.refused("dtype NF4, which no safetensors file holds", [F("a", "NF4", (2,), 1, 0)], read=True)
        self.refused("the lists of tensors have", [F(f"{'t' * 186}{i:05}", "U8", (1,) * 8, 1, 0) for i in range(16384)])


if __name__ == "__main__":
    unittest.main()
