"""What a data set holds, and how many tokens a batch trains on."""

from __future__ import annotations

import hashlib
import itertools
import logging
import random
import sys
from typing import Any

import numpy as np

from .. import _lib
from . import state
from .notes import on_gpu
from .sampled import all_bytes, feed

logger = logging.getLogger("atoll")

_HASHED = 32  # samples of a data set that its hash covers
_HASHED_OF_STREAM = 8  # the first ones


def hash_of(values: list[Any]) -> int:
    """64 bits that are equal for equal values."""
    digest = hashlib.blake2b(digest_size=8)
    for value in values:
        feed(digest, value, all_bytes)
    return int.from_bytes(digest.digest(), "little")


def seed_all(seed: int) -> None:
    """Seeds random, numpy.random and torch."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(seed)


# --- data sets ------------------------------------------------------------------------------------------------------


def is_stream(dataset: Any) -> bool:
    """The data set can only be iterated over: torch's IterableDataset, streams of `datasets`, WebDataset."""
    if any(c.__name__ == "IterableDataset" for c in type(dataset).__mro__):
        return True
    return hasattr(dataset, "__iter__") and not hasattr(dataset, "__getitem__")


def check_dataset(dataset: Any) -> None:
    """Raises TypeError for a data set that has neither a length and [index] nor an iteration that can start again."""
    kind = type(dataset).__name__
    if isinstance(dataset, dict):
        raise TypeError("the data set is a dict: give list(data.values()), whose samples have numbers")
    if any(c.__name__ == "DataLoader" for c in type(dataset).__mro__):
        raise TypeError("atoll.batches takes the data set, not a DataLoader: give its `dataset` and `batch_size`")
    if is_stream(dataset):
        if iter(dataset) is dataset:
            raise TypeError(
                f"a {kind} can be read only once: give an object whose __iter__ starts again, such as a torch "
                "IterableDataset"
            )
        return
    if not (hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")):
        raise TypeError(f"{kind} has neither a length and [index] nor an iteration, which samples are read by")
    if len(dataset) == 0:
        raise ValueError(f"the data set ({kind}) is empty")


def describe(dataset: Any) -> _lib.Data:
    """Hash, number and length of the samples of a data set; 0 samples for a stream.

    The hash covers the length and 32 samples spread over the set, or the first 8 of a stream. If a sample differs when
    it is read twice (random augmentation), it covers the length alone. Random states are as before.
    """
    if dataset is None:
        return _lib.Data()
    given = getattr(dataset, "data", None)
    if isinstance(given, _lib.Data):
        return given
    check_dataset(dataset)
    randoms = state.get_random()
    try:
        return _of_stream(dataset) if is_stream(dataset) else _of_set(dataset)
    finally:
        state.set_random(randoms)


def _of_set(dataset: Any) -> _lib.Data:
    n = len(dataset)
    numbers = sorted({i * (n - 1) // max(1, _HASHED - 1) for i in range(_HASHED)})
    seed_all(0xA701)
    first = [dataset[i] for i in numbers]
    content = hash_of(first)
    seed_all(0xA702)
    stable = hash_of([dataset[i] for i in numbers]) == content
    tokens = count_tokens([first[0]], 1) if stable else 1
    return _lib.Data(hash_of([n, content]) if stable else hash_of([n]), n, max(1, int(tokens)))


def _of_stream(dataset: Any) -> _lib.Data:
    seed_all(0xA701)
    first = list(itertools.islice(iter(dataset), _HASHED_OF_STREAM))
    if not first:
        raise ValueError(f"the data set ({type(dataset).__name__}) is empty")
    content = hash_of(first)
    seed_all(0xA702)
    stable = hash_of(list(itertools.islice(iter(dataset), _HASHED_OF_STREAM))) == content
    if not stable:
        logger.warning(
            "the stream gives other samples when it is read again: if its order changes, workers train some samples "
            "twice and others never, so shuffle with a fixed seed"
        )
    tokens = count_tokens([first[0]], 1) if stable else 1
    return _lib.Data(hash_of(["stream", content]) if stable else hash_of(["stream"]), 0, max(1, int(tokens)))


# --- tokens ---------------------------------------------------------------------------------------------------------


def _is_integers(value: Any) -> bool:
    torch = sys.modules.get("torch")
    if torch and isinstance(value, torch.Tensor):
        return not value.is_floating_point() and not value.is_complex() and value.dtype != torch.bool
    return isinstance(value, np.ndarray) and value.dtype.kind in "iu"


def _as_array(value: Any) -> Any:
    """Lists of integers, as tokenized data sets have them, as an array."""
    if isinstance(value, list) and value and all(type(v) is int for v in value):
        return np.asarray(value)
    return value


def _targets(batch: Any) -> Any:
    """The integer array that holds the targets: labels, input_ids, or the last one of a tuple; None: there is none."""
    if isinstance(batch, dict) or hasattr(batch, "keys"):
        for key in ("labels", "targets", "input_ids", *batch.keys()):
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


def _count(targets: Any, samples: int) -> Any:
    if targets is None:
        return samples
    count = (targets != -100).sum()
    return count if on_gpu(count) else int(count)


def count_tokens(batch: Any, samples: int) -> Any:
    """Tokens that a batch trains on: its targets without -100; the number of samples if there are no integers.

    It is an int, or a tensor [] on the device of the batch.
    """
    return _count(_targets(batch), samples)


def count_call(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Tokens of a call of the model, as count_tokens: model(x, y), model(x, y, flag=...), model(**batch) are alike."""
    named = next((kwargs[k] for k in ("labels", "targets", "target", "y") if _is_integers(kwargs.get(k))), None)
    if named is not None:
        return _count(named, 0)
    first = next((v for v in (*args, *kwargs.values()) if hasattr(v, "shape") and len(v.shape)), None)
    samples = first.shape[0] if first is not None else 1
    targets = _targets(args)
    return _count(targets if targets is not None else _targets(kwargs), samples)
