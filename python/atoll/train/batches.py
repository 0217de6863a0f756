"""Batches of the samples that the coordinator leased to this worker, and data sets of token shards."""

from __future__ import annotations

import hashlib
import os
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import _lib
from . import state
from .notes import on_gpu
from .numpy_model import NumpyModel

if TYPE_CHECKING:
    from .worker import Worker

_HASHED = 32  # samples of a data set that its hash covers


class Tokens(Sequence):  # type: ignore[type-arg]
    """Token shards of `atoll prepare` as a data set: item i is (x, y), int64 arrays [block_size], y one token ahead.

    Data with a loss mask (`atoll prepare --chat`) has -100 in y where a target gives no loss, as PyTorch ignores it.

    pattern: the files, for example "data/train_*.bin". block_size: tokens of a sample. Raises InvalidError or Error.
    """

    def __init__(self, pattern: str | os.PathLike[str], block_size: int) -> None:
        self.pattern, self.block_size = os.fspath(pattern), block_size
        self._shards = _lib.TokenShards(pattern, block_size)

    def __len__(self) -> int:
        return self._shards.data.samples

    def __getitem__(self, index: Any) -> Any:
        i = int(index)
        if not -len(self) <= i < len(self):
            raise IndexError(f"sample {i} of {len(self)}")
        read = self._shards.read(i % len(self))
        masked = read[1:] & _lib.TOKEN_MASK != 0
        tokens = (read & ~_lib.TOKEN_MASK).astype(np.int64)
        return tokens[:-1], np.where(masked, -100, tokens[1:])

    def __reduce__(self) -> Any:
        return Tokens, (self.pattern, self.block_size)

    @property
    def data(self) -> _lib.Data:
        """Hash, number and length of the samples, as other workers must have them."""
        return self._shards.data


# --- what a data set and a batch hold -------------------------------------------------------------------------------


def _feed(digest: Any, value: Any) -> None:
    torch = sys.modules.get("torch")
    if torch and isinstance(value, torch.Tensor):
        value = value.detach().cpu()
        digest.update(f"{value.dtype}{list(value.shape)}".removeprefix("torch.").encode())
        digest.update(value.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes() if value.numel() else b"")
    elif isinstance(value, dict):
        for key in value:
            digest.update(f"{key}:".encode())
            _feed(digest, value[key])
    elif isinstance(value, (list, tuple)):
        digest.update(f"{len(value)};".encode())
        for item in value:
            _feed(digest, item)
    elif isinstance(value, (str, int, float, bool, type(None))):
        digest.update(f"{value!r},".encode())
    elif isinstance(value, bytes):
        digest.update(value)
    elif isinstance(value, (np.ndarray, np.generic)) or hasattr(value, "__array__"):
        array = np.asarray(value)
        digest.update(f"{array.dtype}{list(array.shape)}".encode())
        digest.update(array.tobytes() if array.dtype.kind in "biufc" else repr(array.tolist()).encode())
    else:
        digest.update(type(value).__name__.encode())


def _hash(values: list[Any]) -> int:
    digest = hashlib.blake2b(digest_size=8)
    for value in values:
        _feed(digest, value)
    return int.from_bytes(digest.digest(), "little")


