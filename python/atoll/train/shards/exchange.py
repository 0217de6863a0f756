"""Moves the parameters of a program to theta and change of its worker, and back: each process its own blocks."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import torch

from ..._lib import MEAN, InvalidError
from ..ranks import Ranks
from .blocks import Block, blocks_of_ranks, holders, is_sharded, local, pieces
from .segment import Segment

logger = logging.getLogger("atoll")

_HALVES = (torch.bfloat16, torch.float16)


class Exchange:
    """entries: objects with tensor, name, flags, shape, dtype and block. The block is that of this rank.

    Each block has one rank that writes it: a replica on rank 0's host if there is one. Ranks on other hosts send their
    blocks to rank 0, and get them from it, one by one. All ranks call each function at the same time.
    """

    def __init__(self, entries: list[Any], ranks: Ranks) -> None:
        self._entries, self._ranks = entries, ranks
        sizes = [int(np.prod(e.shape)) for e in entries]
        self.segment = Segment(sum(sizes), ranks)
        self._offsets, self._changes = [0, *np.cumsum(sizes[:-1])], False
        by_rank = blocks_of_ranks([e.block for e in entries], ranks)
        remote = self.segment.remote
        order = [r for r in range(ranks.size) if r not in remote] + remote
        self._blocks = [[row[i] for row in by_rank] for i in range(len(entries))]  # [tensor][rank]
        self._writers = [holders(blocks, order) for blocks in self._blocks]
        for e, blocks, writers, size in zip(entries, self._blocks, self._writers, sizes):
            if sum(blocks[r].numel for r in writers) != size:
                raise InvalidError(
                    f"the processes of this worker hold only a part of parameter '{e.name}': give fully_shard a mesh "
                    "of all processes, or start one worker for each group of processes"
                )
        if remote and ranks.rank == 0:
            logger.info("%d of %d processes are on other hosts: their parameters go by way of rank 0", len(remote),
                        ranks.size)
        devices = {local(e.tensor).device for e in entries}
        self._streams: dict[Any, Any] = {d: torch.cuda.Stream(d) for d in devices if d.type == "cuda"}
        self._registered = False
        if self._streams and self.segment.theta is not None:  # pinned, so that copies run beside the program
            memory = self.segment.memory
            result = torch.cuda.cudart().cudaHostRegister(memory.ctypes.data, memory.nbytes, 0)
            self._registered = int(result) == 0

    def place(self, offsets: list[int], changes: bool) -> None:
        """offsets: of each tensor in theta and change. changes: the library takes theta - trained, of means the values.
        """
        self._offsets, self._changes = offsets, changes

    def close(self) -> None:
        """The worker has left the run."""
        if self._registered:
            torch.cuda.cudart().cudaHostUnregister(self.segment.memory.ctypes.data)
        self._registered = False
        self.segment.close()

    def follow(self) -> None:
        """The tensors may be on other devices than before."""
        for device in {d for d in (local(e.tensor).device for e in self._entries) if d.type == "cuda"}:
            if device not in self._streams:
                self._streams[device] = torch.cuda.Stream(device)

    def _part(self, flat: Any, i: int, block: Block) -> torch.Tensor:
        """A block of tensor i in theta or change."""
        shape, at = self._entries[i].shape, self._offsets[i]
        return block.of(torch.from_numpy(flat[at : at + int(np.prod(shape))]).view(shape))

    @contextmanager
    def _copying(self) -> Iterator[None]:
        """Copies of this block run on a side stream, after the work so far; they are finished at its end."""
        with ExitStack() as streams:
            for device, side in self._streams.items():
                side.wait_stream(torch.cuda.current_stream(device))
                streams.enter_context(torch.cuda.stream(side))
            with torch.no_grad():
                yield
            for side in self._streams.values():
                side.synchronize()

    # --- to the run -------------------------------------------------------------------------------------------------

    def put(self, initial: bool = False) -> None:
        """The end of a round: what this worker changed, or trained. initial: the parameters before the run.

        If a number of any rank is not finite, nothing is added, and the library gets it to see.
        """
        bad = -1 if initial else self._nonfinite()
        if bad >= 0:
            if self.segment.change is not None and self._ranks.rank == 0:
                self.segment.change[self._offsets[bad]] = np.nan
            return
        here = self.segment.theta is not None
        with self._copying():
            for i, e in enumerate(self._entries):
                if here and self._ranks.rank in self._writers[i]:
                    self._put_block(i, e.block, local(e.tensor), initial)
            for i, e in enumerate(self._entries):
                for rank in self._writers[i]:
                    if rank in self.segment.remote:
                        self._put_remote(i, rank, initial)
        self._ranks.meet()

    def _put_remote(self, i: int, rank: int, initial: bool) -> None:
        e, block = self._entries[i], self._blocks[i][rank]
        if self._ranks.rank == rank:
            self._ranks.send(local(e.tensor), 0)
        elif self._ranks.rank == 0:
            self._put_block(i, block, self._ranks.receive(block.size, e.dtype, rank), initial)

    def _put_block(self, i: int, block: Block, trained: torch.Tensor, initial: bool) -> None:
        theta, change = (self._part(flat, i, block) for flat in (self.segment.theta, self.segment.change))
        adds = self._changes and not self._entries[i].flags & MEAN
        for start, to, t in pieces(theta if self._changes or initial else change, change, trained):
            if initial:
                start.copy_(t, non_blocking=True)
            elif adds:
                _add_change(to, start, t)
            else:
                _write_trained(to, start, t)

    def _nonfinite(self) -> int:
        """The first tensor of which any rank holds NaN or infinity; -1: there is none."""
        with self._copying():
            flags: dict[Any, list[tuple[int, torch.Tensor]]] = {}
            for i, e in enumerate(self._entries):
                for (piece,) in pieces(local(e.tensor)):
                    flags.setdefault(piece.device, []).append((i, piece.sum().isfinite()))
            suspects = {i for listed in flags.values()
                        for (i, _), fine in zip(listed, torch.stack([f for _, f in listed]).tolist()) if not fine}
            # A finite sum has finite terms. Another one may be an overflow.
            bad = next((i for i in sorted(suspects) for (piece,) in pieces(local(self._entries[i].tensor))
                        if not bool(piece.isfinite().all())), -1)
        found = [int(row) for row in self._ranks.gather(b"%d" % bad)]
        return min((i for i in found if i >= 0), default=-1)

    # --- from the run -----------------------------------------------------------------------------------------------

    def take(self, begin: bool) -> None:
        """The run's parameters, rounded to the type of each tensor. begin: those that the round starts from."""
        flat = self.segment.change if begin and not self._changes else self.segment.theta
        remote = self.segment.remote
        with self._copying():
            for i, e in enumerate(self._entries):
                if flat is not None and e.block.numel:
                    for t, start in pieces(local(e.tensor), self._part(flat, i, e.block)):
                        t.copy_(start.to(t.device, non_blocking=True))
            for i, e in enumerate(self._entries) if remote else ():
                if is_sharded(e.tensor):
                    self._take_remote(i, flat)
        if remote:
            for e in self._entries:
                if not is_sharded(e.tensor):
                    self._ranks.tensor(e.tensor)
        if begin:
            self._ranks.meet()  # the library may write to theta after it

    def _take_remote(self, i: int, flat: Any) -> None:
        e = self._entries[i]
        for rank in self.segment.remote:
            block = self._blocks[i][rank]
            if not block.numel:
                continue
            if self._ranks.rank == 0:
                self._ranks.send(self._part(flat, i, block).to(e.dtype), rank)
            elif self._ranks.rank == rank:
                local(e.tensor).copy_(self._ranks.receive(block.size, e.dtype, 0))


def _add_change(change: torch.Tensor, theta: torch.Tensor, t: torch.Tensor) -> None:
    """change += theta - t. Halves started from the rounded theta, so that an unchanged one adds zero."""
    start = theta.to(t.device, non_blocking=True)
    if t.dtype in _HALVES:
        start = start.to(t.dtype).float()
    moved = start - t.float()
    if moved.device == change.device:
        change += moved
    else:
        change.copy_(change.to(t.device, non_blocking=True) + moved, non_blocking=True)


def _write_trained(change: torch.Tensor, start: torch.Tensor, t: torch.Tensor) -> None:
    """change = t. For halves it is the fp32 value that they started from, and what t changed."""
    if t.dtype not in _HALVES:
        change.copy_(t, non_blocking=True)
        return
    begun = start.to(t.device, copy=True, non_blocking=True)
    begun += t.float() - begun.to(t.dtype).float()
    change.copy_(begun, non_blocking=True)
