"""Workers of several processes (torchrun): ranks that train apart are noticed, and each rank's own state comes back."""

from __future__ import annotations

import sys
import unittest

from rig import RunTest

SCRIPT = """
import os, sys, time
import torch, torch.distributed as dist
import atoll

name, run, kind, kill_at = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])
kill = sys.argv[5].split(",") if len(sys.argv) > 5 else []  # rank, before or after, number of the save
dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
data = [(x, x.sum(0, keepdim=True)) for x in torch.randn(400, 8)]
model = torch.nn.Linear(8, 1)


class OwnPart(torch.optim.Optimizer):
    '''Each rank keeps the momentum of its part alone, as sharded optimizers of nanochat do, and sends the result.'''

    def __init__(self, parameters):
        super().__init__(parameters, {"lr": 0.01})

    @torch.no_grad()
    def step(self, closure=None):
        for i, p in enumerate(self.param_groups[0]["params"]):
            dist.all_reduce(p.grad)
            if i % size == rank:
                m = self.state[p].setdefault("m", torch.zeros_like(p))
                m.mul_(0.9).add_(p.grad)
                p.add_(m, alpha=-self.param_groups[0]["lr"])
            dist.broadcast(p, i % size)


if kill:
    from atoll.train.saved.files import RankFile

    plain, saves = RankFile._run, []

    def run_and_die(self, pieces, keep):
        saves.append(1)
        dies = rank == int(kill[0]) and len(saves) == int(kill[2])
        if dies and kill[1] == "before":  # the file is written, and has no name yet
            for large in pieces:
                self._c.call("atoll_rank_put", self._r, large.address, large.size)
            os.kill(os.getpid(), 9)
        plain(self, pieces, keep)
        if dies:  # durable; state.bin is not
            os.kill(os.getpid(), 9)

    RankFile._run = run_and_die

if kind == "fsdp":
    from torch.distributed.fsdp import fully_shard
    model = torch.nn.Sequential(torch.nn.Linear(8, 40), torch.nn.Dropout(0.1), torch.nn.Linear(40, 1))
    fully_shard(model)
    torch.manual_seed(rank)
optimizer = OwnPart(model.parameters()) if kind == "own" else torch.optim.AdamW(
    model.parameters(), 0.01) if kind == "fsdp" else torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
with atoll.Worker(model, optimizer, join=run, dir=name, name=name, max_wait=30) as worker:
    for n, (x, y) in enumerate(atoll.batches(data, worker, batch_size=2)):
        (model(x) - y).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        if n == kill_at:
            time.sleep(1)  # every rank has taken the step
            os.kill(os.getpid(), 9)
if rank == 0:
    print("theta", worker.info().theta_hash)
sys.stdout.flush()
os._exit(0)  # as end_process of rig.py
"""
ARGUMENTS = """
import os
import sys
import numpy as np
import torch, torch.distributed as dist
import atoll

dist.init_process_group("gloo")
rank, run = dist.get_rank(), sys.argv[2]
data, other = torch.ones(8, 4), torch.full((8, 4), 1.0 + rank)
evaluate = {"evaluate": lambda model, indices: (0.0, 1)}
cases = {
    "evaluate": {**evaluate, "val": data} if rank == 0 else {},
    "val": {**evaluate, "val": other},
    "train": {"train": other},
    "dir": {"dir": "/dev/null/w"},
    "model": {},
}
try:
    atoll.Worker({"w": np.zeros(2, np.float32)}, join=run, dir="numpy")
except atoll.Error as e:
    print(f"numpy {rank}: {e}\\n", end="", flush=True)
for what, options in cases.items():
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    wrapped = torch.nn.parallel.DistributedDataParallel(model)
    model.bias.requires_grad_(what != "model" or rank == 0)
    try:
        given = {"join": run, "dir": what, "name": what, "max_wait": 30, **options}
        with atoll.Worker(wrapped, optimizer, **given) as worker:
            worker.begin()
    except atoll.Error as e:
        print(f"{what} {rank}: {e}\\n", end="", flush=True)
os._exit(0)  # as end_process of rig.py
"""
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]


