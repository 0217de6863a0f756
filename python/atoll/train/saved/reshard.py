"""What a process takes from saved values: its own parts of sharded tensors, also those of another number of processes.

Saved values hold a Piece where a tensor was sharded. `merged` puts the values of all processes together, `fitted` makes
the tensors of this process from them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..sampled import all_bytes
from .values import Piece, is_shard

Template = Callable[[tuple[Any, ...], Any], Any]
"""(path, saved tensor or pieces) -> a tensor of the program whose mesh and placements it gets, or None."""


class Pieces:
    """The parts of one tensor that all processes held."""

    def __init__(self, pieces: Sequence[Piece]) -> None:
        self.shape, self.placements = pieces[0].shape, pieces[0].placements
        self.pieces = {(p.start, tuple(p.tensor.shape)): p for p in pieces}.values()  # replicas once


def _same(a: Any, b: Any) -> bool:
    torch = sys.modules.get("torch")
    if type(a) is not type(b):
        return False
    if isinstance(a, (np.ndarray, np.generic)) or torch and isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and a.shape == b.shape and all_bytes(a) == all_bytes(b)
    return bool(a == b) or (a != a and b != b)


def merged(values: Sequence[Any], where: str) -> Any:
    """One value of those that the processes saved. Raises ValueError where they differ and are no parts of a tensor."""
    first = values[0]
    if isinstance(first, Piece) and all(isinstance(v, Piece) and v.shape == first.shape for v in values):
        return Pieces(values)
    if type(first) is dict and all(type(v) is dict and list(v) == list(first) for v in values):
        return {k: merged([v[k] for v in values], f"{where}[{k!r}]") for k in first}
    if type(first) in (list, tuple) and all(type(v) is type(first) and len(v) == len(first) for v in values):
        return type(first)(merged(list(items), f"{where}[{i}]") for i, items in enumerate(zip(*values)))
    in_parts = isinstance(first, Piece) or type(first) in (dict, list, tuple)
    if not in_parts and all(_same(first, v) for v in values):
        return first
    raise ValueError(f"{where} differs between them, and is no part of a sharded tensor")


def _copied(pieces: Sequence[Piece], start: Sequence[int], size: Sequence[int], where: str) -> Any:
    """The block of a tensor, put together from pieces. Raises ValueError if they do not hold all of it."""
    torch = sys.modules["torch"]
    out, found = torch.empty(tuple(size), dtype=pieces[0].tensor.dtype), 0
    for p in pieces:
        begin = [max(a, b) for a, b in zip(start, p.start)]
        end = [min(a + n, b + m) for a, n, b, m in zip(start, size, p.start, p.tensor.shape)]
        if any(a >= b for a, b in zip(begin, end)):
            continue
        here, there = (tuple(slice(a - o, b - o) for a, b, o in zip(begin, end, origin))
                       for origin in (start, p.start))
        out[here].copy_(p.tensor[there])
        found += int(np.prod([b - a for a, b in zip(begin, end)]))
    if found != out.numel():
        raise ValueError(f"{where} is not whole: its parts have {found} of {out.numel()} numbers")
    return out


def _shard(pieces: Any, template: Any, placements: Any, where: str) -> Any:
    """A DTensor on the mesh of the template, with the part of this process."""
    from torch.distributed.tensor import DTensor

    from ..shards.blocks import block_of, local

    torch = sys.modules["torch"]
    shape = torch.Size(pieces.shape)
    stride = torch.empty(shape, device="meta").stride()
    if tuple(template.shape) == tuple(shape):
        block = block_of(where, template)
        part = _copied(list(pieces.pieces), block.start, block.size, where)
    else:  # factors of an optimizer: on a mesh of the same size they stay as they were
        if len(pieces.pieces) != 1:
            raise ValueError(f"{where} has the shape {list(shape)}, and its parameter {list(template.shape)}")
        part = next(iter(pieces.pieces)).tensor.clone()
    part = part.to(local(template).device)
    return DTensor.from_local(part, template.device_mesh, placements, run_check=False, shape=shape, stride=stride)


def _placements(pieces: Any, template: Any, where: str) -> Any:
    from torch.distributed.tensor import Replicate, Shard

    if tuple(template.shape) == tuple(pieces.shape):
        return template.placements
    if len(pieces.placements) != template.device_mesh.ndim:
        raise ValueError(f"{where} was split over a mesh of other dimensions")
    return [Replicate() if d < 0 else Shard(d) for d in pieces.placements]


def fitted(value: Any, template: Template, where: str, path: tuple[Any, ...] = ()) -> Any:
    """The value with the tensors of this process. Raises ValueError for what the program has no tensor for."""
    torch = sys.modules.get("torch")
    if isinstance(value, Piece):
        value = Pieces([value])
    if type(value) is dict:
        return {k: fitted(v, template, f"{where}[{k!r}]", (*path, k)) for k, v in value.items()}
    if type(value) in (list, tuple):
        return type(value)(fitted(v, template, f"{where}[{i}]", (*path, i)) for i, v in enumerate(value))
    if isinstance(value, Pieces):
        like = template(path, value)
        if like is None:
            raise ValueError(f"{where} was a sharded tensor, and the script has none there")
        if is_shard(like):
            return _shard(value, like, _placements(value, like, where), where)
        if tuple(like.shape) != tuple(value.shape):
            raise ValueError(f"{where} has the shape {list(value.shape)}, and the script's {list(like.shape)}")
        return _copied(list(value.pieces), [0] * len(value.shape), value.shape, where)
    if torch and isinstance(value, torch.Tensor) and value.ndim and not is_shard(value):
        like = template(path, value)
        if like is not None and is_shard(like) and tuple(like.shape) == tuple(value.shape):
            whole = Pieces([Piece(tuple(value.shape), (0,) * value.ndim, (), value)])
            return _shard(whole, like, like.placements, where)
    return value


def template_of(current: Any, parameters: Sequence[Any]) -> Template:
    """Templates from the value that the program has now in the same place.

    A sharded tensor without one, such as an average that the first step makes, gets the shards of a parameter of its
    shape. It is whole if no parameter is sharded.
    """

    def find(path: tuple[Any, ...], value: Any) -> Any:
        at = current
        for key in path:
            try:
                at = at[key]
            except (KeyError, IndexError, TypeError):
                at = None
        if hasattr(at, "shape") or not isinstance(value, Pieces):
            return at if hasattr(at, "shape") else None
        same = [p for p in parameters if tuple(p.shape) == tuple(value.shape)]
        whole = not any(is_shard(p) for p in parameters)
        return same[0] if same else sys.modules["torch"].empty(value.shape, device="meta") if whole else None

    return find


def template_of_optimizer(optimizer: Any, saved: Any) -> Template:
    """Templates of an optimizer's state: the parameter that it belongs to, by its place in the groups."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    ids = [i for group in saved.get("param_groups", ()) for i in group.get("params", ())]
    of = dict(zip(ids, parameters))

    def find(path: tuple[Any, ...], value: Any) -> Any:
        if len(path) < 3 or path[0] != "state":
            return None
        parameter = of.get(path[1])
        if parameter is None:
            return None
        sharded = isinstance(value, Pieces)
        return parameter if sharded or tuple(parameter.shape) == tuple(value.shape) else None

    return find
