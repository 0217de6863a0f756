"""Runs whose model a PyTorch program brings: buffers, GradScaler, schedulers, loops with an own loader."""

from __future__ import annotations

import unittest

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import atoll
from rig import RunTest

torch.set_num_threads(1)


def samples(n: int = 64) -> TensorDataset:
    x = torch.randn(n, 3, generator=torch.Generator().manual_seed(1))
    return TensorDataset(x, x @ torch.tensor([1.0, -2, 0.5]))


class Output(dict):
    """What models of Hugging Face return."""

    loss = property(lambda self: self["loss"])


class Regression(nn.Module):
    """Returns its loss as a Hugging Face model does."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.linear = nn.BatchNorm1d(3), nn.Linear(3, 1)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> Output:
        return Output(loss=(self.linear(self.norm(x)).squeeze(1) - labels).square().mean())


class External(RunTest):
    def test_buffers(self) -> None:
        """Means of BatchNorm are the mean over the workers, whatever the outer optimizer; local ones stay."""
        for buffers in ("mean", "local"):
            self.run_dir = self.folder / buffers
            outer = {"optimizer": "nesterov", "learning_rate": 0.3, "momentum": 0.9}
            self.start_coordinator(train={"max_steps": 10}, coordinator={"min_workers": 2}, outer=outer)
            last, models = {}, {}

            def run(name: str, level: float) -> None:
                model = models[name] = Regression()
                optimizer = torch.optim.SGD(model.parameters(), 0.01)
                with self.worker(model, optimizer, f"{buffers}-{name}", buffers=buffers) as worker:
                    for x, y in atoll.batches(samples(), worker, batch_size=4):
                        model(x + level, labels=y).loss.backward()
                        optimizer.step()
                        last[name] = model.norm.running_mean.clone()

            self.in_threads(lambda: run("a", 1.0), lambda: run("b", 5.0))
            mean = (last["a"] + last["b"]) / 2
            self.assertGreater((last["a"] - last["b"]).abs().max(), 0.5)
            for name, model in models.items():
                expected = mean if buffers == "mean" else last[name]
                torch.testing.assert_close(model.norm.running_mean, expected, atol=1e-6, rtol=0)
                self.assertEqual(int(model.norm.num_batches_tracked), 10)

    def test_scaler(self) -> None:
        """Steps that a GradScaler skips count, so that the samples of the round suffice; without it, it is an error."""
        for given in (True, False):
            self.run_dir = self.folder / f"run{given}"
            coordinator = self.start_coordinator(train={"max_steps": 10})
            model = Regression()
            optimizer = torch.optim.SGD(model.parameters(), 0.01)
            scaler = torch.amp.GradScaler("cpu", init_scale=2.0**118, growth_interval=10**6)
            steps = []
            hook = optimizer.register_step_post_hook(lambda *_: steps.append(1))

            def run() -> None:
                with self.worker(model, optimizer, f"w{given}", state=[scaler] if given else []) as worker:
                    for x, y in atoll.batches(samples(), worker, batch_size=4):
                        scaler.scale(model(x, labels=y).loss * 1000).backward()
                        scaler.step(optimizer)
                        scaler.update()
                        optimizer.zero_grad()

            if given:
                run()
                self.finish(coordinator)
                self.assertEqual(self.summary()["steps"], 10)
                self.assertTrue(0 < len(steps) < 10)
            else:
                with self.assertRaisesRegex(ValueError, "if a GradScaler did, give the scaler in state="):
                    run()
                self.kill(coordinator)
            hook.remove()

    def test_own_loader(self) -> None:
        """A loop with its own DataLoader: the first forward joins, worker.done ends it, losses come from the model."""
        coordinator = self.start_coordinator(train={"max_steps": 10})
        model = Regression()
        optimizer = torch.optim.SGD(model.parameters(), 0.01)
        with self.worker(model, optimizer) as worker:
            while not worker.done:
                for x, y in DataLoader(samples(), 4, shuffle=True):
                    loss = model(x, labels=y).loss
                    loss.backward()
                    optimizer.step()
                    optimizer.zero_grad()
                    if worker.done:
                        break
            before = [p.detach().clone() for p in model.parameters()]
            model(x, labels=y).loss.backward()  # evaluations of the program are free, also with gradients
            with self.assertRaisesRegex(atoll.Done, "leave the loop when worker.done is True"):
                optimizer.step()
            self.assertTrue(all(torch.equal(p, b) for p, b in zip(model.parameters(), before)))
        self.finish(coordinator)
        events = self.events("step")
        self.assertEqual([e["tokens"] for e in events], [4 * (i + 1) for i in range(10)])
        self.assertAlmostEqual(events[-1]["loss"], loss.item(), places=5)
        self.assertAlmostEqual(events[-1]["lr"], 0.01, places=6)
        model(x, labels=y)  # no hooks are left

    def test_nan(self) -> None:
        """A NaN round starts again from the run's parameters with a new optimizer."""
        coordinator = self.start_coordinator(train={"max_steps": 15})
        model = Regression()
        optimizer = torch.optim.Adam(model.parameters(), 0.01)
        seen = []
        with self.worker(model, optimizer) as worker:
            for n, (x, y) in enumerate(atoll.batches(samples(), worker, batch_size=4)):
                if n in (7, 10):
                    seen.append((bool(model.linear.weight.isfinite().all()), len(optimizer.state)))
                loss = model(x, labels=y).loss
                (loss * float("nan") if n == 7 else loss).backward()
                optimizer.step()
                optimizer.zero_grad()
        self.finish(coordinator)
        self.assertEqual(seen, [(True, 4), (True, 0)])
        self.assertEqual(self.summary()["steps"], 15)


if __name__ == "__main__":
    unittest.main()