class RanksTest(RunTest):
    def torchrun(self, name: str, kind: str, kill_at: int = -1, *kill: str):
        (self.folder / "ranks.py").write_text(SCRIPT)
        words = [str(self.folder / "ranks.py"), name, str(self.run_dir), kind, str(kill_at), *kill]
        return self.start([sys.executable, *TORCHRUN, *words], f"{name}.log", OMP_NUM_THREADS="1")

    def theta(self, name: str) -> str:
        lines = (self.folder / f"{name}.log").read_text().splitlines()
        return next(line for line in lines if line.startswith("theta "))

    def test_ranks_that_train_apart(self) -> None:
        self.start_coordinator()
        process = self.torchrun("apart", "plain")
        self.finish(process, 120, code=1)
        self.assertIn("processes 0 and 1 of torchrun hold different parameters after 5 steps: 'weight' is the first: "
                      "give atoll.Worker a model in DistributedDataParallel", (self.folder / "apart.log").read_text())

    def test_other_arguments(self) -> None:
        """Ranks that would evaluate or read other data than rank 0, and an error of rank 0 alone: one line on each."""
        self.start_coordinator()
        (self.folder / "arguments.py").write_text(ARGUMENTS)
        command = [sys.executable, *TORCHRUN, str(self.folder / "arguments.py"), "w", str(self.run_dir)]
        self.finish(self.start(command, "w.log", OMP_NUM_THREADS="1"), 120)
        log = (self.folder / "w.log").read_text()
        named = {"evaluate": "evaluate=", "val": "val=", "train": "the training data"}
        for rank in range(2):
            for what, text in named.items():
                self.assertIn(f"{what} {rank}: processes 0 and 1 of torchrun differ in {text}: give atoll.Worker and "
                              "atoll.batches the same on all of them", log)
            self.assertIn(f"numpy {rank}: NumPy parameters belong to one process", log)
            self.assertIn(f"model {rank}: processes 0 and 1 of torchrun have other models, and differ in bias (", log)
        self.assertIn("dir 1: rank 0: ", log)

    def test_state_of_each_rank(self) -> None:
        """An optimizer whose ranks hold different parts continues with the bits of an undisturbed run."""
        self.start_coordinator()
        self.finish(self.torchrun("whole", "own"), 120)
        self.run_dir = self.folder / "second"
        self.start_coordinator(coordinator={"evict_after_s": 100})
        killed = self.torchrun("killed", "own", 12)
        self.finish(killed, 120, code=1)
        alone = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=1", "ranks.py"]
        self.finish(self.start([*alone, "killed", str(self.run_dir), "own", "-1"], "alone.log"), 120, code=1)
        self.assertIn("InvalidError: the saved state is of 2 processes, and this worker has 1: the optimizer",
                      (self.folder / "alone.log").read_text())
        self.finish(self.torchrun("killed", "own"), 120)
        self.assertEqual(self.theta("killed"), self.theta("whole"))

    def test_killed_in_a_save(self) -> None:
        """FSDP2: a rank is killed before or after its file is durable, and before state.bin is: the same bits."""
        self.start_coordinator()
        self.finish(self.torchrun("whole", "fsdp"), 200)
        self.run_dir = self.folder / "second"
        self.start_coordinator(coordinator={"evict_after_s": 1000})
        for kill in ("1,after,1", "0,before,2", "1,before,1", "0,after,1"):
            self.finish(self.torchrun("killed", "fsdp", -1, kill), 200, code=1)
        self.finish(self.torchrun("killed", "fsdp"), 200)
        self.assertEqual(self.theta("killed"), self.theta("whole"))
        files = sorted(path.name.split(".")[1] for path in (self.folder / "killed").glob("state.rank-*"))
        self.assertLessEqual(len(files), 6)
        self.assertEqual({"rank-0", "rank-1"}, set(files))


if __name__ == "__main__":
    unittest.main()
