"""Saved states of several processes: each rank's file comes back, in another number of ranks put together again.

The ranks are forks of the test, which has imported PyTorch: starting it anew takes most of the time of such a test.
"""

from __future__ import annotations

import ctypes
import logging
import os
import sys
import tempfile
import traceback
import unittest
from pathlib import Path
from unittest import mock

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from atoll import _lib
from atoll.train.ranks import ranks
from atoll.train.state import State


class Handle:
    """What a State needs of the library, without a run."""

    def __init__(self, folder: str, way: int) -> None:
        self.folder, self.way, self.tag = folder, way, 0

    def dir(self) -> str:
        return self.folder

    def next_save(self, _copies: int) -> int:
        return self.way

    def state_files(self, tag: int, _ranks: int) -> None:
        self.tag = tag


def whole(t: torch.Tensor) -> torch.Tensor:
    return (t.full_tensor() if isinstance(t, DTensor) else t).detach().clone()


class Rank:
    """A program of this rank: a model of this kind, its optimizer, a moving average of its parameters."""

    def __init__(self, folder: str, kind: str, beside: bool = False) -> None:
        self.folder, self.kind, self.ranks = folder, kind, ranks()
        torch.manual_seed(1)
        model: torch.nn.Module = torch.nn.Sequential(torch.nn.Linear(7, 300), torch.nn.Tanh(), torch.nn.Linear(300, 5))
        if kind in ("fsdp", "hsdp"):
            half = (2, self.ranks.size // 2)
            mesh = dist.device_mesh.init_device_mesh("cpu", half, mesh_dim_names=("r", "s")) if kind == "hsdp" else None
            fully_shard(model, mesh=mesh)
        elif kind in ("ddp", "zero"):
            model = DistributedDataParallel(model)
        self.model, self.ema, adam = model, {}, torch.optim.AdamW
        self.optimizer = (ZeroRedundancyOptimizer(model.parameters(), adam, lr=0.01) if kind == "zero"
                          else adam(model.parameters(), lr=0.01))
        self.parameters = [p for group in self.optimizer.param_groups for p in group["params"]]
        self.generator = torch.Generator().manual_seed(1)  # alike on all ranks until they draw
        self.state = State([("the optimizer", self.optimizer), ("state[0]", self.ema), ("state[1]", self.generator)])
        self.state.note_initial()
        self.handle = Handle(folder, _lib.SAVE_BESIDE if beside else _lib.SAVE_HELD) if self.ranks.rank == 0 else None
        self.state.open(self.ranks, self.handle)

    def step(self, n: int) -> None:
        torch.manual_seed(n)
        self.model(torch.randn(8, 7)).square().mean().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        for name, p in self.model.named_parameters():
            name = name.removeprefix("module.")
            self.ema[name] = self.ema[name] * 0.5 + p.detach() * 0.5 if name in self.ema else p.detach().clone()

    def found(self) -> dict:
        """What the state holds, of all ranks together; of ZeroRedundancyOptimizer the part of this one."""
        if self.kind == "zero":
            return {"zero": self.optimizer.optim.state_dict()["state"]}
        moments = [whole(self.optimizer.state[p]["exp_avg_sq"]) for p in self.parameters]
        steps = [float(self.optimizer.state[p]["step"]) for p in self.parameters]
        return {"moments": moments, "steps": steps, "ema": {name: whole(t) for name, t in sorted(self.ema.items())}}

    def file(self, name: str, own: bool) -> str:
        return f"{self.folder}/{name}-{self.ranks.rank if own else 0}"

    def save_once(self) -> None:
        """A save in an earlier round, before the optimizer, the average and the generator have state of their own."""
        self.state.prepare(self.ranks, self.handle)
        if self.handle:
            self.state.save()
        self.state.begun()

    def save(self, beside: bool) -> None:
        for n in range(3):
            self.step(n)
        torch.manual_seed(100 + self.ranks.rank)
        expected = self.found()
        self.state.prepare(self.ranks, self.handle)
        if self.handle:
            blob = b"".join(ctypes.string_at(*part) for part in self.state.save())
            Path(self.folder, "blob").write_bytes(blob)
        if beside:
            with torch.no_grad():
                for t in (*(v for p in self.parameters for v in self.optimizer.state[p].values()), *self.ema.values()):
                    t.mul_(0)
        self.state.begun()
        self.state.close()
        if self.kind == "zero" or self.ranks.rank == 0:
            torch.save(expected, self.file("expected", self.kind == "zero"))
        torch.save((torch.rand(4), torch.rand(4, generator=self.generator)), self.file("drawn", True))

    def load(self, same: bool, step_before: bool = False) -> None:
        sharded = self.kind in ("fsdp", "hsdp")
        if step_before:  # whole tensors in state= get the shards of those that the script has made
            self.step(7)
        if self.handle:
            self.state.load(Path(self.folder, "blob").read_bytes())
        self.state.changed = True
        self.state.share(self.ranks)
        check_equal(self.found(), torch.load(self.file("expected", self.kind == "zero")))
        for p in self.parameters if self.kind != "zero" else ():
            value = self.optimizer.state[p]["exp_avg_sq"]
            assert isinstance(value, DTensor) == sharded, type(value)
            assert not sharded or value.placements == p.placements and value.device_mesh == p.device_mesh
        if same:
            drawn, own = torch.load(self.file("drawn", True))
            assert torch.equal(torch.rand(4), drawn), "random numbers"
            assert torch.equal(torch.rand(4, generator=self.generator), own), "numbers of the generator in state="
        self.step(8)  # the optimizer works with its state
        self.state.close()


def check_equal(a, b) -> None:
    if isinstance(a, dict):
        assert list(a) == list(b), (list(a), list(b))
        a, b = list(a.values()), list(b.values())
    if isinstance(a, list):
        assert len(a) == len(b)
        for x, y in zip(a, b):
            check_equal(x, y)
    else:
        assert torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b


class SavedStates(unittest.TestCase):
    def setUp(self) -> None:
        temporary = tempfile.TemporaryDirectory(prefix="atoll-saved.", ignore_cleanup_errors=True)
        self.addCleanup(temporary.cleanup)
        self.folder = temporary.name

    def in_ranks(self, n: int, kind: str, run, failing: bool = False) -> str:
        """Runs run(Rank) in n processes; the log of all of them."""
        store, pids = tempfile.mktemp(dir=self.folder, prefix="store-"), []
        logs = [Path(self.folder, f"log-{rank}") for rank in range(n)]
        for rank in range(n):
            pid = os.fork()
            if not pid:
                self.child(rank, n, kind, run, store, logs[rank])
            pids.append(pid)
        codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
        text = "".join(log.read_text() for log in logs)
        self.assertEqual(any(codes), failing, text)
        return text

    def child(self, rank: int, n: int, kind: str, run, store: str, log: Path) -> None:
        with open(log, "w", buffering=1) as sys.stderr:
            try:
                logging.getLogger("atoll").handlers[:] = [logging.StreamHandler(sys.stderr)]
                if n > 1:
                    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=n)
                run(Rank(self.folder, kind))
                code = 0
            except BaseException:
                traceback.print_exc()
                code = 1
        os._exit(code)

    def files(self) -> list[Path]:
        return sorted(Path(self.folder).glob("state.rank-*.bin"))

    def save(self, n: int, kind: str, beside: bool = False) -> None:
        """A new state in place of the old one. The test has no state.bin, which the library writes."""
        for path in self.files():
            path.unlink()

        def run(rank: Rank) -> None:
            if rank.handle and beside:
                rank.handle.way = _lib.SAVE_BESIDE
            rank.save(beside)

        self.in_ranks(n, kind, run)
        self.assertEqual(len(self.files()), n)

    def load(self, n: int, kind: str, same: bool = False, failing: bool = False, step_before: bool = False) -> str:
        return self.in_ranks(n, kind, lambda rank: rank.load(same, step_before), failing)

    def test_the_same_number(self) -> None:
        for kind in ("fsdp", "ddp", "zero"):
            with self.subTest(kind):
                self.save(2, kind)
                self.load(2, kind, same=True)

    def test_a_copy_is_saved_while_the_state_changes(self) -> None:
        self.save(2, "fsdp", beside=True)
        self.load(2, "fsdp", same=True)

    def test_other_numbers_and_kinds(self) -> None:
        """FSDP2 of 3 ranks (uneven shards) to 2, to DDP, to HSDP of 2 x 2, to one process; DDP to FSDP2."""
        self.save(3, "fsdp")
        log = self.load(2, "fsdp")
        self.assertIn("the saved state is of 3 processes, and this worker has 2: took over the optimizer; random "
                      "numbers begin anew", log)
        self.load(2, "ddp")
        self.load(4, "hsdp")
        self.load(1, "plain")
        self.save(2, "ddp")
        self.load(3, "fsdp", step_before=True)

    def test_ranks_on_other_hosts(self) -> None:
        """Ranks that do not see the folder send their part to rank 0."""
        with mock.patch("atoll.train.state.is_shared", return_value=False):
            self.in_ranks(2, "fsdp", lambda rank: rank.save(False))
            self.assertEqual(self.files(), [])
            self.load(2, "fsdp", same=True)
            self.load(3, "fsdp")

    def test_state_that_begins_after_the_first_save(self) -> None:
        """Each rank saves its part also of what the ranks had alike, or not at all, in an earlier save."""

        def run(rank: Rank) -> None:
            rank.save_once()
            torch.rand(1 + rank.ranks.rank, generator=rank.generator)
            rank.save(beside=False)

        self.in_ranks(2, "fsdp", run)
        self.load(2, "fsdp", same=True)

    def test_what_cannot_be_split(self) -> None:
        self.save(2, "zero")
        log = self.load(3, "zero", failing=True)
        self.assertIn("the saved state is of 2 processes, and this worker has 3: the optimizer is a "
                      "ZeroRedundancyOptimizer, and each process has another part of it: start it with 2 processes, or "
                      "with a new folder (dir=)", log)

    def test_a_damaged_file_ends_the_worker(self) -> None:
        self.save(2, "fsdp")
        path = self.files()[1]
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
        log = self.load(2, "fsdp", failing=True)
        self.assertIn("rank 1: the file of rank 1 does not match its checksum: start the worker again, it then loads "
                      "its state before", log)
        self.assertEqual([p.name for p in Path(self.folder).glob("*.damaged")], [f"{path.name}.damaged"])


if __name__ == "__main__":
    unittest.main()
