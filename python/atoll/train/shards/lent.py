"""A handle of the library whose parameters lie in theta and change, until the library itself takes these."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from ... import _lib


class Lent:
    """handle: with `params`. theta, change: [n] float32, as include/atoll.h says of options.theta and options.change."""

    def __init__(self, handle: Any, tensors: Any, theta: np.ndarray, change: np.ndarray) -> None:
        self._handle, self._theta, self._change, self._joined = handle, theta, change, False
        self._sizes = [int(np.prod(t.shape)) for t in tensors]
        self.exchanges = os.environ.get("LENT") != "changes"

    def __getattr__(self, name: str) -> Any:
        return getattr(self._handle, name)

    def offset(self, i: int) -> int:
        return sum(self._sizes[:i])

    def wait(self, ms: int) -> int:
        if not self._joined:
            self._handle.params[:] = self._theta
            self._joined = True
        event = self._handle.wait(ms)
        if event in (_lib.EVALUATE, _lib.DONE):
            self._theta[:] = self._handle.params
        return event

    def begin(self) -> Any:
        round = self._handle.begin()
        self._theta[:] = self._handle.params
        self._change[:] = self._theta if self.exchanges else 0
        return round

    def push(self) -> None:
        self._handle.params[:] = self._change if self.exchanges else self._theta - self._change
        self._handle.push()
