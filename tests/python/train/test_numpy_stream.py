"""Data sets that can only be iterated over: samples by number, and a run whose workers come, are killed, and leave."""

from __future__ import annotations

import collections
import logging
import os
import random
import subprocess
import sys
import unittest
from collections.abc import Iterator
from typing import Any

import numpy as np

import atoll
from atoll.train.samples import describe
from atoll.train.stream import Stream
from rig import RunTest


class Numbers:
    """Sample k of pass p is [p, k]. opened: the pass and first sample of each iteration."""

    def __init__(self, n: int) -> None:
        self.n, self.epoch = n, 0
        self.opened: list[tuple[int, int]] = []

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[np.ndarray]:
        return self.read(0)

    def read(self, first: int) -> Iterator[np.ndarray]:
        self.opened.append((self.epoch, first))
        epoch = self.epoch
        return (np.array([epoch, k], np.float64) for k in range(first, self.n))


class Skipping(Numbers):
    """Skips as `datasets` does: the stream without its first samples begins at pass 0 again."""

    def skip(self, n: int) -> Any:
        return _Rest(self, n)


class _Rest:
    def __init__(self, whole: Skipping, n: int) -> None:
        self._whole, self._n, self._epoch = whole, n, 0

    def set_epoch(self, epoch: int) -> None:
        self._epoch = epoch

    def __iter__(self) -> Iterator[np.ndarray]:
        self._whole.epoch = self._epoch
        return self._whole.read(self._n)


class Shrinking(Numbers):
    """Its second pass lacks a sample."""

    def read(self, first: int) -> Iterator[np.ndarray]:
        return (np.array([self.epoch, k]) for k in range(first, self.n - min(self.epoch, 1)))


class Shuffled(Numbers):
    """Another order each time."""

    def read(self, first: int) -> Iterator[np.ndarray]:
        order = list(super().read(first))
        random.shuffle(order)
        return iter(order)


class Units(unittest.TestCase):
    def setUp(self) -> None:
        logger = logging.getLogger("atoll")
        self.addCleanup(logger.setLevel, logger.level)
        logger.setLevel("WARNING")

    def check(self, stream: Stream, numbers: list[int], n: int) -> None:
        for number in numbers:
            self.assertEqual(tuple(stream[number]), divmod(number, n), number)

    def test_skips_over_passes(self) -> None:
        data = Numbers(10)
        self.check(Stream(data), [0, 1, 4, 9, 10, 13, 19, 27, 28, 51], 10)
        self.assertEqual(data.opened, [(0, 0), (1, 0), (2, 0), (5, 0)])

    def test_goes_back(self) -> None:
        data = Numbers(10)
        self.check(Stream(data), [3, 12, 5, 6, 2, 11], 10)
        self.assertEqual(data.opened, [(0, 0), (1, 0), (0, 0), (0, 0), (1, 0)])

    def test_begins_in_a_later_pass(self) -> None:
        """As a worker that starts again: it does not know how long a pass is."""
        for kind in (Numbers, Skipping):
            for number in (10, 19, 20, 37):
                self.check(Stream(kind(10)), [number, number + 1, 3], 10)

    def test_skip_of_the_data_set(self) -> None:
        data = Skipping(10)
        self.check(Stream(data), [4, 5, 17, 18, 2, 25], 10)
        self.assertIn((1, 7), data.opened)
        self.assertIn((2, 5), data.opened)
        self.assertEqual(data.opened[0], (0, 4))

    def test_batches_of_numbers(self) -> None:
        taken = Stream(Numbers(10)).__getitems__([8, 9, 10, 11])
        self.assertEqual([tuple(t) for t in taken], [(0, 8), (0, 9), (1, 0), (1, 1)])

    def test_passes_that_differ(self) -> None:
        stream = Stream(Shrinking(5))
        self.check(stream, [4, 5, 8], 5)
        with self.assertRaisesRegex(ValueError, r"\(Shrinking\) ended after 4 samples, and one before after 5"):
            stream[9]

    def test_empty(self) -> None:
        for kind in (Numbers, Skipping):
            with self.assertRaisesRegex(ValueError, "is empty"):
                Stream(kind(0))[3]
            with self.assertRaisesRegex(ValueError, "is empty"):
                describe(kind(0))

    def test_what_all_workers_compare(self) -> None:
        self.assertEqual(describe(Numbers(10)), describe(Numbers(20)))  # the first samples
        shifted = Numbers(10)
        shifted.set_epoch(1)
        self.assertNotEqual(describe(Numbers(10)).hash, describe(shifted).hash)

    def test_an_order_that_changes(self) -> None:
        with self.assertNoLogs("atoll", "WARNING"):
            describe(Numbers(30))
        with self.assertLogs("atoll", "WARNING") as logs:
            first = describe(Shuffled(30))
        self.assertIn("shuffle with a fixed seed", logs.output[0])
        self.assertEqual(first.hash, describe(Shuffled(40)).hash)  # nothing is compared


