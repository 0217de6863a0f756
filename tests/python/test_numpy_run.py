"""Runs with numpy programs: the outer step, leased samples, evaluation, resume after kill -9, wrong uses."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
import unittest

import numpy as np

import atoll
from atoll import _lib
from rig import RunTest


class Squares:
    """Sample i is (x, y) with y = x . TRUE, which a linear model learns."""

    TRUE = np.array([1.0, -2.0, 0.5], np.float32)

    def __init__(self, n: int = 64) -> None:
        self.x = np.random.default_rng(3).normal(size=(n, 3)).astype(np.float32)
        self.taken: list[int] = []

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, i: int) -> tuple:
        self.taken.append(i)
        return self.x[i], self.x[i] @ self.TRUE


def parameters() -> dict[str, np.ndarray]:
    return {"w": np.zeros(3, np.float32), "b": np.zeros((), np.float32)}


def gradient(p: dict[str, np.ndarray], x: np.ndarray, y: np.ndarray) -> tuple[float, dict[str, np.ndarray]]:
    error = x @ p["w"] + p["b"] - y
    return float((error**2).mean()), {"w": 2 * error @ x / len(x), "b": 2 * error.mean()}


RESUMED = """
import random, sys, time
import numpy as np
import atoll
from test_numpy_run import Squares, gradient, parameters

name, run, folder, pause = sys.argv[1], sys.argv[2], sys.argv[3], float(sys.argv[4])
random.seed(name), np.random.seed(len(name))
p, velocity = parameters(), {"w": np.zeros(3, np.float32), "b": np.zeros((), np.float32)}
generator = np.random.default_rng(4)
data = Squares()
with atoll.Worker(p, join=run, dir=f"{folder}/{name}", name=name, state=[velocity, generator]) as worker:
    for x, y in atoll.batches(data, worker, batch_size=4):
        loss, g = gradient(p, x, y)
        noise = random.random() + np.random.rand() + generator.random()
        for key in p:
            velocity[key] *= 0.9
            velocity[key] += g[key]
            p[key] -= 0.01 * velocity[key] + 1e-4 * noise
        time.sleep(pause)
        worker.step(loss=loss)
