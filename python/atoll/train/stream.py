"""Samples of a data set that can only be iterated over, by number."""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Iterator
from typing import Any

logger = logging.getLogger("atoll")

_SLOW_S = 5.0  # a skip that takes longer says so


class Stream:
    """The samples of an iterable data set, numbered over its passes.

    The coordinator leases numbers in ascending order, each to one worker. Number k is sample k of the first pass. After
    a pass has ended with sample n - 1, it is sample k % n of pass k // n. A worker skips the samples of the others:
    each worker reads the whole stream. A smaller number than before (the lease of a worker that left) opens it again.

    Passes are told to a data set with `set_epoch`. `skip(n)` of a data set is used if it has one (`datasets`).
    """

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset
        self._length: int | None = None  # samples of a pass, once one has ended
        self._pass, self._at = 0, 0  # of the next sample of _source
        self._source: Iterator[Any] | None = None
        self._count, self._skipped = itertools.count(), 0

    def __getitems__(self, numbers: list[int]) -> list[Any]:
        return [self[number] for number in numbers]

    def __getitem__(self, number: int) -> Any:
        for _ in range(3):  # the first pass ends in between: then the place of the number is another one
            epoch, place = divmod(number, self._length) if self._length else (0, number)
            found = self._read(epoch, place)
            if found:
                return found[0]
        raise ValueError(
            f"a pass over the data set ({type(self._dataset).__name__}) ended after {self._at} samples, and one before "
            f"after {self._length}: all passes need the same number of samples"
        )

    def _read(self, epoch: int, place: int) -> list[Any]:
        """[the sample], or [] if the pass ended before it."""
        began = time.monotonic()
        if self._source is None or epoch != self._pass or place < self._at:
            self._open(epoch, place)
        skipped = place - self._at
        found = list(itertools.islice(self._source, skipped, skipped + 1))  # type: ignore[arg-type]
        if time.monotonic() - began > _SLOW_S:
            logger.info("skipped %d samples of the stream in %.0f s", skipped, time.monotonic() - began)
        self._at = place + 1
        if not found:
            self._end()
        return [sample for sample, _ in found]

    def _open(self, epoch: int, place: int) -> None:
        self._skipped = place if hasattr(self._dataset, "skip") else 0
        self._count = itertools.count(self._skipped)
        _set_epoch(self._dataset, epoch)
        stream = self._dataset.skip(self._skipped) if self._skipped else self._dataset
        _set_epoch(stream, epoch)  # `datasets`: skip() begins at pass 0 again
        self._source = zip(iter(stream), self._count)  # the end of the stream leaves its length in _count
        self._pass, self._at = epoch, self._skipped

    def _end(self) -> None:
        self._source, length = None, next(self._count)
        if length == self._skipped:  # the data set may have skipped its end
            length = sum(1 for _ in self._dataset)
        if not length:
            raise ValueError(f"the data set ({type(self._dataset).__name__}) is empty")
        if self._length not in (None, length):
            self._at = length
            return
        self._length = length
        logger.info("the stream has %d samples: its next pass begins", length)


def _set_epoch(dataset: Any, epoch: int) -> None:
    if hasattr(dataset, "set_epoch"):
        dataset.set_epoch(epoch)