# NAME RUN FOLDER N PAUSE EVENTS: EVENTS is "kill:8,leave:12", each once, in the middle of that round.
PROGRAM = """
import os, signal, sys, time
from pathlib import Path
import numpy as np
import atoll
from test_numpy_stream import Numbers

name, run, folder, n, pause, given = sys.argv[1:7]
events = dict(reversed(e.split(":")) for e in given.split(",") if e)
p = {"w": np.zeros(3, np.float32)}
record = open(f"{folder}/{name}.txt", "a", buffering=1)
with atoll.Worker(p, join=run, dir=f"{folder}/{name}", name=name) as worker:
    step, round_ = 0, -1
    for batch in atoll.batches(Numbers(int(n)), worker, batch_size=8):
        step, round_ = (step + 1, round_) if worker.round == round_ else (0, worker.round)
        event, marker = events.get(str(round_)), Path(f"{folder}/{name}.{round_}")
        if event and step == 10 and not marker.exists():
            marker.touch()
            if event == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            sys.exit(3)
        p["w"] += np.float32(1e-6) * batch.sum(0)[1]
        print(round_, step, *(f"{e:.0f}:{k:.0f}" for e, k in batch), file=record)
        time.sleep(float(pause))
        worker.step()
"""
SYNC, STEP = 25, 8
SAMPLES = SYNC * STEP  # of one worker in one round


class Runs(RunTest):
    def start_worker(self, name: str, n: int, events: str = "", pause: float = 0) -> subprocess.Popen:
        arguments = (str(self.run_dir), str(self.folder), str(n), str(pause), events)
        return self.start_script(PROGRAM, name, *arguments, PYTHONPATH=os.pathsep.join(sys.path))

    def start_run(self, rounds: int, **coordinator: Any) -> subprocess.Popen:
        train = {"max_steps": rounds * SYNC, "sync_every": SYNC, "batch_size": STEP}
        return self.start_coordinator(train=train, coordinator=coordinator)

    def trained(self, *names: str) -> dict[tuple[int, str], list[tuple[int, int]]]:
        """(pass, number) of the samples of each round that a worker took to its end. The last try counts."""
        rounds: dict[tuple[int, str], dict[int, list[tuple[int, int]]]] = collections.defaultdict(dict)
        for name in names:
            for line in (self.folder / f"{name}.txt").read_text().splitlines():
                words = line.split()
                pairs = [(int(epoch), int(k)) for epoch, k in (w.split(":") for w in words[2:])]
                rounds[int(words[0]), name][int(words[1])] = pairs
        return {key: sum(steps.values(), []) for key, steps in rounds.items() if len(steps) == SYNC}

    def test_each_sample_once(self) -> None:
        """Three workers: one joins late, one is killed twice and starts again, one leaves in the middle of a round.

        The second restart comes after the eviction: other workers train the samples of that round.
        """
        n, rounds = 10000, 52
        coordinator = self.start_run(rounds, min_workers=2, evict_after_s=2)
        stays = self.start_worker("stays", n, pause=0.002)
        killed = self.start_worker("killed", n, "kill:6,kill:16", pause=0.002)
        self.wait_for(60, "round 3", lambda: self.rounds() >= 3)
        leaves = self.start_worker("leaves", n, "leave:24", pause=0.002)
        for evictions in (0, 1):
            self.finish(killed, code=-9)
            if evictions:
                self.wait_for(60, "the eviction", lambda: any(e["worker"] == "killed" for e in self.events("evict")))
            killed = self.start_worker("killed", n, "kill:6,kill:16", pause=0.002)
        self.finish(leaves, code=3)
        for process in (stays, killed, coordinator):
            self.finish(process, 120)

        trained = self.trained("stays", "killed", "leaves")
        self.check_merged(trained)
        counts = collections.Counter(sample for samples in trained.values() for sample in samples)
        self.assertEqual(set(counts.values()), {1})
        passes = collections.Counter(epoch for epoch, _ in counts)
        self.assertEqual((passes[0], passes[1]), (n, n))

    def check_merged(self, trained: dict[tuple[int, str], list[tuple[int, int]]]) -> None:
        """What the coordinator merged in each round are the rounds that workers finished."""
        finished, before = collections.Counter(round for round, _ in trained), 0
        for event in self.events("round"):
            self.assertEqual(event["tokens"] - before, SAMPLES * finished[event["round"] - 1], event)
            before = event["tokens"]
        self.assertEqual(before, SAMPLES * len(trained))

    def test_what_is_refused(self) -> None:
        self.start_run(1)
        with atoll.Worker({"w": np.zeros(3, np.float32)}, join=self.run_dir, dir=self.folder / "w") as worker:
            with self.assertRaisesRegex(TypeError, "a generator can be read only once"):
                atoll.batches((i for i in range(5)), worker)
            with self.assertRaisesRegex(ValueError, "leave out num_workers and per_epoch"):
                atoll.batches(Numbers(5), worker, num_workers=2)
        with self.assertRaisesRegex(ValueError, "val= is a stream"):
            atoll.Worker({"w": np.zeros(3, np.float32)}, join=self.run_dir, evaluate=print, val=Numbers(5))

    def test_resume_has_the_same_bits(self) -> None:
        """Kills in both passes: the hash is that of the undisturbed run."""
        hashes = []
        for name, events in (("plain", ""), ("again", "kill:2,kill:5")):
            self.run_dir = self.folder / f"run-{name}"
            coordinator = self.start_run(8, evict_after_s=600)
            for _ in range(events.count("kill")):
                self.finish(self.start_worker(name, 700, events), code=-9)
            self.finish(self.start_worker(name, 700, events))
            self.finish(coordinator)
            hashes.append(self.summary()["theta_hash"])
        self.assertEqual(hashes[0], hashes[1])
        plain, again = self.trained("plain"), self.trained("again")
        self.assertEqual([s for _, s in sorted(plain.items())], [s for (_, _), s in sorted(again.items())])
        self.assertEqual(len(plain), 8)


if __name__ == "__main__":
    unittest.main()
