"""Saved states of several processes: each rank's file comes back, in another number of ranks put together again."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

SCRIPT = """
import copy, json, os, sys
import numpy as np
import torch, torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from atoll import _lib
from atoll.train.ranks import ranks
from atoll.train.state import State

folder, kind, what = sys.argv[1:4]
if "RANK" in os.environ:
    dist.init_process_group("gloo")
everyone = ranks()
torch.manual_seed(1)
model = torch.nn.Sequential(torch.nn.Linear(7, 300), torch.nn.Tanh(), torch.nn.Linear(300, 5))
ema = {}
if kind in ("fsdp", "hsdp"):
    mesh = None
    if kind == "hsdp":
        mesh = dist.device_mesh.init_device_mesh("cpu", (2, everyone.size // 2), mesh_dim_names=("r", "s"))
    fully_shard(model, mesh=mesh)
elif kind in ("ddp", "zero"):
    model = DistributedDataParallel(model)
Adam = torch.optim.AdamW
if kind == "zero":
    optimizer = ZeroRedundancyOptimizer(model.parameters(), Adam, lr=0.01)
else:
    optimizer = Adam(model.parameters(), lr=0.01)


def step(n):
    torch.manual_seed(n)
    model(torch.randn(8, 7)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    for name, p in model.named_parameters():
        name = name.removeprefix("module.")
        ema[name] = ema[name] * 0.5 + p.detach() * 0.5 if name in ema else p.detach().clone()


def whole(t):
    t = t.full_tensor() if isinstance(t, DTensor) else t
    return t.detach().clone()


class Handle:  # what State needs of the library
    def dir(self):
        return folder

    def next_save(self, copies):
        return _lib.SAVE_BESIDE if what == "beside" else _lib.SAVE_HELD

    def state_files(self, tag, ranks):
        pass


state = State([("the optimizer", optimizer), ("state[0]", ema)])
state.note_initial()
handle = Handle() if everyone.rank == 0 else None
state.open(everyone, handle)
parameters = [p for group in optimizer.param_groups for p in group["params"]]
if what in ("save", "beside"):
    for n in range(3):
        step(n)
    torch.manual_seed(100 + everyone.rank)
    state.prepare(everyone, handle)
    if everyone.rank == 0:
        import ctypes
        blob = b"".join(ctypes.string_at(*part) for part in state.save())
        open(folder + "/blob", "wb").write(blob)
    drawn = torch.rand(4)
    if what == "beside":
        with torch.no_grad():
            for p in parameters:
                for value in optimizer.state[p].values():
                    value.mul_(0)
        for t in ema.values():
            t.mul_(0)
    state.begun()
    state.close()
    if kind != "zero" and what == "save":
        moments = [whole(optimizer.state[p]["exp_avg_sq"]) for p in parameters]
        averages = {name: whole(t) for name, t in ema.items()}
        if everyone.rank == 0:
            torch.save((moments, averages, float(optimizer.state[parameters[0]]["step"])), folder + "/expected")
    torch.save(drawn, f"{folder}/drawn-{everyone.rank}")
    if kind == "zero":
        inner = optimizer.optim
        torch.save({i: v["exp_avg"] for i, v in inner.state_dict()["state"].items()}, f"{folder}/zero-{everyone.rank}")
else:
    if kind in ("fsdp", "hsdp"):  # templates of what `state=` holds
        step(7)
    if everyone.rank == 0:
        state.load(open(folder + "/blob", "rb").read())
    state.changed = True
    state.share(everyone)
    for name, t in ema.items():
        if kind not in ("fsdp", "hsdp"):
            assert not isinstance(t, DTensor), name
    if kind == "zero":
        mine, expected = optimizer.optim.state_dict()["state"], torch.load(f"{folder}/zero-{everyone.rank}")
        assert list(mine) == list(expected)
        for i in mine:
            assert torch.equal(mine[i]["exp_avg"], expected[i]), i
    elif os.path.exists(folder + "/expected"):
        moments, averages, steps = torch.load(folder + "/expected")
        for p, expected in zip(parameters, moments):
            value = optimizer.state[p]["exp_avg_sq"]
            assert isinstance(value, DTensor) == (kind in ("fsdp", "hsdp")), type(value)
            assert torch.equal(whole(value), expected)
            assert float(optimizer.state[p]["step"]) == steps
            if isinstance(value, DTensor):
                assert value.placements == p.placements and value.device_mesh == p.device_mesh
        for name, expected in averages.items():
            assert torch.equal(whole(ema[name]), expected), name
        step(8)  # the optimizer works with its state
    if what == "same":
        assert torch.equal(torch.rand(4), torch.load(f"{folder}/drawn-{everyone.rank}"))
    state.close()
print("fine")
"""


class SavedStates(unittest.TestCase):
    def setUp(self) -> None:
        temporary = tempfile.TemporaryDirectory(prefix="atoll-saved.", ignore_cleanup_errors=True)
        self.addCleanup(temporary.cleanup)
        self.folder = Path(temporary.name)
        (self.folder / "script.py").write_text(SCRIPT)

    def run_ranks(self, n: int, kind: str, what: str, code: int = 0) -> str:
        words = [str(self.folder / "script.py"), str(self.folder), kind, what]
        torchrun = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={n}"] if n > 1 else []
        done = subprocess.run([sys.executable, *torchrun, *words], capture_output=True, text=True, timeout=240,
                              env={**os.environ, "OMP_NUM_THREADS": "1"})
        self.assertEqual(done.returncode != 0, code != 0, done.stdout + done.stderr)
        if not code:
            self.assertEqual(done.stdout.count("fine"), n, done.stderr)
        return done.stderr

    def save(self, n: int, kind: str, what: str = "save") -> None:
        """A new state in place of the old one. The library would write state.bin, which the test does without."""
        self.run_ranks(n, kind, what)
        self.assertEqual(len(list(self.folder.glob("state.rank-*.bin"))), n)

    def test_the_same_number(self) -> None:
        for kind in ("fsdp", "ddp", "zero"):
            with self.subTest(kind):
                for path in (*self.folder.glob("state.*"), *self.folder.glob("expected")):
                    path.unlink()
                self.save(2, kind)
                self.run_ranks(2, kind, "same")

    def test_a_copy_is_saved_while_the_state_changes(self) -> None:
        self.save(2, "fsdp")
        expected = sorted((p.name.split(".")[1], p.stat().st_size) for p in self.folder.glob("state.rank-*"))
        for path in self.folder.glob("state.*"):
            path.unlink()
        self.save(2, "fsdp", "beside")
        self.assertEqual(sorted((p.name.split(".")[1], p.stat().st_size) for p in self.folder.glob("state.rank-*")),
                         expected)
        self.run_ranks(2, "fsdp", "same")

    def test_other_numbers_and_kinds(self) -> None:
        """FSDP2 of 3 ranks (uneven shards) to 2, to DDP, to HSDP of 2 x 2, to one process; DDP to FSDP2."""
        self.save(3, "fsdp")
        log = self.run_ranks(2, "fsdp", "load")
        self.assertIn("the saved state is of 3 processes, and this worker has 2: took over the optimizer; random numbers "
                      "begin anew", log)
        self.run_ranks(2, "ddp", "load")
        self.run_ranks(4, "hsdp", "load")
        for path in self.folder.glob("state.*"):
            path.unlink()
        self.save(2, "ddp")
        self.run_ranks(3, "fsdp", "load")

    def test_what_cannot_be_split(self) -> None:
        self.save(2, "zero")
        log = self.run_ranks(3, "zero", "load", code=1)
        self.assertIn("the saved state is of 2 processes, and this worker has 3: the optimizer is a "
                      "ZeroRedundancyOptimizer, and each process has another part of it: start it with 2 processes, or "
                      "with a new folder (dir=)", log)

    def test_a_damaged_file_ends_the_worker(self) -> None:
        self.save(2, "fsdp")
        (path,) = self.folder.glob("state.rank-1.*.bin")
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
        log = self.run_ranks(2, "fsdp", "load", code=1)
        self.assertIn("rank 1: the file of rank 1 does not match its checksum: start the worker again, it then loads its "
                      "state before", log)
        self.assertEqual(len(list(self.folder.glob("state.rank-1.*.damaged"))), 1)


if __name__ == "__main__":
    unittest.main()