print("hash", worker.info().theta_hash)
"""


class Runs(RunTest):
    def test_two_workers(self) -> None:
        """DiLoCo with Nesterov equals its formula; no sample twice in an epoch; all hashes are equal."""
        outer = {"optimizer": "nesterov", "learning_rate": 0.7, "momentum": 0.9}
        coordinator = self.start_coordinator(outer=outer, coordinator={"min_workers": 2}, train={"max_steps": 15})

        def train(name: str):
            p, data, rounds = parameters(), Squares(), []
            with self.worker(p, name=name, train=data) as worker:
                for _ in iter(worker.begin, False):
                    start = {key: value.copy() for key, value in p.items()}
                    for step in range(worker.assignment.steps):
                        samples = worker.samples(4)
                        rounds.append(samples)
                        _, g = gradient(p, data.x[samples], data.x[samples] @ data.TRUE)
                        for key in p:
                            p[key] -= 0.05 * g[key]
                        if step == worker.assignment.steps - 1:
                            trained = {key: value.copy() for key, value in p.items()}
                        worker.step()
                    history.setdefault(name, []).append((start, trained))
            return np.concatenate(rounds), p, worker.info()

        history: dict[str, list] = {}
        (taken_a, a, info), (taken_b, b, info_b) = self.in_threads(lambda: train("a"), lambda: train("b"))
        self.finish(coordinator)
        self.assertEqual(info.theta_hash, info_b.theta_hash)
        self.assertEqual(info.theta_hash, self.summary()["theta_hash"])
        taken = np.concatenate([taken_a, taken_b])
        self.assertEqual(len(taken), 120)
        self.assertLessEqual(np.bincount(taken, minlength=64).max(), 2)  # 120 samples are less than two epochs
        self.assertEqual(len(set(np.concatenate([taken_a[:20], taken_b[:20]]))), 40)
        for key in a:
            theta, velocity = history["a"][0][0][key].astype(np.float64), 0.0
            for (start, trained_a), (_, trained_b) in zip(history["a"], history["b"]):
                np.testing.assert_allclose(start[key], theta, atol=1e-6)
                g = theta - (trained_a[key].astype(np.float64) + trained_b[key]) / 2
                velocity = 0.9 * velocity + g
                theta = theta - 0.7 * (g + 0.9 * velocity)
            np.testing.assert_allclose(a[key], theta, atol=1e-6)
            np.testing.assert_array_equal(a[key], b[key])

    def test_weights_are_tokens(self) -> None:
        """Local SGD is the mean of the parameters, weighted by tokens; the checkpoint holds it under its names."""
        coordinator = self.start_coordinator(
            train={"method": "local-sgd", "max_steps": 5}, coordinator={"min_workers": 2}
        )

        def train(name: str, value: float, tokens: int):
            p = {"layer.w": np.full((2, 2), 0.5, np.float32)}
            with self.worker(p, name=name, files={"config.json": '{"model_type": "test"}'}) as worker:
                while worker.begin():
                    p["layer.w"][:] = value
                    worker.step(tokens=tokens)
            return p["layer.w"]

        a, b = self.in_threads(lambda: train("a", 1, 30), lambda: train("b", 2, 10))
        self.finish(coordinator)
        np.testing.assert_allclose(a, 1.25, atol=1e-6)
        np.testing.assert_array_equal(a, b)
        checkpoint = self.run_dir / "checkpoints" / "latest"
        self.assertEqual(json.loads((checkpoint / "config.json").read_text()), {"model_type": "test"})
        raw = (checkpoint / "model.safetensors").read_bytes()
        header = json.loads(raw[8 : 8 + int.from_bytes(raw[:8], "little")])
        self.assertEqual(header["layer.w"]["shape"], [2, 2])

    def test_last_update(self) -> None:
        """A model of several fragments ends with the run's last parameters, not with those of a part of them."""
        coordinator = self.start_coordinator(train={"max_steps": 6, "sync_every": 2})
        p = {f"layer{i}": np.zeros((1000, 500), np.float32) for i in range(16)}
        with self.worker(p) as worker:
            while worker.begin():
                for value in p.values():
                    value += 1e-4
                worker.step()
            info = worker.info()
        self.finish(coordinator)
        self.assertEqual(info.round, 3)
        self.assertEqual(info.theta_hash, self.summary()["theta_hash"])
        self.assertEqual(len({float(value[0, 0]) for value in p.values()}), 1)

    def test_evaluation(self) -> None:
        coordinator = self.start_coordinator(train={"max_steps": 10, "eval_every": 1})
        p, data, val = parameters(), Squares(), Squares(40)
        seen: list[int] = []

        def evaluate(p: dict, indices: np.ndarray) -> tuple[float, int]:
            seen.extend(int(i) for i in indices)
            random.random(), np.random.rand()
            loss, _ = gradient(p, val.x[indices], val.x[indices] @ val.TRUE)
            return loss * len(indices), len(indices)

        with self.worker(p, evaluate=evaluate, val=val) as worker:
            for x, y in atoll.batches(data, worker, batch_size=4):
                loss, g = gradient(p, x, y)
                for key in p:
                    p[key] -= 0.05 * g[key]
                worker.step(loss=loss)
        self.finish(coordinator)
        expected, _ = gradient(p, val.x, val.x @ val.TRUE)
        self.assertAlmostEqual(self.summary()["final_val_loss"], expected, places=5)
        self.assertEqual(sorted(set(seen)), list(range(40)))

    def test_resume(self) -> None:
        """kill -9 of workers and coordinator: state, random numbers and samples come back; the bits are the same."""

        def run(folder: str, kills: int) -> str:
            self.run_dir = self.folder / folder
            train, settings = {"max_steps": 120}, {"min_workers": 2, "evict_after_s": 600}
            nodes = {"coordinator": self.start_coordinator(train=train, coordinator=settings)}
            (self.folder / folder).mkdir(exist_ok=True)
            arguments = str(self.run_dir), str(self.folder / folder / "workers"), "0.01" if kills else "0"
            (self.folder / folder / "workers").mkdir()
            for name in ("a", "bb"):
                nodes[name] = self.start_script(RESUMED, name, *arguments, PYTHONPATH=os.pathsep.join(sys.path))
            rng = random.Random(1)
            for i in range(kills):
                victim = sorted(nodes)[i % 3]
                done = self.rounds()
                self.wait_for(60, f"round {done + 2}", lambda: self.rounds() >= done + 2)
                time.sleep(rng.random() * 0.1)
                self.assertIsNone(nodes[victim].poll(), f"{victim} ended before its kill")
                self.kill(nodes[victim])
                if victim == "coordinator":
                    nodes[victim] = self.start_coordinator()
                else:
                    nodes[victim] = self.start_script(RESUMED, victim, *arguments, PYTHONPATH=os.pathsep.join(sys.path))
            for process in nodes.values():
                self.finish(process)
            return self.summary()["theta_hash"]

        plain = run("plain", 0)
        self.assertEqual(run("killed", 4), plain)
        self.assertGreater(self.summary()["restarts"], 0)

    def test_control_c(self) -> None:
        """SIGINT in training, and while the worker waits for others: it leaves with its text."""
        coordinator = self.start_coordinator(train={"max_steps": 100000}, coordinator={"min_workers": 2})
        for name in ("w", "vv"):
            arguments = str(self.run_dir), str(self.folder), "0.01"
            p = self.start_script(RESUMED, name, *arguments, PYTHONPATH=os.pathsep.join(sys.path))
            if name == "vv":
                self.wait_for(30, "a round", lambda: self.rounds() >= 1)
            else:
                self.wait_for(30, "the wait for a second worker", lambda: "1 of 2" in self.log("coordinator"))
            p.send_signal(signal.SIGINT)
            self.finish(p, 30, -signal.SIGINT)
            left = f"{name} left: KeyboardInterrupt"
            self.wait_for(30, "the text of the worker", lambda: left in self.log("coordinator"))
            if name == "w":
                self.start_script(RESUMED, "other", *arguments, PYTHONPATH=os.pathsep.join(sys.path))
        coordinator.terminate()


