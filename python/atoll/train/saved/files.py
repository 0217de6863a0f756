"""The file of this process in the saved states of its worker: written by a thread, while training goes on or waits."""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from ctypes import POINTER, byref, c_char_p, c_size_t, c_uint32, c_uint64, c_void_p
from typing import Any

from ... import _lib
from ..ranks import Ranks
from .values import Large, Reader

_PIECE = 1 << 26  # bytes of a tensor on a device that pass through host memory at a time


class _C:
    """The functions of include/atoll.h; calls release the interpreter's lock."""

    def __init__(self) -> None:
        lib, error = _lib.library(), POINTER(_lib.c.Error)
        for name, arguments in {
            "atoll_rank_open": [POINTER(c_void_p), c_char_p, c_uint32, error],
            "atoll_rank_begin": [c_void_p, c_uint64, error],
            "atoll_rank_put": [c_void_p, c_void_p, c_size_t, error],
            "atoll_rank_end": [c_void_p, c_char_p, error],
            "atoll_rank_load": [c_char_p, c_uint32, c_uint64, POINTER(c_void_p), POINTER(c_size_t), error],
        }.items():
            getattr(lib, name).argtypes, getattr(lib, name).restype = arguments, ctypes.c_int
        lib.atoll_rank_unload.argtypes, lib.atoll_rank_unload.restype = [c_void_p, c_size_t], None
        lib.atoll_rank_close.argtypes, lib.atoll_rank_close.restype = [c_void_p], None
        self.lib = lib

    def call(self, name: str, *arguments: Any) -> None:
        error = _lib.c.Error()
        _lib.check(getattr(self.lib, name)(*arguments, byref(error)), error)


class RankFile:
    """This process's file in the folder of its worker. Raises Error if another process has its rank."""

    def __init__(self, folder: str, rank: int) -> None:
        self._c, self._r, self._thread = _C(), c_void_p(), None  # type: ignore[var-annotated]
        self._process = os.getpid()
        self._c.call("atoll_rank_open", byref(self._r), os.fsencode(folder), rank)

    def begin(self, tag: int) -> None:
        """Announces the file of the state with this tag."""
        self.join()
        self._c.call("atoll_rank_begin", self._r, tag)

    def write(self, pieces: list[Large], keep: Any) -> None:
        """Writes the bytes in a thread. `keep` holds their memory meanwhile. A failure fails the save on rank 0."""
        self._thread = threading.Thread(target=self._run, args=(pieces, keep), name="atoll save")
        self._thread.start()

    def fail(self, reason: str) -> None:
        """Gives the announced file up."""
        self._c.call("atoll_rank_end", self._r, reason.encode(errors="replace"))

    def _run(self, pieces: list[Large], _keep: Any) -> None:
        try:
            for address, size in _on_host(pieces):
                self._c.call("atoll_rank_put", self._r, address, size)
            self._c.call("atoll_rank_end", self._r, None)
        except BaseException as e:  # rank 0 logs it
            text = f"{e}" if isinstance(e, _lib.Error) else f"{type(e).__name__}: {e}"
            self._c.lib.atoll_rank_end(self._r, text.encode(errors="replace"), None)

    def join(self) -> None:
        """Waits until the file is written."""
        thread, self._thread = self._thread, None
        if thread:
            thread.join()

    def close(self) -> None:
        """Ends a file that is being written. In a forked process it does nothing."""
        if self._r and os.getpid() == self._process:
            self.join()
            self._c.lib.atoll_rank_close(self._r)
        self._r = c_void_p()


def _on_host(pieces: list[Large]) -> Iterator[tuple[int, int]]:
    """(address, size) of all bytes. Tensors on devices pass through a buffer, pinned where that is possible."""
    buffer: Any = None
    for large in pieces:
        if large.device is None:
            yield large.address, large.size
            continue
        torch = sys.modules["torch"]
        flat = large.device.reshape(-1).view(torch.uint8)
        if buffer is None:
            buffer = torch.empty(_PIECE, dtype=torch.uint8, pin_memory=flat.device.type == "cuda")
        for at in range(0, large.size, _PIECE):
            part = flat[at : at + _PIECE]
            buffer[: len(part)].copy_(part)
            yield buffer.data_ptr(), len(part)


@contextmanager
def reading(folder: str, rank: int, tag: int) -> Iterator[Reader]:
    """The values in a rank's file. Parts of sharded tensors are views that end with the block. Raises Error."""
    c, data, size = _C(), c_void_p(), c_size_t()
    c.call("atoll_rank_load", os.fsencode(folder), rank, tag, byref(data), byref(size))
    try:
        view = memoryview((ctypes.c_ubyte * size.value).from_address(data.value or 0)).cast("B")
        yield Reader(view, borrow=True)
    finally:
        c.lib.atoll_rank_unload(data, size)


def is_shared(folder: str, ranks: Ranks) -> bool:
    """Whether all processes see the folder of rank 0. All of them call it."""
    name = f"{folder}/state.shared-{os.getpid()}"
    proof = ranks.bytes(os.urandom(16) if ranks.rank == 0 else None)

    def put() -> bytes:
        with open(name, "wb") as file:
            file.write(proof)
        return name.encode()

    place = ranks.call(put)
    try:
        with open(place, "rb") as file:
            seen = file.read() == proof
    except OSError:
        seen = False
    shared = all(flag == b"1" for flag in ranks.gather(b"1" if seen else b"0"))
    if ranks.rank == 0:
        os.unlink(name)
    return shared
