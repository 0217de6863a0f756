"""Digests of values: of all their numbers, or of a sample of them, which tells at little cost that two differ."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

_SAMPLED = 64  # numbers of an array, spread over it from the first to the last


def feed(digest: Any, value: Any, content: Callable[[Any], bytes]) -> None:
    """Adds numbers, texts, lists, dicts and arrays, nested in any way, to a digest of hashlib.

    content: the bytes of a tensor or an array that stand for its values.
    """
    torch = sys.modules.get("torch")
    if torch and isinstance(value, torch.Tensor):
        digest.update(f"{value.dtype}{list(value.shape)}".removeprefix("torch.").encode())
        digest.update(content(value))
    elif isinstance(value, dict):
        for key in value:
            digest.update(f"{key}:".encode())
            feed(digest, value[key], content)
    elif isinstance(value, (list, tuple)):
        digest.update(f"{len(value)};".encode())
        for item in value:
            feed(digest, item, content)
    elif isinstance(value, (str, int, float, bool, type(None))):
        digest.update(f"{value!r},".encode())
    elif isinstance(value, bytes):
        digest.update(value)
    elif isinstance(value, (np.ndarray, np.generic)) or hasattr(value, "__array__"):
        array = np.asarray(value)
        digest.update(f"{array.dtype}{list(array.shape)}".encode())
        digest.update(content(array))
    else:
        digest.update(type(value).__name__.encode())


def all_bytes(array: Any) -> bytes:
    """The bytes of all numbers of a tensor or an array."""
    if isinstance(array, np.ndarray):
        return array.tobytes() if array.dtype.kind in "biufc" else repr(array.tolist()).encode()
    flat = array.detach().cpu().contiguous().reshape(-1)
    return bytes(flat.view(sys.modules["torch"].uint8).numpy().tobytes()) if flat.numel() else b""


def sampled_places(shape: tuple[int, ...]) -> list[int]:
    """Up to 64 places in an array that is read row by row."""
    n = int(np.prod(shape))
    return sorted({i * (n - 1) // (_SAMPLED - 1) for i in range(_SAMPLED)}) if n else []


def sampled_bytes(array: Any) -> bytes:
    """The bytes of up to 64 numbers of a tensor or an array. Raises what the tensor raises that cannot be read."""
    shape = tuple(array.shape)
    places = sampled_places(shape)
    if isinstance(array, np.ndarray):
        return np.ascontiguousarray(array.reshape(-1)[places]).tobytes()
    return bytes_at(array, np.unravel_index(np.asarray(places), shape) if shape else ()) if places else b""


def bytes_at(tensor: Any, where: Sequence[np.ndarray]) -> bytes:
    """The bytes of the numbers of a tensor at [dimensions][n] places."""
    values = tensor.detach()
    if values.ndim:
        values = values[tuple(sys.modules["torch"].as_tensor(w, device=values.device) for w in where)]
    return all_bytes(values)


def _or_none(read: Callable[[Any], bytes], array: Any) -> bytes:
    """What `read` gives; nothing of a tensor without plain numbers: type and shape must do."""
    try:
        return read(array)
    except (RuntimeError, NotImplementedError, TypeError):
        return b""


def sampled_or_none(array: Any) -> bytes:
    """The samples of an array, if it has plain numbers."""
    return _or_none(sampled_bytes, array)


def digest(value: Any, whole: int = 0) -> bytes:
    """[8] of the samples of all arrays in a value; of all numbers of those up to `whole` bytes. Equal values have equal
    digests."""

    def content(array: Any) -> bytes:
        small = int(getattr(array, "nbytes", whole + 1)) <= whole
        return _or_none(all_bytes if small else sampled_bytes, array)

    out = hashlib.blake2b(digest_size=8)
    feed(out, value, content)
    return out.digest()
