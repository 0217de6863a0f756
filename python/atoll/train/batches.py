"""Batches of the samples that the coordinator leased to this worker, and data sets of token shards."""

from __future__ import annotations

import collections
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import _lib
from .numpy_model import NumpyModel
from .samples import check_dataset, count_tokens, hash_of, is_stream, seed_all
from .stream import Stream

if TYPE_CHECKING:
    from .worker import Worker

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
        seed_all(seed)
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

    dataset: has a length and [index], or can only be iterated over (a stream); equal in all workers of the run.
    batch_size: samples of a batch of this process. batch_size x processes x batches per optimizer step must be the
    run's train.batch_size x train.grad_accum. collate_fn: as for DataLoader; the default is PyTorch's, or stacks arrays
    if the parameters are numpy's. num_workers: processes that read ahead within a round. per_epoch: an iteration ends
    at the first sync point at which all workers together have taken each sample once more.

    A loop may fetch one batch before the step on the one before. `len` is the number of batches in the data set.
    Raises TypeError for data sets that cannot be read again, and ValueError for sizes that do not fit the run.
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
        per_epoch: bool = False,
    ) -> None:
        if batch_size < 1 or num_workers < 0:
            raise ValueError(f"batch_size {batch_size}, num_workers {num_workers}: at least 1 and 0 are needed")
        check_dataset(dataset)
        stream = is_stream(dataset)
        if stream and (num_workers or per_epoch):
            raise ValueError(
                "a stream is read by the training process, in one iteration: leave out num_workers and per_epoch"
            )
        self.dataset, self.batch_size, self._worker = dataset, batch_size, worker
        self._source_of_samples = Stream(dataset) if stream else dataset
        if not collate_fn and not isinstance(worker.model, NumpyModel):
            from torch.utils.data import default_collate as collate_fn
        self._collate, self._per_epoch = collate_fn or _stack, per_epoch
        self._loader: Any = None
        self._lists = _Lists()
        self._round: Any = None
        self._source: Iterator[Any] = iter(())
        self._ahead: collections.deque[list[int]] = collections.deque()  # what _source will give
        if num_workers or pin_memory and not stream:
            self._loader = self._make_loader(num_workers, pin_memory)
        worker.rounds.use(dataset)

    def __len__(self) -> int:
        return len(self.dataset) // (self.batch_size * self._worker.processes)

    def _make_loader(self, num_workers: int, pin_memory: bool) -> Any:
        import torch
        from torch.utils.data import DataLoader

        self._generator = torch.Generator()  # a loader must not draw from the program's random numbers
        return DataLoader(
            _Seeded(self.dataset) if num_workers else self.dataset,
            batch_sampler=self._lists,  # type: ignore[arg-type]
            collate_fn=self._collate,
            num_workers=num_workers,
            pin_memory=pin_memory,
            persistent_workers=num_workers > 0,
            generator=self._generator,
        )

    def _read(self, indices: list[int]) -> Any:
        """A batch that the loader has read ahead. It begins anew in each round, and after another loop took samples."""
        if self._worker.rounds.round is not self._round or not self._ahead or self._ahead[0] != indices:
            self._begin(indices)
        if not self._ahead:
            return self._load(indices)
        self._ahead.popleft()
        return next(self._source)

    def _begin(self, indices: list[int]) -> None:
        """Lets the loader read the rest of the round, from a batch on."""
        self._round = round = self._worker.rounds.round
        lists = self._worker.feed.batch_lists(self.batch_size)
        first = lists.index(indices) if indices in lists else len(lists)
        self._ahead = collections.deque(lists[first:])
        if not self._loader.num_workers:
            self._lists.lists = lists[first:]
        else:
            import torch

            start = hash_of([torch.initial_seed(), round.worker, round.round]) >> 1
            self._lists.lists = [[(start + i) % 2**63, *lists[i]] for i in range(first, len(lists))]
            self._generator.manual_seed(start)
        self._source = iter(self._loader)

    def _load(self, indices: list[int]) -> Any:
        return self._collate(_fetch(self._source_of_samples, indices))

    def __iter__(self) -> Iterator[Any]:
        self._check_thread()
        try:
            yield from self._batches(self._begun_epoch())
        finally:
            self._worker.feed.epoch = None

    def _check_thread(self) -> None:
        if threading.get_ident() != self._worker.thread:
            raise _lib.Error(
                "atoll.batches is read in another thread than the one that opened the worker: the samples of a "
                "round are known only after its exchange, so read them in the loop; num_workers= reads ahead"
            )

    def _begun_epoch(self) -> int | None:
        """The epoch in which an iteration of this loop was when the state was saved that a restart has loaded."""
        return self._worker.feed.epoch if self._per_epoch and self._worker.begin() else None

    def _batches(self, first: int | None) -> Iterator[Any]:
        """first: passes over the data when the iteration began; None: it begins now."""
        rounds, feed = self._worker.rounds, self._worker.feed
        while True:
            self._check_thread()
            batch = feed.batch(self.batch_size) if self._goes_on(first) else None
            if batch is None:
                return
            first = int(rounds.round.epoch) if first is None else first
            feed.epoch = first if self._per_epoch else None
            direct = batch.extra or self._loader is None
            data = self._load(batch.indices) if direct else self._read(batch.indices)
            feed.has_tokens(count_tokens(data, self.batch_size))
            yield data

    def _goes_on(self, first: int | None) -> bool:
        """False: an epoch of this iteration is over."""
        if first is None or not self._per_epoch:
            return True
        return self._worker.begin() and int(self._worker.assignment.epoch) <= first


batches = Batches