def check_dataset(dataset: Any) -> None:
    """Raises TypeError unless the data set has a length and [index]."""
    kind = type(dataset).__name__
    what = "save it as a data set with a length, or make token shards by `atoll prepare` and use atoll.Tokens"
    if any(c.__name__ in ("IterableDataset", "DataLoader") for c in type(dataset).__mro__):
        if "DataLoader" in kind:
            raise TypeError("atoll.batches takes the data set, not a DataLoader: give its `dataset` and `batch_size`")
        raise TypeError(f"{kind} is iterable only, and leased samples need an index: {what}")
    if not (hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")):
        raise TypeError(f"{kind} has no length and [index], which leased samples need: {what}")
    if len(dataset) == 0:
        raise ValueError(f"the data set ({kind}) is empty")


def _seed(seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed % 2**32)
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(seed)


def describe(dataset: Any) -> _lib.Data:
    """Hash, number and length of the samples of a data set.

    The hash covers the length and 32 samples spread over the set. If a sample differs when it is read twice (random
    augmentation), it covers the length alone. Random states are as before.
    """
    if dataset is None:
        return _lib.Data()
    given = getattr(dataset, "data", None)
    if isinstance(given, _lib.Data):
        return given
    check_dataset(dataset)
    n = len(dataset)
    numbers = sorted({i * (n - 1) // max(1, _HASHED - 1) for i in range(_HASHED)})
    randoms = state.get_random()
    try:
        _seed(0xA701)
        first = [dataset[i] for i in numbers]
        content = _hash(first)
        _seed(0xA702)
        stable = _hash([dataset[i] for i in numbers]) == content
        tokens = count_tokens([first[0]], 1) if stable else 1
    finally:
        state.set_random(randoms)
    return _lib.Data(_hash([n, content]) if stable else _hash([n]), n, max(1, int(tokens)))


def _is_integers(value: Any) -> bool:
    torch = sys.modules.get("torch")
    if torch and isinstance(value, torch.Tensor):
        return not value.is_floating_point() and not value.is_complex() and value.dtype != torch.bool
    return isinstance(value, np.ndarray) and value.dtype.kind in "iu"


def _targets(batch: Any) -> Any:
    """The integer array that holds the targets: labels, input_ids, or the last one of a tuple; None: there is none."""
    if isinstance(batch, dict) or hasattr(batch, "keys"):
        for key in ("labels", "input_ids", *batch.keys()):
            if key in batch.keys() and _is_integers(_as_array(batch[key])):
                return _as_array(batch[key])
        return None
    if isinstance(batch, (tuple, list)):
        for item in reversed(batch):
            found = _targets(item)
            if found is not None:
                return found
        return None
    return batch if _is_integers(batch) else None


def _as_array(value: Any) -> Any:
    """Lists of integers, as tokenized data sets have them, as an array."""
    if isinstance(value, list) and value and all(type(v) is int for v in value):
        return np.asarray(value)
    return value


def count_tokens(batch: Any, samples: int) -> Any:
    """Tokens that a batch trains on: its targets without -100; the number of samples if there are no integers.

    It is an int, or a tensor [] on the device of the batch.
    """
    targets = _targets(batch)
    if targets is None:
        return samples
    count = (targets != -100).sum()
    return count if on_gpu(count) else int(count)


# --- batches --------------------------------------------------------------------------------------------------------


def _stack(samples: list[Any]) -> Any:
    """Samples as one batch of numpy arrays."""
    first = samples[0]
    if isinstance(first, dict):
        return {key: _stack([s[key] for s in samples]) for key in first}
    if isinstance(first, (tuple, list)):
        return type(first)(_stack([s[i] for s in samples]) for i in range(len(first)))
    return samples if isinstance(first, (str, bytes)) else np.stack([np.asarray(s) for s in samples])


def _fetch(dataset: Any, indices: list[int]) -> list[Any]:
    fetch = getattr(dataset, "__getitems__", None)
    return list(fetch(indices)) if callable(fetch) else [dataset[i] for i in indices]


class _Seeded:
    """The data set in a loader's process: the first number of a batch seeds its random numbers, so that it is the same
    after a restart."""

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitems__(self, numbers: list[int]) -> list[Any]:
        seed, *indices = numbers
        _seed(seed)
        return _fetch(self._dataset, indices)

    def __getitem__(self, number: int) -> Any:
        return self._dataset[number]


class _Lists:
    """The batch sampler of a loader: the lists of one round."""

    lists: list[list[int]] = []

    def __iter__(self) -> Iterator[list[int]]:
        return iter(self.lists)

    def __len__(self) -> int:
        return len(self.lists)


class Batches:
    """Batches of the samples leased to `worker`, until the run is done. A second iteration goes on where the
    first stopped.

    dataset: has a length and [index]; all workers of the run need the same one. batch_size: samples of a batch of this
    process. batch_size x processes x batches per optimizer step must be the run's train.batch_size x train.grad_accum.
    collate_fn: as for DataLoader; the default is PyTorch's, or stacks arrays if the parameters are numpy's.
    num_workers: processes that read ahead within a round. Raises TypeError for data sets without index, and ValueError
    for sizes that do not fit the run.
    """

    def __init__(
        self,
        dataset: Any,
        worker: Worker,
        batch_size: int = 16,
        *,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        num_workers: int = 0,
        pin_memory: bool = False,
    ) -> None:
        if batch_size < 1 or num_workers < 0:
            raise ValueError(f"batch_size {batch_size}, num_workers {num_workers}: at least 1 and 0 are needed")
        self._dataset, self._worker, self.batch_size = dataset, worker, batch_size
        if not collate_fn and not isinstance(worker._model, NumpyModel):
            from torch.utils.data import default_collate as collate_fn
        self._collate, self._loader = collate_fn or _stack, None  # type: ignore[var-annotated]
        self._lists = _Lists()
        self._round: Any = None
        self._source: Iterator[Any] = iter(())
        if num_workers or pin_memory:
            self._loader = self._make_loader(num_workers, pin_memory)
        check_dataset(dataset)
        worker._use(dataset)

    def _make_loader(self, num_workers: int, pin_memory: bool) -> Any:
        import torch
        from torch.utils.data import DataLoader

        self._generator = torch.Generator()  # a loader must not draw from the program's random numbers
        return DataLoader(
            _Seeded(self._dataset),
            batch_sampler=self._lists,  # type: ignore[arg-type]
            collate_fn=self._collate,
            num_workers=num_workers,
            pin_memory=pin_memory,
            persistent_workers=num_workers > 0,
            generator=self._generator,
        )

    def _begin(self, round: _lib.Round, lists: list[list[int]]) -> Iterator[Any]:
        if not self._loader:
            return (self._collate(_fetch(self._dataset, indices)) for indices in lists)
        import torch

        start = _hash([torch.initial_seed(), round.worker, round.round]) >> 1
        self._lists.lists = [[(start + i) % 2**63, *indices] for i, indices in enumerate(lists)]
        self._generator.manual_seed(start)
        return iter(self._loader)

    def __iter__(self) -> Iterator[Any]:
        worker = self._worker
        while worker._ready_for_batch(self.batch_size):
            round = worker._round
            if round is not self._round:
                self._source = self._begin(round, worker._batch_indices(self.batch_size))
                self._round = round
            batch = next(self._source, None)
            if batch is None:
                raise _lib.Error("the round has no samples left: iterate over one atoll.batches only")
            worker._on_batch(batch, self.batch_size)
            yield batch


batches = Batches
