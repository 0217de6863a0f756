"""The processes of one worker: rank 0 speaks with the coordinator, the others follow it."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from .._lib import Error


class Ranks:
    """One process: every call returns its argument."""

    rank, size = 0, 1
    alive = True  # the processes can still meet

    def numbers(self, values: list[int]) -> list[int]:
        """Sends integers of rank 0 to all ranks, which give lists of the same length."""
        return values

    def bytes(self, data: bytes | None) -> bytes:
        """Sends bytes of rank 0 to all ranks; the others give None."""
        return data or b""

    def call(self, function: Callable[[], bytes], serve: Callable[[bytes], None] | None = None) -> bytes:
        """Runs a function on rank 0. Its bytes, or its error as an Error, reach all ranks.

        serve: what the other ranks do for each request that the function makes by `ask`.
        """
        return function()

    def ask(self, request: bytes) -> None:
        """In a function that rank 0 runs by `call`: the other ranks call serve(request) now."""

    def meet(self) -> None:
        """Returns when all ranks have called it."""

    def send(self, value: Any, to: int) -> None:
        """Sends a tensor to a rank that calls receive."""
        raise NotImplementedError

    def receive(self, shape: tuple[int, ...], dtype: Any, sender: int) -> Any:
        """The tensor that a rank sends."""
        raise NotImplementedError

    def gather(self, data: bytes) -> list[bytes]:
        """The bytes of each rank, in rank order, on every rank."""
        return [data]

    def sums(self, values: np.ndarray) -> np.ndarray:
        """The sum over the ranks of [n] float64, in rank order."""
        return values

    def tensor(self, value: Any) -> None:
        """Sends a tensor of rank 0 to all ranks, in place."""


class TorchRanks(Ranks):
    """All processes of torch.distributed's default group."""

    def __init__(self) -> None:
        import torch
        import torch.distributed as dist

        self._dist, self._torch = dist, torch
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        device = "cuda" if dist.get_backend() == "nccl" else "cpu"
        self._device = torch.device(device, torch.cuda.current_device()) if device == "cuda" else torch.device(device)

    @property
    def alive(self) -> bool:  # type: ignore[override]
        return bool(self._dist.is_initialized())

    def numbers(self, values: list[int]) -> list[int]:
        t = self._torch.tensor(values, dtype=self._torch.int64, device=self._device)
        self._dist.broadcast(t, 0)
        return [int(v) for v in t.tolist()]

    def bytes(self, data: bytes | None) -> bytes:
        (size,) = self.numbers([len(data or b"")])
        t = self._torch.empty(size, dtype=self._torch.uint8, device=self._device)
        if self.rank == 0 and size:
            t.copy_(self._torch.from_numpy(np.frombuffer(data or b"", np.uint8).copy()))
        if size:
            self._dist.broadcast(t, 0)
        return t.cpu().numpy().tobytes()

    def call(self, function: Callable[[], bytes], serve: Callable[[bytes], None] | None = None) -> bytes:
        if self.rank == 0:
            try:
                data = function()
            except Exception as e:
                self.bytes(b"-" + str(e).encode())
                raise
            self.bytes(b"+" + data)
            return data
        while True:
            data = self.bytes(None)
            if data[:1] == b"-":
                raise Error(f"rank 0: {data[1:].decode()}")
            if data[:1] == b"+":
                return data[1:]
            assert serve
            serve(data[1:])

    def ask(self, request: bytes) -> None:
        self.bytes(b"?" + request)

    def meet(self) -> None:
        self.gather(b"")

    def send(self, value: Any, to: int) -> None:
        raw = value.detach().to(self._device).contiguous().reshape(-1).view(self._torch.uint8)
        if raw.numel():
            self._dist.send(raw, to)

    def receive(self, shape: tuple[int, ...], dtype: Any, sender: int) -> Any:
        value = self._torch.empty(shape, dtype=dtype, device=self._device)
        if value.numel():
            self._dist.recv(value.view(-1).view(self._torch.uint8), sender)
        return value

    def gather(self, data: bytes) -> list[bytes]:
        sizes = self._all_gather(self._torch.tensor([len(data)], dtype=self._torch.int64, device=self._device))
        longest = max(int(s) for s in sizes)
        padded = np.zeros(max(1, longest), np.uint8)
        padded[: len(data)] = np.frombuffer(data, np.uint8)
        all_bytes = self._all_gather(self._torch.from_numpy(padded).to(self._device))
        return [t.cpu().numpy().tobytes()[: int(size)] for t, size in zip(all_bytes, sizes)]

    def sums(self, values: np.ndarray) -> np.ndarray:
        rows = [np.frombuffer(row, np.float64) for row in self.gather(np.ascontiguousarray(values).tobytes())]
        total = np.zeros_like(rows[0])
        for row in rows:
            total += row
        return total

    def tensor(self, value: Any) -> None:
        t = value.data
        if t.device.type == self._device.type and t.is_contiguous():
            self._dist.broadcast(t, 0)
            return
        copy = t.to(self._device).contiguous()
        self._dist.broadcast(copy, 0)
        t.copy_(copy)

    def _all_gather(self, t: Any) -> list[Any]:
        out = [self._torch.empty_like(t) for _ in range(self.size)]
        self._dist.all_gather(out, t)
        return out


def is_of_lost_process(error: BaseException | None) -> bool:
    """A collective failed, because another process of this worker has ended or is not reached."""
    dist = getattr(sys.modules.get("torch"), "distributed", None)
    while error is not None and dist is not None and dist.is_available():
        backend = isinstance(error, RuntimeError) and re.search(r"gloo|nccl|ProcessGroup", str(error), re.IGNORECASE)
        if backend or isinstance(error, getattr(dist, "DistError", ())):
            return True
        error = error.__cause__ or error.__context__
    return False


def ranks() -> Ranks:
    """The ranks of this program: those of torch.distributed if it is initialized with several processes."""
    torch = sys.modules.get("torch")
    if torch and torch.distributed.is_available() and torch.distributed.is_initialized():
        if torch.distributed.get_world_size() > 1:
            return TorchRanks()
    return Ranks()
