"""Tensors that are not exchanged and must be the same on all workers: frozen parameters, tables and masks."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from .. import _lib
from .ranks import Ranks
from .sampled import sampled_or_none
from .shards.blocks import assemble, is_sharded, local
from .shards.samples import sampled_of_shards
from .state import is_plain

logger = logging.getLogger("atoll")

_NAMES = {  # types as safetensors names them
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.int64: "I64",
    torch.int32: "I32", torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8", torch.bool: "BOOL",
    torch.float8_e4m3fn: "F8_E4M3", torch.float8_e5m2: "F8_E5M2",
}


def _is_readable(t: Any) -> bool:
    """A tensor whose bytes can be copied: no quantized subclass, not on the meta device."""
    t = local(t) if is_sharded(t) else t
    return is_plain(t) and t.device.type != "meta" and t.layout == torch.strided and t.dtype in _NAMES


class FrozenTensors:
    """tensors: (name, tensor). names: name of a tensor -> its name in the run. in_files: checkpoints hold them.

    `listed` is what the coordinator compares: 64 numbers of each tensor, spread over it, stand for its values. A tensor
    that cannot be read (a quantized subclass) is compared by type and shape alone. Tensors in shards are sampled, and
    read, by all ranks together.
    """

    def __init__(self, tensors: list[tuple[str, Any]], names: Mapping[str, str], in_files: bool, ranks: Ranks) -> None:
        self.names = frozenset(name for name, _ in tensors)
        self._tensors, self._ranks = tensors, ranks
        shards = [(name, t) for name, t in tensors if is_sharded(t) and _is_readable(t)]
        samples = dict(zip((name for name, _ in shards), sampled_of_shards(shards, ranks)))
        self.listed = [
            _listed(names.get(name, name), t, samples.get(name, b"") if is_sharded(t) else sampled_or_none(t))
            for name, t in tensors
        ]
        unreadable = next((name for name, t in tensors if not _is_readable(t)), None)
        self.in_files = bool(tensors) and in_files and unreadable is None
        if in_files and unreadable is not None:
            logger.warning("checkpoints leave out the frozen tensors of the model: '%s' is a %s", unreadable,
                           type(dict(tensors)[unreadable]).__name__)
        self._held: tuple[int, np.ndarray] | None = None  # the tensor that is read at present, as bytes

    def read(self, number: int, offset: int, out: memoryview) -> None:
        """On rank 0: fills `out` with the bytes of a tensor from `offset` on."""
        if self._held is None or self._held[0] != number:
            name, t = self._tensors[number]
            if is_sharded(t):
                self._ranks.ask(b"%d" % number)
            whole = assemble(name, t, self._ranks)
            self._held = number, whole.contiguous().reshape(-1).view(torch.uint8).numpy()
        data = self._held[1]
        out[:] = memoryview(data[offset : offset + len(out)]).cast("B")
        if offset + len(out) == len(data):
            self._held = None

    def serve(self, request: bytes) -> None:
        """On the other ranks: gives rank 0 its part of a tensor that it reads."""
        assemble(*self._tensors[int(request)], self._ranks)


def _listed(name: str, t: Any, sampled: bytes) -> _lib.Frozen:
    dtype = _NAMES.get(t.dtype, str(t.dtype).removeprefix("torch.").upper()[:15])
    digest = hashlib.blake2b(sampled, digest_size=8).digest()
    size = t.numel() * t.dtype.itemsize if _is_readable(t) else 0
    return _lib.Frozen(name, dtype, tuple(t.shape), size, int.from_bytes(digest, "little"))
