"""Blocks of DTensors without other processes: places, samples, replicas, evaluations, refusals."""

from __future__ import annotations

import errno
import itertools
import json
import os
import tempfile
import unittest
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, init_device_mesh
from torch.testing._internal.distributed.fake_pg import FakeStore

import atoll
from atoll import _lib
from atoll.train.ranks import Ranks
from atoll.train.rounds import differing_replicas, shared_parts
from atoll.train.sampled import sampled_bytes
from atoll.train.shards.blocks import Block, block_of, holders
from atoll.train.shards.segment import Segment
from atoll.train.shards.samples import sampled_of_shards
from atoll.train.torch_model import TorchModel, clean, model_files

SHAPES = ((8, 3), (7, 3), (3, 5), (1,), (13, 2, 4), (4,))


class Rows(Ranks):
    """One of several ranks, whose gather returns given rows, or notes its own."""

    def __init__(self, rank: int, size: int, rows: list[bytes] | None = None) -> None:
        self.rank, self.size, self.rows, self.own = rank, size, rows, b""

    def gather(self, data: bytes) -> list[bytes]:
        self.own = data
        return self.rows or [data] * self.size


class BlocksTest(unittest.TestCase):
    def on_each_rank(self, size: int, call: Callable[[int], Any]) -> list[Any]:
        """call(rank) in a process group of `size` ranks that have no others."""
        out = []
        for rank in range(size):
            dist.init_process_group("fake", rank=rank, world_size=size, store=FakeStore())
            try:
                out.append(call(rank))
            finally:
                dist.destroy_process_group()
        return out

    def sharded(self, whole: torch.Tensor, dim: int, rank: int, size: int, replicas: int = 1) -> DTensor:
        """This rank's block, cut by torch.chunk."""
        parts = list(whole.chunk(size // replicas, dim))
        empty = whole.narrow(dim, 0, 0)
        part = (parts + [empty] * size)[rank % (size // replicas)]
        mesh = init_device_mesh("cpu", (replicas, size // replicas), mesh_dim_names=("a", "b"))
        return DTensor.from_local(part, mesh, [Replicate(), Shard(dim)], run_check=False, shape=whole.shape,
                                  stride=whole.stride())

    def test_places(self) -> None:
        """The blocks of all ranks are those of torch.chunk, and together the whole tensor."""
        for shape, size, replicas in itertools.product(SHAPES, (1, 2, 4, 6), (1, 2)):
            if size % replicas:
                continue
            whole = torch.arange(int(np.prod(shape))).view(shape)
            for dim in range(len(shape)):
                def check(rank: int) -> Block:
                    t = self.sharded(whole, dim, rank, size, replicas)
                    block = block_of("w", t)
                    self.assertTrue(torch.equal(block.of(whole), t.to_local()))
                    return block

                blocks = self.on_each_rank(size, check)
                held = holders(blocks, list(range(size)))
                self.assertEqual(sum(blocks[r].numel for r in held), whole.numel())
                self.assertTrue(all(r < size // replicas for r in held))
                if replicas == 2:  # ranks of this host first
                    order = [*range(size // 2, size), *range(size // 2)]
                    self.assertTrue(all(r >= size // 2 for r in holders(blocks, order)))

    def test_samples(self) -> None:
        """The samples of tensors in shards are those of the whole tensors."""
        for size in (1, 2, 4):
            wholes = [torch.randn(shape).to(dtype) for shape in (*SHAPES, (300, 7)) for dtype in
                      (torch.float32, torch.bfloat16)]

            def tensors(rank: int) -> list[tuple[str, Any]]:
                return [("w", self.sharded(t, t.ndim - 1, rank, size)) for t in wholes]

            def note(rank: int) -> bytes:
                ranks = Rows(rank, size)
                sampled_of_shards(tensors(rank), ranks)
                return ranks.own

            rows = self.on_each_rank(size, note)
            for found in self.on_each_rank(size, lambda rank: sampled_of_shards(tensors(rank), Rows(rank, size, rows))):
                self.assertEqual(found, [sampled_bytes(t) for t in wholes])

    def test_other_placements_are_refused(self) -> None:
        def check(rank: int) -> None:
            mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
            for places in ([Shard(0), Shard(1)], [Shard(0), Shard(0)], [Replicate(), Partial()]):
                shape = [8 // 2 ** places.count(Shard(0)), 8 // 2 ** places.count(Shard(1))]
                t = DTensor.from_local(torch.zeros(shape), mesh, places, run_check=False)
                with self.assertRaisesRegex(atoll.InvalidError, "'w' is split by .*fully_shard, which splits"):
                    block_of("w", t)

        self.on_each_rank(4, check)

    def test_strided_shards_are_refused(self) -> None:
        """What fully_shard makes of a tensor that tensor parallelism has cut in the same dimension."""
        from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module

        def check(rank: int) -> None:
            mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
            model = parallelize_module(nn.Linear(8, 8), mesh["tp"], ColwiseParallel())
            fully_shard(model, mesh=mesh["dp"])
            with self.assertRaisesRegex(atoll.InvalidError, "'weight' is split by .*as tensor parallelism does"):
                TorchModel(model, ranks=Rows(rank, 4))

        self.on_each_rank(4, check)

    def test_model(self) -> None:
        """Names, the class in config.json, and an optimizer of parameters that the model had before."""
        def check(rank: int) -> None:
            model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
            model.config = SimpleNamespace(to_json_string=lambda use_diff: "{}")
            early = torch.optim.SGD(model.parameters(), 0.1)
            fully_shard(model)
            self.assertEqual(json.loads(model_files(model)["config.json"]), {"architectures": ["Sequential"]})
            found = TorchModel(model, ranks=Rows(rank, 2))
            self.assertEqual([t.shape for t in found.tensors], [(4, 4), (4,), (4, 4), (4,)])
            found.set_optimizers([torch.optim.SGD(model.parameters(), 0.1)])
            with self.assertRaisesRegex(atoll.InvalidError, "had before fully_shard: make the optimizer after it"):
                found.set_optimizers([early])
            before = found.version(by_value=False), found.version(by_value=True)
            self.assertEqual((found.version(by_value=False), found.version(by_value=True)), before)
            with torch.no_grad():
                for p in model.parameters():
                    p.add_(1)
            self.assertNotEqual(found.version(by_value=False), before[0])
            self.assertNotEqual(found.version(by_value=True), before[1])

        self.on_each_rank(2, check)
        self.assertEqual(clean("h.0._checkpoint_wrapped_module._orig_mod.ln.weight"), "h.0.ln.weight")

    def test_a_part_of_the_processes(self) -> None:
        """A mesh that leaves out the processes which hold the rest."""
        dist.init_process_group("fake", rank=0, world_size=4, store=FakeStore())
        try:
            ranks = Rows(0, 4)
            ranks.call = lambda function, serve=None: function()  # type: ignore[method-assign]
            mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("a", "b"))
            found = TorchModel(fully_shard(nn.Linear(4, 4), mesh=mesh["b"]), ranks=ranks)
            with self.assertRaisesRegex(atoll.InvalidError, "hold only a part of parameter 'weight': give fully_shard"):
                found.share()  # each row that it gathers is its own
        finally:
            dist.destroy_process_group()


class Memory(unittest.TestCase):
    def test_no_memory(self) -> None:
        """It is said before anything is written there, and nothing is left open."""
        before = os.listdir("/proc/self/fd")
        lack = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        with mock.patch.object(os, "posix_fallocate", side_effect=lack):
            with self.assertRaisesRegex(atoll.Error, "no memory for the parameters .*.12.3 kB.: No space left"):
                Segment(1000, Rows(0, 2))
        self.assertEqual(os.listdir("/proc/self/fd"), before)

    def test_another_file(self) -> None:
        """A file of the same size without the proof is not the memory of rank 0."""
        n = 1000
        mine = Segment(n, Rows(0, 2, [b"1", b"1"]))
        self.assertEqual((mine.remote, mine.theta.size, mine.change.any()), ([], n, False))
        with tempfile.NamedTemporaryFile() as other:
            other.truncate(mine.memory.nbytes)
            ranks = Rows(1, 2, [b"1", b"0"])
            ranks.call = lambda function, serve=None: b"x" * 16 + other.name.encode()  # type: ignore[method-assign]
            theirs = Segment(n, ranks)
        self.assertEqual((theirs.theta, theirs.remote, ranks.own), (None, [1], b"0"))
        ranks.call = lambda function, serve=None: b"x" * 16 + b"/proc/1/fd/nothing"  # type: ignore[method-assign]
        self.assertIsNone(Segment(n, ranks).theta)


class Shares(unittest.TestCase):
    def test_replicas_that_differ(self) -> None:
        """Only ranks with the same block are compared."""
        rows = [np.array([[1, 10], [7, 3]], np.uint64), np.array([[2, 11], [7, 3]], np.uint64),
                np.array([[1, 10], [7, 3]], np.uint64)]
        self.assertIsNone(differing_replicas(rows))
        rows[2] = np.array([[1, 12], [7, 3]], np.uint64)
        self.assertEqual(differing_replicas(rows), (0, 2, 0))

    def test_parts(self) -> None:
        """Each part counts once; together: all ranks evaluate equally many, and at each turn parts of one size."""
        for count, part, size, together in itertools.product(range(1, 30), (1, 4), (1, 2, 3), (False, True)):
            task = _lib.Evaluation(0, count, part, -(-count // part))
            turns = [list(shared_parts(task, Rows(rank, size), together)) for rank in range(size)]
            counted = sorted(p for listed in turns for p, counts in listed if counts)
            self.assertEqual(counted, list(range(task.n_parts)))
            if together:
                self.assertEqual(len({len(listed) for listed in turns}), 1)
                for turn in zip(*turns):
                    self.assertEqual(len({min(part, count - p * part) for p, _ in turn}), 1)


if __name__ == "__main__":
    unittest.main()