class WrongUses(RunTest):
    def check(self, error: type, pattern: str, function) -> None:
        with self.assertRaisesRegex(error, pattern) as raised:
            function()
        self.assertNotIn("\n", str(raised.exception))

    def test_before_a_run(self) -> None:
        def worker(*arguments, **options):
            return atoll.Worker(*arguments, **{"join": self.run_dir, "dir": self.folder / "w", **options})

        self.start_coordinator()
        self.wait_for(30, "the run", (self.run_dir / "config.yaml").exists)
        double, line = {"w": np.zeros(3)}, "tcp://127.0.0.1:1"
        self.check(atoll.InvalidError, "w is of float64: atoll takes float32", lambda: worker(double))
        self.check(TypeError, "is of type list: give a torch.nn.Module, or a dict", lambda: worker([1, 2]))
        self.check(ValueError, "evaluate= needs val=", lambda: worker(parameters(), evaluate=print))
        self.check(TypeError, "the optimizer is of type object, not a", lambda: worker(parameters(), object()))
        self.check(TypeError, r"state\[0\] is of type object", lambda: worker(parameters(), state=[object()]))
        self.check(atoll.InvalidError, "copy the whole join line", lambda: worker(parameters(), join=line))
        os.environ.pop("ATOLL_JOIN", None)
        self.check(atoll.InvalidError, "join", lambda: worker(parameters(), join=None))
        self.check(atoll.InvalidError, "no such folder", lambda: worker(parameters(), files="/none"))

    def test_texts(self) -> None:
        """Each text is checked at the call; the names of many GPUs are cut for the status."""
        self.start_coordinator()
        self.wait_for(30, "the run", (self.run_dir / "config.yaml").exists)
        for option in ("join", "name", "dir"):
            for text in ("a\x1b[2Jb", "a\0b", "\ud800", "a\nb", "\udcff", "\x9b", "x" * 5000):
                options = {"join": self.run_dir, "name": "w", "dir": self.folder / "w", option: text}
                self.check(atoll.InvalidError, option, lambda: atoll.Worker(parameters(), **options))
        for name in ("a\u202eb", "a\u200bb"):
            self.check(atoll.InvalidError, "name must be UTF-8 without control or invisible characters",
                       lambda: atoll.Worker(parameters(), join=self.run_dir, dir=self.folder / "w", name=name))
        self.check(atoll.InvalidError, "the name of a file", lambda: atoll.Worker(
            parameters(), join=self.run_dir, dir=self.folder / "w", files={"a\0.json": "{}"}))
        self.check(atoll.InvalidError, "the name of a tensor", lambda: atoll.Worker(
            {"a\0b": np.zeros(3, np.float32)}, join=self.run_dir, dir=self.folder / "w"))
        self.check(atoll.InvalidError, "the pattern of token shards", lambda: atoll.Tokens("a\x1b*.bin", 4))
        self.assertEqual(_lib._shown("cuda:0 é\x1b"), "cuda:0 é?".encode())
        self.assertEqual(_lib._shown("é" * 40), ("é" * 31).encode())

    def test_data_sets(self) -> None:
        self.start_coordinator()
        self.wait_for(30, "the run", (self.run_dir / "config.yaml").exists)

        class IterableDataset:
            def __iter__(self):
                return iter([])

        with atoll.Worker(parameters(), join=self.run_dir, dir=self.folder / "w") as worker:
            for error, pattern, dataset in (
                (TypeError, "a generator can be read only once: give an object", (i for i in range(3))),
                (TypeError, "int has neither a length", 3),
                (ValueError, "empty", []),
            ):
                self.check(error, pattern, lambda: atoll.batches(dataset, worker))
            with self.assertRaisesRegex(ValueError, "a stream is read by the training process"):
                atoll.batches(IterableDataset(), worker, num_workers=1)
            odd = iter(atoll.batches(Squares(), worker, 3))
            self.check(atoll.Error, "before the first batch: call worker.begin", worker.step)
            self.check(ValueError, "a step of the run takes 4 samples.*3 samples", lambda: next(odd))
            self.check(atoll.Error, "another training set", lambda: atoll.batches(Squares(65), worker, 4))

    def test_sizes(self) -> None:
        """Accumulation that does not fit is one error at the first step; so is `every`."""
        self.start_coordinator()

        def train(batch_size: int, accumulation: int, **options) -> None:
            name = f"w{batch_size}{accumulation}{len(options)}"
            p = parameters()
            options = {"join": self.run_dir, "dir": self.folder / name, "name": name, **options}
            with atoll.Worker(p, **options) as worker:
                for n, _ in enumerate(atoll.batches(Squares(), worker, batch_size)):
                    if n % accumulation == accumulation - 1:
                        worker.step(loss=1.0)

        self.check(ValueError, r"no optimizer.step\(\) after 8 samples", lambda: train(4, 2))
        self.check(ValueError, "a step after 1 batches: the run's step takes 4 samples.*2 batches", lambda: train(2, 1))
        self.check(ValueError, "every=7, but the run's train.sync_every is 5", lambda: train(4, 1, every=7))
        train(2, 2, every=5)

    def test_other_layout(self) -> None:
        """The second worker has another layout: it is refused with the first tensor that differs."""
        self.start_coordinator(train={"max_steps": 100000})
        stop = threading.Event()

        def first() -> None:
            with atoll.Worker(parameters(), join=self.run_dir, dir=self.folder / "a", name="a") as worker:
                while not stop.is_set() and worker.begin():
                    worker.step()
                    time.sleep(0.01)

        thread = threading.Thread(target=first)
        thread.start()
        try:
            self.wait_for(20, "a round", lambda: self.rounds() >= 1)
            other = {"w": np.zeros(4, np.float32), "b": np.zeros((), np.float32)}
            with atoll.Worker(other, join=self.run_dir, dir=self.folder / "b", name="b") as worker:
                self.check(atoll.RefusedError, "w.*4", worker.begin)
        finally:
            stop.set()
            thread.join(20)

    def test_nan(self) -> None:
        """NaN never reaches the run: the round is dropped, and the third time is an error."""
        self.start_coordinator()
        p = parameters()
        with atoll.Worker(p, join=self.run_dir, dir=self.folder / "a", name="a") as worker:

            def train() -> None:
                while worker.begin():
                    p["w"][0] = np.nan
                    worker.step(loss=float("nan"))

            with self.assertLogs("atoll", "WARNING") as logs:
                self.check(atoll.Error, "NaN|not finite|nan", train)
        self.assertTrue(any("NaN" in line for line in logs.output))


class Log(unittest.TestCase):
    def lines(self, before: str) -> list[str]:
        """stderr of a program that logs one line."""
        program = f"import logging\n{before}\nimport atoll\nlogging.getLogger('atoll').info('round 1')"
        result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
        return result.stderr.splitlines()

    def test_default_handler(self) -> None:
        self.assertEqual(self.lines(""), ["atoll: round 1"])
        self.assertEqual(self.lines("logging.basicConfig(level='INFO')"), ["INFO:atoll:round 1"])
        self.assertEqual(self.lines("logging.getLogger('atoll').setLevel('ERROR')"), [])


if __name__ == "__main__":
    unittest.main()
