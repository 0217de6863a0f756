"""Which part of each tensor this process holds: of DTensors that fully_shard made, and of plain tensors."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch

from ..._lib import InvalidError
from ..ranks import Ranks

# Numbers that are worked on at a time: temporary tensors have at most this size, or that of one row. On a CPU they stay
# in its cache, and malloc keeps their memory.
_ROWS, _ROWS_CPU = 1 << 24, 1 << 20
_WRAPPERS = {"_checkpoint_wrapped_module", "_orig_mod"}  # of activation checkpointing, and torch.compile of a layer


def clean(name: str) -> str:
    """A tensor's name without the wrappers of modules, as files have it."""
    return ".".join(part for part in name.split(".") if part not in _WRAPPERS)


class Block(NamedTuple):
    """A part of a tensor: `size` numbers from `start` on, in each dimension."""

    start: tuple[int, ...]
    size: tuple[int, ...]

    @property
    def numel(self) -> int:
        return int(np.prod(self.size))

    def of(self, whole: Any) -> Any:
        """The part of a tensor, as a view."""
        return whole[tuple(slice(a, a + n) for a, n in zip(self.start, self.size))] if self.size else whole


def is_sharded(t: Any) -> bool:
    """A DTensor: each process holds a part of it."""
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(t, module.DTensor)


def local(t: Any) -> Any:
    """The part of a tensor that this process holds, with the same memory, and without its graph."""
    if not is_sharded(t):
        return t.detach()
    with torch.no_grad():
        return t.to_local().detach()


def block_of(name: str, t: Any) -> Block:
    """The part of tensor `name` that this process holds. Raises InvalidError for one that fully_shard does not make.

    A dimension of n numbers over m processes is cut as torch.chunk does: into parts of ceil(n / m), the last ones
    smaller or empty.
    """
    start, size = [0] * t.ndim, list(t.shape)
    if not is_sharded(t):
        return Block(tuple(start), tuple(size))
    from torch.distributed.tensor import Replicate, Shard

    cut = [p for p in t.placements if type(p) is not Replicate]
    at = t.device_mesh.get_coordinate()
    if len(cut) > 1 or any(type(p) is not Shard for p in cut) or at is None:
        _refuse(name, t)
    for place, parts, mine in zip(t.placements, t.device_mesh.shape, at):
        if type(place) is Shard:
            n = size[place.dim]
            length = -(-n // parts)
            start[place.dim] = min(mine * length, n)
            size[place.dim] = min(length, n - start[place.dim])
    if list(local(t).shape) != size:
        _refuse(name, t)
    return Block(tuple(start), tuple(size))


def _refuse(name: str, t: Any) -> None:
    places = ", ".join(str(p) for p in t.placements)
    raise InvalidError(
        f"parameter '{name}' is split by ({places}), as tensor parallelism does: atoll.Worker takes models of "
        "torch.distributed.fsdp.fully_shard, which splits each tensor once, alone or with replicas (HSDP)"
    )


def blocks_of_ranks(mine: list[Block], ranks: Ranks) -> list[list[Block]]:
    """[size][n tensors] the blocks of each rank, on every rank."""
    if ranks.size == 1:
        return [mine]
    numbers = np.array([x for b in mine for x in (*b.start, *b.size)], np.int64)
    found = []
    for row in ranks.gather(numbers.tobytes()):
        values: Iterator[int] = (int(x) for x in np.frombuffer(row, np.int64))
        found.append([Block(tuple(itertools.islice(values, len(b.start))),
                            tuple(itertools.islice(values, len(b.start)))) for b in mine])
    return found


def holders(blocks: list[Block], order: list[int]) -> list[int]:
    """The ranks that hold all of a tensor together, each number once: the first of `order` for each block."""
    found: dict[Block, int] = {}
    for rank in order:
        if blocks[rank].numel:
            found.setdefault(blocks[rank], rank)
    return sorted(found.values())


def pieces(*tensors: Any) -> Iterator[tuple[Any, ...]]:
    """Tensors of one shape, in parts of bounded size along the first dimension."""
    t = tensors[0]
    if not t.ndim:
        yield tensors
        return
    most = _ROWS_CPU if all(x.device.type == "cpu" for x in tensors) else _ROWS
    rows = max(1, most // max(1, t.numel() // max(1, t.shape[0])))
    for at in range(0, t.shape[0], rows):
        yield tuple(x[at : at + rows] for x in tensors)


def assemble(name: str, t: Any, ranks: Ranks) -> Any:
    """A whole tensor in host memory on rank 0; None on the others. All ranks call it."""
    if not is_sharded(t):
        return local(t).cpu() if ranks.rank == 0 else None
    blocks = [row[0] for row in blocks_of_ranks([block_of(name, t)], ranks)]
    out = torch.empty(tuple(t.shape), dtype=t.dtype) if ranks.rank == 0 else None
    for rank in holders(blocks, list(range(ranks.size))):
        if ranks.rank == 0:
            part = local(t) if rank == 0 else ranks.receive(blocks[rank].size, t.dtype, rank)
            blocks[rank].of(out).copy_(part)
        elif ranks.rank == rank:
            ranks.send(local(t), 0)
    return out
