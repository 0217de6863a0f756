"""Token shards in llm.c's layout: the permutation that holds out documents, and a streaming writer.

A shard is 256 little-endian int32 (magic, version, token count, zeros) followed by the tokens:

==========  =======  ==============================================================================
magic       version  tokens
==========  =======  ==============================================================================
20240520    1        uint16
20240801    7        uint32
20240801    8        uint32 with a loss mask: bit 31 marks a token that gives no loss as a target
==========  =======  ==============================================================================
"""

from __future__ import annotations

import os
import re
from typing import BinaryIO

import numpy as np
import numpy.typing as npt

TOKENS_MAX = 0x7FFFFFFF  # the count is an int32
SHARDS_MAX = 60000  # a worker opens all of them
MASKED = np.uint32(0x80000000)  # bit 31: no loss on this token as a target
_HEADS = {(2, False): (20240520, 1), (4, False): (20240801, 7), (4, True): (20240801, 8)}

_U64 = npt.NDArray[np.uint64]

# --- the permutation of common/base/rng.c -----------------------------------------------------------------------------

_LOW = np.uint64(0xFFFFFFFF)
_WORD = np.uint64(32)


def _random(seed: int, stream: int, counter: _U64) -> _U64:
    """Philox4x32-10: uint64 [n] for counters [n]; the same numbers as rng_u64 in C."""
    c0, c1 = counter & _LOW, counter >> _WORD
    c2, c3 = np.full_like(counter, stream), np.zeros_like(counter)
    k0, k1 = seed & 0xFFFFFFFF, seed >> 32
    for _ in range(10):
        p0, p1 = np.uint64(0xD2511F53) * c0, np.uint64(0xCD9E8D57) * c2
        c0, c2 = (p1 >> _WORD) ^ c1 ^ np.uint64(k0), (p0 >> _WORD) ^ c3 ^ np.uint64(k1)
        c1, c3 = p1 & _LOW, p0 & _LOW
        k0, k1 = (k0 + 0x9E3779B9) & 0xFFFFFFFF, (k1 + 0xBB67AE85) & 0xFFFFFFFF
    return c1 << _WORD | c0


def permute(seed: int, epoch: int, k: _U64, n: int) -> _U64:
    """Maps indices k [m], each below n, to a permutation of [0, n) keyed by (seed, epoch): rng_permute in C."""
    if n < 2:
        return np.zeros_like(k)
    order = 2  # RNG_ORDER
    half = ((n - 1).bit_length() + 1) // 2
    mask, shift = np.uint64((1 << half) - 1), np.uint64(half)
    key = int(_random(seed, order, np.array([epoch], np.uint64))[0])
    x = k.astype(np.uint64)
    todo = np.arange(len(x))
    while len(todo):
        left, right = x[todo] >> shift, x[todo] & mask
        for step in range(4):
            left, right = right, left ^ (_random(key, order, right << np.uint64(2) | np.uint64(step)) & mask)
        x[todo] = left << shift | right
        todo = todo[x[todo] >= n]
    return x


# --- writing ----------------------------------------------------------------------------------------------------------


class ShardWriter:
    """Writes FOLDER/NAME_000000.bin, FOLDER/NAME_000001.bin, ...; each shard is complete when the next one begins.

    :param width: bytes of a token, 2 or 4.
    :param masked: the tokens carry bit 31 (MASKED); needs width 4.
    :param shard_tokens: tokens of a shard; the last one has the rest.
    """

    def __init__(self, folder: str, name: str, width: int, masked: bool, shard_tokens: int) -> None:
        self.folder, self.name, self.masked, self.shard_tokens = folder, name, masked, shard_tokens
        self.dtype = np.dtype("<u2" if width == 2 else "<u4")
        self.n_tokens = 0
        self.n_shards = 0
        self._file: BinaryIO | None = None
        self._in_shard = 0

    def put(self, tokens: npt.NDArray[np.unsignedinteger]) -> None:
        """Appends tokens [n]. OSError."""
        tokens = np.ascontiguousarray(tokens, self.dtype)
        while len(tokens):
            if not self._file:
                self._begin()
            assert self._file
            part = tokens[: self.shard_tokens - self._in_shard]
            self._file.write(part.data)
            self._in_shard += len(part)
            self.n_tokens += len(part)
            tokens = tokens[len(part) :]
            if self._in_shard == self.shard_tokens:
                self._end()

    def close(self) -> None:
        """Completes the last shard. A set without tokens is one shard of 0 tokens. OSError."""
        if not self._file and not self.n_shards:
            self._begin()
        if self._file:
            self._end()

    def abort(self) -> None:
        """Closes the file of an unfinished shard; the caller removes the folder."""
        if self._file:
            self._file.close()
            self._file = None

    def _begin(self) -> None:
        self._file = open(shard_path(self.folder, self.name, self.n_shards), "xb")
        self._file.write(bytes(1024))
        self.n_shards += 1
        self._in_shard = 0

    def _end(self) -> None:
        assert self._file and self._in_shard <= TOKENS_MAX
        head = np.array([*_HEADS[self.dtype.itemsize, self.masked], self._in_shard], "<i4")
        self._file.seek(0)
        self._file.write(head.tobytes())
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        self._file = None


def shard_path(folder: str, name: str, index: int) -> str:
    return os.path.join(folder, f"{name}_{index:06d}.bin")


def remove_shards(folder: str, name: str) -> None:
    """Removes the shards of this name, the last one first: after an interruption the next call finds the rest."""
    pattern = re.compile(rf"{name}_\d{{6}}\.bin")
    for entry in sorted(filter(pattern.fullmatch, os.listdir(folder)), reverse=True):
        os.unlink(os.path.join(folder, entry))
