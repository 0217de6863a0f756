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
dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
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


optimizer = OwnPart(model.parameters()) if kind == "own" else torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
data = [(x, x.sum(0, keepdim=True)) for x in torch.randn(400, 8)]
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
"""
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]


class RanksTest(RunTest):
    def torchrun(self, name: str, kind: str, kill_at: int = -1):
        (self.folder / "ranks.py").write_text(SCRIPT)
        words = [str(self.folder / "ranks.py"), name, str(self.run_dir), kind, str(kill_at)]
        return self.start([sys.executable, *TORCHRUN, *words], f"{name}.log", OMP_NUM_THREADS="1")

    def theta(self, name: str) -> str:
        lines = (self.folder / f"{name}.log").read_text().splitlines()
        return next(line for line in lines if line.startswith("theta "))

    def test_ranks_that_train_apart(self) -> None:
        self.start_coordinator()
        process = self.torchrun("apart", "plain")
        self.finish(process, 120, code=1)
        self.assertIn("processes 0 and 1 of torchrun hold different parameters after 5 steps: give atoll.Worker a "
                      "model in DistributedDataParallel", (self.folder / "apart.log").read_text())

    def test_state_of_each_rank(self) -> None:
        """An optimizer whose ranks hold different parts continues with the bits of an undisturbed run."""
        self.start_coordinator()
        self.finish(self.torchrun("whole", "own"), 120)
        self.run_dir = self.folder / "second"
        self.start_coordinator(coordinator={"evict_after_s": 100})
        killed = self.torchrun("killed", "own", 12)
        self.finish(killed, 120, code=1)
        self.finish(self.torchrun("killed", "own"), 120)
        self.assertEqual(self.theta("killed"), self.theta("whole"))


if __name__ == "__main__":
    unittest.main()
