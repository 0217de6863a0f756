"""What scripts do at the border of Worker: tensors that change, bases that differ, schedules, ends of loops, tokens."""

from __future__ import annotations

import copy
import re
import threading
import time
import unittest
import warnings

import numpy as np
import torch
from safetensors.torch import load_file
from torch import nn
from torch.nn.utils import prune

import atoll
from rig import RunTest

torch.set_num_threads(1)
warnings.filterwarnings("ignore", category=UserWarning)


class Samples(torch.utils.data.Dataset):
    """x [8], and the sum of x."""

    def __len__(self) -> int:
        return 400

    def __getitem__(self, i: int) -> tuple[torch.Tensor, torch.Tensor]:
        x = torch.randn(8, generator=torch.Generator().manual_seed(i))
        return x, x.sum().unsqueeze(0)


DATA = Samples()


class Model(nn.Module):
    """Two layers, and a buffer that forward replaces by assignment."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body, self.head = nn.Linear(8, 8), nn.Linear(8, 1)
        self.register_buffer("level", torch.zeros(3))
        self.register_buffer("table", torch.arange(5))
        self.register_buffer("calls", torch.tensor(0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.level = 0.5 * self.level + x.detach().mean()
        self.calls = self.calls + 1
        return self.head(torch.tanh(self.body(x)))


class Border(RunTest):
    def loop(self, model, worker, optimizer, at=None, scheduler=None) -> int:
        """Trains to the end of the run; calls at(step) before each step."""
        n = 0
        for x, y in atoll.batches(DATA, worker, batch_size=4):
            worker.loss((model(x) - y).square().mean()).backward()
            if at:
                at(n)
            optimizer.step()
            optimizer.zero_grad()
            if scheduler:
                scheduler.step()
            n += 1
        return n

    def open_once(self, *arguments, **options) -> bool:
        with self.worker(*arguments, **options) as worker:
            return worker.begin()

    def change(self, pattern: str, change, prepare=None, call=lambda m, x: m(x)) -> None:
        """One worker trains, and change(model, optimizer) is called at step 2: an error that names the tensor."""
        self.run_dir = self.folder / f"run{len(self.processes)}"
        coordinator = self.start_coordinator()
        model = Model()
        if prepare:
            prepare(model)
        optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], 0.01)
        with self.assertRaisesRegex(atoll.InvalidError, pattern):
            with self.worker(model, optimizer, f"w{len(self.processes)}") as worker:
                for n, (x, y) in enumerate(atoll.batches(DATA, worker, batch_size=4)):
                    (call(model, x) - y).square().mean().backward()
                    if n == 2:
                        change(model, optimizer)
                        optimizer.zero_grad()
                    optimizer.step()
        coordinator.kill()

    def test_changed_tensors_are_named(self) -> None:
        def frozen(model: Model) -> None:
            model.body.requires_grad_(False)

        def replace(model: Model, _optimizer) -> None:
            model.head.weight = nn.Parameter(model.head.weight.detach().clone())

        def add_module(model: Model, optimizer) -> None:
            model.more = nn.Linear(2, 2)
            optimizer.add_param_group({"params": model.more.parameters()})

        def cut(model: Model, _optimizer) -> None:
            prune.l1_unstructured(model.head, "weight", 0.5)

        def grow(model: Model, optimizer) -> None:
            model.body = nn.Linear(8, 8, bias=False)
            model.body.bias = nn.Parameter(torch.zeros(1))
            optimizer.add_param_group({"params": model.body.parameters()})

        self.change("'body.bias' was frozen at the join and trains now|'body.weight' was frozen",
                    lambda m, o: m.body.requires_grad_(True), frozen)
        self.change("'head.weight' was replaced by another object, and the optimizer trains the old one", replace)
        self.change("parameter 'more.weight' is new since the join", add_module)
        self.change("'head.weight' of the model is gone", cut)
        self.change(r"'body.bias' is float32 \[1\] now, and was float32 \[8\] at the join", grow)
        self.change(r"'body.weight' is float16 \[8, 8\] now", lambda m, o: m.to(torch.float16),
                    call=lambda m, x: m.half()(x.half()).float() if m.body.weight.dtype == torch.float16 else m(x))
        self.change("buffer 'extra' is new since the join", lambda m, o: m.register_buffer("extra", torch.zeros(2)))
        self.change("SGD trains a parameter of shape .3,. .group 1. that the model of atoll.Worker does not have",
                    lambda m, o: o.add_param_group({"params": [nn.Parameter(torch.zeros(3))]}))

    def test_foreign_parameters_are_refused_at_once(self) -> None:
        model, loss = Model(), nn.Linear(2, 2)
        with self.assertRaisesRegex(atoll.InvalidError, "shape .2, 2..*torch.nn.ModuleList"):
            self.worker(model, torch.optim.SGD([*model.parameters(), *loss.parameters()], 0.1))

    def test_frozen_later_is_said_once(self) -> None:
        self.start_coordinator()
        model = Model()
        optimizer = torch.optim.SGD(model.parameters(), 0.01)
        with self.assertLogs("atoll", "WARNING") as logged, self.worker(model, optimizer) as worker:
            self.loop(model, worker, optimizer, lambda n: model.body.requires_grad_(n < 6))
        lines = [line for line in logged.output if "does not train any more" in line]
        self.assertEqual(len(lines), 1, logged.output)
        self.assertIn("parameter 'body.bias' and 1 more", lines[0])

    def test_replaced_buffers_and_their_objects_are_followed(self) -> None:
        """Buffers by assignment become the mean; a parameter replaced together with its optimizer goes on."""
        self.start_coordinator(coordinator={"min_workers": 2})

        def run(name: str, shift: float) -> tuple[Model, torch.Tensor]:
            model, last = Model(), []
            optimizer = torch.optim.SGD(model.parameters(), 0.01)

            def at(n: int) -> None:
                last[:] = [model.level.clone()]
                if n == 7:  # the same form, and the optimizer trains it
                    model.head.bias = nn.Parameter(model.head.bias.detach().clone())
                    optimizer.add_param_group({"params": [model.head.bias]})

            with self.worker(model, optimizer, name) as worker:
                for n, (x, y) in enumerate(atoll.batches(DATA, worker, batch_size=4)):
                    (model(x + shift) - y).square().mean().backward()
                    at(n)
                    optimizer.step()
                    optimizer.zero_grad()
            return model, last[0]

        (a, last_a), (b, last_b) = self.in_threads(lambda: run("a", 0.0), lambda: run("b", 4.0))
        torch.testing.assert_close(a.level, (last_a + last_b) / 2)
        for (name, p), q in zip(a.named_parameters(), b.parameters()):
            self.assertTrue(torch.equal(p, q), name)

    def test_steps_that_nobody_sees(self) -> None:
        """An optimizer that never steps while another one does; a loop that updates by hand without worker.step()."""
        self.start_coordinator()
        for given in (True, False):
            model = Model()
            mine, theirs = torch.optim.SGD(model.parameters(), 0.1), torch.optim.Adam(model.parameters())
            what = "the optimizer of atoll.Worker (SGD) took no step" if given else "worker.step() was not called"
            line = f"the parameters changed between 20 forwards, and {what}: give atoll.Worker the optimizer whose " \
                   "step() runs, or None and call worker.step() after each step"
            with self.assertRaisesRegex(atoll.Error, re.escape(line)):
                with self.worker(model, mine if given else None, f"w{given}") as worker:
                    for _ in range(100):
                        model(torch.randn(4, 8)).mean().backward()
                        if given:
                            theirs.step()
                        for p in () if given else model.parameters():
                            p.data.add_(p.grad, alpha=-0.1)
                    self.fail(f"not noticed in round {worker.round}")

    def test_optimizer_without_init(self) -> None:
        class NoInit(torch.optim.Optimizer):
            def __init__(self, parameters) -> None:
                self.param_groups = [{"params": list(parameters)}]

        with self.assertRaisesRegex(atoll.InvalidError, "NoInit did not call torch.optim.Optimizer.__init__"):
            self.worker(Model(), NoInit(Model().parameters()))

    # --- bases ------------------------------------------------------------------------------------------------------

    def test_other_bases_are_refused_by_name(self) -> None:
        self.start_coordinator()

        def base(change=None) -> tuple[Model, torch.optim.Optimizer]:
            model = Model()
            model.body.requires_grad_(False)
            if change:
                with torch.no_grad():
                    change(model)
            return model, torch.optim.SGD(model.head.parameters(), 0.01)

        model, optimizer = base()
        with self.worker(model, optimizer, "first", train=DATA) as worker:
            worker.begin()
            for i, (pattern, change) in enumerate([
                ("frozen tensor 'body.weight' has other values", lambda m: m.body.weight.mul_(1.001)),
                ("frozen tensor 'table' has other values", lambda m: m.table.add_(1)),
                ("frozen tensor 'body.bias' .*BF16", lambda m: m.body.to(torch.bfloat16)),
            ]):
                other, its = base(change)
                with self.assertRaisesRegex(atoll.RefusedError, pattern):
                    self.open_once(other, its, f"w{i}", train=DATA)
            other, its = base(lambda m: m.body.weight.mul_(1.001))
            joined: list[bool] = []
            options = {"frozen": "any", "train": DATA}
            any_ = threading.Thread(target=lambda: joined.append(self.open_once(other, its, "any", **options)))
            any_.start()
            self.loop(model, worker, optimizer, lambda n: time.sleep(0.05))
            any_.join(30)
        self.assertEqual(joined, [True])
        saved = load_file(self.run_dir / "checkpoints" / "latest" / "model.safetensors")
        again = Model()
        again.load_state_dict({**saved, "calls": torch.tensor(0)})
        self.assertTrue(torch.equal(again.body.weight, model.body.weight))
        self.assertTrue(torch.equal(again.head.weight, model.head.weight))
        self.assertTrue(torch.equal(again.table, model.table))

    # --- schedules --------------------------------------------------------------------------------------------------

    def schedules(self) -> dict[str, tuple]:
        s = torch.optim.lr_scheduler
        return {
            "onecycle": (lambda o: s.OneCycleLR(o, 0.1, total_steps=20), 1),
            "cosine": (lambda o: s.CosineAnnealingLR(o, 20), 1),
            "sequence": (lambda o: s.SequentialLR(o, [s.LinearLR(o, 0.1, 1, 4), s.ExponentialLR(o, 0.9)], [4]), 1),
            "lambda": (lambda o: s.LambdaLR(o, lambda n: 1 / (1 + n)), 1),
            "twice": (lambda o: s.LinearLR(o, 1.0, 0.1, 40), 2),
        }

    def test_schedules_after_a_dropped_round(self) -> None:
        """They stand where they would without it, whether PyTorch can set them to a position or not."""
        for name, (make, moves) in self.schedules().items():
            rates = {}
            for poisoned in (False, True):
                self.run_dir = self.folder / f"{name}{poisoned}"
                self.start_coordinator()
                model = Model()
                optimizer = torch.optim.SGD(model.parameters(), 0.001, momentum=0.9)
                scheduler = make(optimizer)
                seen = rates[poisoned] = {}
                with self.worker(model, optimizer, f"{name}{poisoned}", state=[scheduler]) as worker:
                    for n, (x, y) in enumerate(atoll.batches(DATA, worker, batch_size=4)):
                        seen[worker.position] = optimizer.param_groups[0]["lr"]
                        (model(x) - y).square().mean().backward()
                        if poisoned and n == 12:
                            model.head.bias.grad.fill_(float("nan"))
                        optimizer.step()
                        optimizer.zero_grad()
                        for _ in range(moves):
                            scheduler.step()
                self.assertTrue(worker.done)
            self.assertEqual(list(rates[False]), list(rates[True]), name)
            for position, rate in rates[False].items():
                self.assertAlmostEqual(rate, rates[True][position], places=9, msg=f"{name} at {position}")

    def test_schedules_that_a_script_loads_itself(self) -> None:
        """A scheduler from a file of the script's own, and the saved state beside it, are not counted twice."""
        script = SCHEDULED.replace("FOLDER", str(self.folder))
        rates = {}
        for kill_at in (-1, 13):
            self.run_dir = self.folder / f"run{kill_at}"
            self.start_coordinator(coordinator={"evict_after_s": 100})
            name = f"w{kill_at}".replace("-", "m")
            process = self.start_script(script, name, str(self.run_dir), str(kill_at))
            if kill_at > 0:
                self.finish(process, code=-9)
                process = self.start_script(script, name, str(self.run_dir), "-1")
            self.finish(process)
            rates[kill_at] = [e["lr"] for e in self.events("step")][-5:]
        np.testing.assert_allclose(rates[13], rates[-1], rtol=1e-6)

    def test_new_loops_go_on_with_the_round(self) -> None:
        """Another atoll.batches in the middle of a round takes the samples that are left, also with processes."""
        for workers in (0, 1):
            self.run_dir = self.folder / f"run{workers}"
            self.start_coordinator()
            model, seen = Model(), []
            optimizer = torch.optim.SGD(model.parameters(), 0.01)
            numbered = NUMBERED if workers else list(NUMBERED)
            with self.worker(model, optimizer, f"w{workers}", train=numbered) as worker:
                while not worker.done:
                    for _, (i, x) in zip(range(3), atoll.batches(numbered, worker, batch_size=4, num_workers=workers)):
                        seen += i.tolist()
                        model(x).mean().backward()
                        optimizer.step()
            self.assertEqual(len(set(seen)), 80)

    def test_schedules_of_a_late_worker(self) -> None:
        """Per step: at the run's position. Per epoch and by measurement: left alone, and said."""
        s = torch.optim.lr_scheduler
        kinds = {
            "cosine": (lambda o: s.CosineAnnealingLR(o, 40), lambda n: True),
            "periodic": (lambda o: s.CosineAnnealingLR(o, 8, 1e-4), lambda n: True),
            "epoch": (lambda o: s.StepLR(o, 1, 0.1), lambda n: n % 50 == 49),
            "ends": (lambda o: s.OneCycleLR(o, 0.1, total_steps=3), lambda n: n % 50 == 49),
            "plateau": (lambda o: s.ReduceLROnPlateau(o), lambda n: False),
        }
        for kind, (make, steps) in kinds.items():
            self.run_dir = self.folder / kind
            coordinator = self.start_coordinator(train={"max_steps": 40})

            def run(name: str, wait_for_round: int) -> list[float]:
                if wait_for_round:
                    self.wait_for(30, "the first rounds", lambda: len(self.events("round")) >= wait_for_round)
                model, rates = Model(), []
                optimizer = torch.optim.SGD(model.parameters(), 0.01)
                scheduler = make(optimizer)
                with self.worker(model, optimizer, f"{kind}-{name}", state=[scheduler]) as worker:
                    for n, (x, y) in enumerate(atoll.batches(DATA, worker, batch_size=4)):
                        rates.append((worker.position, optimizer.param_groups[0]["lr"]))
                        if name == "a" and worker.round == 2:
                            late.start()
                            self.wait_for(30, "the late worker", lambda: len(self.events("join")) > 1)
                        (model(x) - y).square().mean().backward()
                        optimizer.step()
                        optimizer.zero_grad()
                        if steps(n):
                            scheduler.step()
                return rates

            results: dict[str, list] = {}
            late = threading.Thread(target=lambda: results.update(b=run("b", 2)))
            started = late.start
            late.start = lambda: None if late.is_alive() or "b" in results else started()
            results["a"] = run("a", 0)
            late.join(60)
            at = dict(results["a"])
            self.assertGreater(results["b"][0][0], 5, kind)
            for position, rate in results["b"]:
                self.assertAlmostEqual(rate, at.get(position, rate), places=9, msg=f"{kind} at {position}")
            self.finish(coordinator)

    # --- ends -------------------------------------------------------------------------------------------------------

    def test_loops_that_end_by_themselves(self) -> None:
        """Whatever ends the loop: both workers have the run's parameters, and the run is complete."""

        def counted(model, optimizer, worker) -> None:
            for _ in range(20):
                (model(torch.randn(4, 8)) - 1).square().mean().backward()
                optimizer.step()

        def too_long(model, optimizer, worker) -> None:
            for _ in range(3):  # epochs
                for _ in range(10):
                    (model(torch.randn(4, 8)) - 1).square().mean().backward()
                    optimizer.step()
            raise AssertionError("the run is done before")

        def closed(model, optimizer, worker) -> None:
            counted(model, optimizer, worker)
            worker.close()

        for body in (counted, too_long, closed):
            self.run_dir = self.folder / body.__name__
            coordinator = self.start_coordinator(coordinator={"min_workers": 2})

            def run(name: str) -> Model:
                model = Model()
                optimizer = torch.optim.SGD(model.parameters(), 0.01)
                with self.worker(model, optimizer, f"{body.__name__}-{name}") as worker:
                    body(model, optimizer, worker)
                self.assertTrue(worker.done)
                return model

            a, b = self.in_threads(lambda: run("a"), lambda: run("b"))
            self.assertTrue(torch.equal(a.head.weight, b.head.weight), body.__name__)
            self.finish(coordinator)

    def test_end_of_a_script_without_with(self) -> None:
        """A script that neither closes its worker nor uses `with` completes its last round when it exits."""
        coordinator = self.start_coordinator()
        script = self.start_script(SCRIPT, "plain", str(self.run_dir))
        self.finish(script)
        self.finish(coordinator)

    def test_end_in_mid_round_is_said(self) -> None:
        self.start_coordinator()
        model = Model()
        optimizer = torch.optim.SGD(model.parameters(), 0.01)
        with self.assertLogs("atoll", "WARNING") as logged, self.worker(model, optimizer):
            for _ in range(7):
                model(torch.randn(4, 8)).mean().backward()
                optimizer.step()
        self.assertIn("the script ended before the run, after 2 of the 5 steps of round 2", "".join(logged.output))

    # --- state ------------------------------------------------------------------------------------------------------

    def test_state_that_is_no_plain_tensor(self) -> None:
        """A subclass that can be taken apart is saved; another one is refused by its key after the first step."""
        from torch.testing._internal.two_tensor import TwoTensor

        state = atoll.train.state
        both = TwoTensor(torch.arange(3.0), torch.arange(3.0) + 1)
        back = state.read(state.write({"a": both, "b": torch.float16}))
        self.assertIsInstance(back["a"], TwoTensor)
        self.assertTrue(torch.equal(back["a"].a, both.a) and torch.equal(back["a"].b, both.b))
        self.assertIs(back["b"], torch.float16)

        class Odd(torch.Tensor):
            pass

        class Optimizer(torch.optim.SGD):
            def step(self, closure=None):
                for p in self.param_groups[0]["params"]:
                    self.state[p]["packed"] = torch.zeros(2).as_subclass(Odd)

        self.start_coordinator()
        model = Model()
        optimizer = Optimizer(model.parameters(), 0.1)
        steps = 0
        with self.assertRaisesRegex(TypeError, "state 'packed' is a .*Odd, which has no __tensor_flatten__"):
            with self.worker(model, optimizer) as worker:
                for x, y in atoll.batches(DATA, worker, batch_size=4):
                    steps += 1
                    model(x).mean().backward()
                    optimizer.step()
        self.assertEqual(steps, 1)

    def test_non_finite_tensors_are_named(self) -> None:
        self.start_coordinator()
        model = Model()
        model.level[1] = float("nan")
        with self.assertRaisesRegex(atoll.Error, "level.*1 value"):
            with self.worker(model, torch.optim.SGD(model.parameters(), 0.1)) as worker:
                worker.begin()

    def test_failed_worker_leaves_nothing_open(self) -> None:
        self.start_coordinator()
        model = Model()
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        broken = copy.copy(optimizer)
        del broken.__dict__["_optimizer_step_post_hooks"]
        for bad in ({"optimizer": broken}, {"state": [object()]}, {"frozen": "most"}):
            with self.assertRaises((atoll.InvalidError, TypeError)):
                self.worker(model, **{"optimizer": optimizer, **bad})
            self.worker(model, optimizer).close()  # the folder is free

    # --- tokens -----------------------------------------------------------------------------------------------------

    def test_tokens_of_all_forms_of_calls(self) -> None:
        """Every call form counts the targets; evaluations do not count; worker.tokens and samples fill in."""

        class Words(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.e = nn.Embedding(9, 9)

            def forward(self, x, y=None, labels=None, flag=True):
                return nn.functional.cross_entropy(self.e(x).flatten(0, 1), (y if labels is None else labels).flatten())

        x, y = torch.randint(0, 9, (4, 6)), torch.randint(0, 9, (4, 6))
        y[0, :2] = -100

        def evaluate(m) -> None:
            m.eval()
            m(x, y)
            m.train()
            with torch.no_grad():
                m(x, y)

        forms = [
            (lambda m, w: m(x, y), 22), (lambda m, w: m(x, y, flag=False), 22), (lambda m, w: m(x, labels=y), 22),
            (lambda m, w: m(x=x, y=y), 22), (lambda m, w: (evaluate(m), m(x, y))[1], 22),
            (lambda m, w: (w.tokens(100), m(x, y))[1], 100), (lambda m, w: m.e(x).mean(), 4),
        ]
        self.start_coordinator(train={"max_steps": len(forms), "sync_every": 1})
        model = Words()
        optimizer = torch.optim.SGD(model.parameters(), 0.01)
        with self.worker(model, optimizer) as worker:
            for form, _ in forms:
                worker.begin()
                form(model, worker).backward()
                optimizer.step()
        tokens = np.diff([0] + [e["tokens"] for e in self.events("step")])
        self.assertEqual(tokens.tolist(), [n for _, n in forms])

    # --- averaged buffers -------------------------------------------------------------------------------------------

    def test_variances_stay_positive_under_the_default_codecs(self) -> None:
        self.start_coordinator(codec={"up": "int8", "down": "int8"}, train={"max_steps": 60, "batch_size": 8})
        torch.manual_seed(0)
        model = nn.Sequential(nn.BatchNorm1d(8), nn.Linear(8, 1))
        scale = torch.tensor([1e-3, 1, 1e3, 1, 1e-2, 10, 1, 1e2])
        optimizer = torch.optim.Adam(model.parameters(), 0.01)
        with self.worker(model, optimizer) as worker:
            for x, y in atoll.batches(DATA, worker, batch_size=8):
                (model(x * scale) - y).square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()
        model.eval()
        self.assertTrue((model[0].running_var > 0).all(), model[0].running_var)
        self.assertTrue(torch.isfinite(model(torch.randn(50, 8) * scale)).all())


class Numbered(torch.utils.data.Dataset):
    def __len__(self) -> int:
        return 400

    def __getitem__(self, i: int) -> tuple[int, torch.Tensor]:
        if not 0 <= i < 400:
            raise IndexError(i)
        return i, torch.ones(8)


NUMBERED = Numbered()
SCHEDULED = """
import os, sys, torch, atoll
name, run, kill_at = sys.argv[1], sys.argv[2], int(sys.argv[3])
torch.manual_seed(0)
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.01)
scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, 20)
file, n = f"FOLDER/{name}.pt", 0
if os.path.exists(file):
    saved = torch.load(file)
    optimizer.load_state_dict(saved["optimizer"])
    scheduler.load_state_dict(saved["scheduler"])
with atoll.Worker(model, optimizer, join=run, dir=f"FOLDER/worker-{name}", name=name, state=[scheduler]) as worker:
    for x in atoll.batches(list(torch.ones(400, 8)), worker, batch_size=4):
        model(x).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        scheduler.step()
        n += 1
        if n % 4 == 0:
            torch.save({"optimizer": optimizer.state_dict(), "scheduler": scheduler.state_dict()}, file)
        if n == kill_at:
            os.kill(os.getpid(), 9)
"""
SCRIPT = """
import sys, torch, atoll
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.01)
worker = atoll.Worker(model, optimizer, join=sys.argv[2], name=sys.argv[1], max_wait=30)
for _ in range(20):
    model(torch.randn(4, 8)).mean().backward()
    optimizer.step()
"""


if __name__ == "__main__":
    unittest.main()
