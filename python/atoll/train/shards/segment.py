"""theta and change of one worker, in memory that all its processes on this host map."""

from __future__ import annotations

import mmap
import os
from typing import Any

import numpy as np

from ..._lib import Error
from ...units import bytes_text
from ..ranks import Ranks

_PAGE = 4096  # bytes of the head; theta and change begin at a multiple of it
_PROOF = 16  # bytes of a random number in the head


def _rounded(size: int) -> int:
    return -(-size // _PAGE) * _PAGE


class Segment:
    """theta and change, [n] float32 each: first zeros. All ranks make it together.

    Rank 0 makes the memory (memfd_create), and the other ranks open it by /proc. A random number proves that they found
    the same one. A rank that does not is on another host, or in another container: there `theta` and `change` are None.
    remote: these ranks, on every rank.
    """

    theta: np.ndarray | None = None
    change: np.ndarray | None = None

    def __init__(self, n: int, ranks: Ranks) -> None:
        self._n, self._size = n, _PAGE + 2 * _rounded(4 * n)
        if ranks.size == 1:
            self._map_alone()
            self.remote: list[int] = []
            return
        self._fd = -1
        try:
            found = ranks.call(self._make)
            proof, place = found[:_PROOF], found[_PROOF:].decode()
            if ranks.rank:
                self._fd = _open(place)
            opened = self._fd >= 0 and self._map(self._fd, proof)
            seen = ranks.gather(b"1" if opened else b"0")
            self.remote = [rank for rank, flag in enumerate(seen) if flag != b"1"]
        finally:
            if self._fd >= 0:
                os.close(self._fd)  # the mappings keep the memory

    def _map_alone(self) -> None:
        """Memory of one process. A forked one does not get it, so that no page is copied while that lives."""
        memory = mmap.mmap(-1, self._size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        for advice in (mmap.MADV_DONTFORK, getattr(mmap, "MADV_HUGEPAGE", None)):
            try:
                memory.madvise(advice)
            except (OSError, TypeError):  # a kernel without it
                pass
        self._view(memory)

    def _make(self) -> bytes:
        """On rank 0: takes the memory, so that its lack is an error here. The proof, and where others find it."""
        try:
            self._fd = os.memfd_create("atoll")
            os.posix_fallocate(self._fd, 0, self._size)
        except OSError as e:
            raise Error(f"no memory for the parameters and their change, which the processes of this worker share "
                        f"({bytes_text(self._size)}): {e.strerror}") from None
        proof = os.urandom(_PROOF)
        os.pwrite(self._fd, proof, 0)
        return proof + f"/proc/{os.getpid()}/fd/{self._fd}".encode()

    def _map(self, fd: int, proof: bytes) -> bool:
        if os.fstat(fd).st_size != self._size or os.pread(fd, _PROOF, 0) != proof:
            return False
        memory = mmap.mmap(fd, self._size)
        try:
            memory.madvise(mmap.MADV_HUGEPAGE)
        except (OSError, AttributeError):
            pass
        self._view(memory)
        return True

    def _view(self, memory: Any) -> None:
        self.theta = np.frombuffer(memory, np.float32, self._n, _PAGE)
        self.change = np.frombuffer(memory, np.float32, self._n, _PAGE + _rounded(4 * self._n))
        self.memory = np.frombuffer(memory, np.uint8)

    def close(self) -> None:
        """Lets go of the memory, which ends with the last view of it."""
        self.theta = self.change = self.memory = None  # type: ignore[assignment]


def _open(place: str) -> int:
    """The descriptor of rank 0's memory; -1: it is not on this host."""
    try:
        return os.open(place, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return -1
