"""Samples of tensors in shards: the numbers that a process which holds the whole tensor would take."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..ranks import Ranks
from ..sampled import bytes_at, sampled_places
from .blocks import block_of, local


def sampled_of_shards(tensors: list[tuple[str, Any]], ranks: Ranks) -> list[bytes]:
    """The bytes of up to 64 numbers of each (name, tensor): sampled_bytes of the whole tensor. All ranks call it."""
    if not tensors:
        return []
    mine = [_held(name, t) for name, t in tensors]
    rows = ranks.gather(b"".join(mask.tobytes() + values.tobytes() for mask, values in mine))
    out, at = [], 0
    for mask, values in mine:
        found = np.zeros_like(values)
        for row in rows:
            held = np.frombuffer(row, bool, len(mask), at)
            found[held] = np.frombuffer(row, np.uint8, values.size, at + len(mask)).reshape(values.shape)[held]
        out.append(found.tobytes())
        at += len(mask) + values.size
    return out


def _held(name: str, t: Any) -> tuple[np.ndarray, np.ndarray]:
    """[n] bool: the sampled places that lie in this process's block. [n, bytes of a number]: the values there."""
    places = sampled_places(tuple(t.shape))
    mask, values = np.zeros(len(places), bool), np.zeros((len(places), t.dtype.itemsize), np.uint8)
    block, part = block_of(name, t), local(t)
    if places and part.numel():
        where = np.stack(np.unravel_index(np.asarray(places), tuple(t.shape))) if t.ndim else np.zeros((0, 1), np.int64)
        start, size = (np.array(x, np.int64)[:, None] for x in block)
        mask = np.all((where >= start) & (where < start + size), axis=0)
        if mask.any():
            data = bytes_at(part, list((where - start)[:, mask]))
            values[mask] = np.frombuffer(data, np.uint8).reshape(-1, values.shape[1])
    return mask, values
