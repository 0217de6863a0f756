"""A model whose parameters are a dict of numpy arrays, updated in place."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np

from .. import _lib


class NumpyModel:
    """parameters: name -> float32 array, which the program updates in place. mean: names that are averaged only."""

    devices, is_cuda, stage, hooked, frozen, sharded = "cpu", False, None, None, None, False

    def __init__(self, parameters: Mapping[str, np.ndarray]) -> None:
        self.module: Any = parameters
        self._arrays = list(parameters.values())
        for name, array in parameters.items():
            if not isinstance(array, np.ndarray) or array.dtype != np.float32:
                kind = array.dtype if isinstance(array, np.ndarray) else type(array).__name__
                raise _lib.InvalidError(f"parameter {name} is of {kind}: atoll takes float32 numpy arrays")
            if not array.flags.writeable:
                raise _lib.InvalidError(f"parameter {name} is read-only: atoll updates the arrays in place")
        if not self._arrays:
            raise _lib.InvalidError("there are no parameters: give a dict of name -> float32 array")
        self.tensors = [
            _lib.Tensor(name, array.shape, _lib.DECAY if array.ndim > 1 else 0) for name, array in parameters.items()
        ]
        self.files: dict[str, bytes] = {}
        self.objects: list[tuple[str, Any]] = []

    def share(self) -> None:
        """Makes the memory that the library borrows: a numpy program has one process."""
        n = sum(array.size for array in self._arrays)
        self._theta, self._change, self._adds = np.zeros(n, np.float32), np.zeros(n, np.float32), False
        starts = np.cumsum([0, *(array.size for array in self._arrays)])
        self._cut([int(start) for start in starts[:-1]])

    @property
    def memory(self) -> dict[str, Any]:
        """theta and change, which the library borrows."""
        return {"theta": self._theta, "change": self._change}

    def attach(self, handle: _lib.Handle) -> None:
        """The library has the memory."""

    def place(self, handle: Any) -> None:
        """The configuration of the run is known: tensors lie in the run's order."""
        self._adds = handle.exchanges == _lib.CHANGES
        self._cut([handle.offset(i) for i in range(len(self._arrays))])

    def _cut(self, starts: list[int]) -> None:
        """The arrays' parts of theta and change begin there."""
        places = [(slice(at, at + array.size), array.shape) for at, array in zip(starts, self._arrays)]
        self._slices = [self._theta[place].reshape(shape) for place, shape in places]
        self._changes = [self._change[place].reshape(shape) for place, shape in places]

    def detach(self) -> None:
        """The worker has left the run."""
        self._slices, self._changes = [], []
        self._theta = self._change = np.empty(0, np.float32)

    def follow(self) -> None:
        """Takes the arrays that the dict has now. Raises InvalidError if they are not the ones that joined."""
        if len(self.module) != len(self.tensors):
            raise _lib.InvalidError(
                "the dict has other parameters than at the join: a worker keeps those it joined with"
            )
        for i, (tensor, part) in enumerate(zip(self.tensors, self._slices)):
            now = self.module.get(tensor.name)
            if now is self._arrays[i]:
                continue
            if not isinstance(now, np.ndarray) or now.dtype != np.float32 or now.shape != part.shape:
                form = f"{now.dtype} {list(now.shape)}" if isinstance(now, np.ndarray) else type(now).__name__
                raise _lib.InvalidError(
                    f"parameter '{tensor.name}' is {form} now, and was float32 {list(part.shape)} at the join: change "
                    "it before atoll.Worker"
                )
            self._arrays[i] = now

    def put(self, initial: bool = False) -> None:
        """Hands the arrays to the run. initial: they are the first ones, and not the end of a round."""
        for array, theta, change in zip(self._arrays, self._slices, self._changes):
            if initial:
                np.copyto(theta, array)
            elif not self._adds:
                np.copyto(change, array)
            else:
                with np.errstate(invalid="ignore", over="ignore"):  # the library finds what is not finite
                    change += theta - array

    def take(self, begin: bool = False) -> None:
        """Sets the arrays to the run's parameters. begin: to those that a round starts from."""
        for array, part in zip(self._arrays, self._changes if begin and not self._adds else self._slices):
            np.copyto(array, part)

    @contextmanager
    def evaluating(self) -> Iterator[Any]:
        """The model in evaluation mode."""
        yield self.module
