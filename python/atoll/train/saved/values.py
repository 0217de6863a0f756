"""Values of a program as bytes: numbers, arrays, tensors, and containers of them.

Format: the magic, the length of a JSON header (8 bytes, little-endian), the header, then the raw bytes of all arrays.
In the header a JSON object has one key, the kind of the value: {"map": {...}}, {"pairs": [[k, v], ...]},
{"tuple": [...]}, {"counter": [[k, v], ...]}, {"bytes": [offset, size]}, "torch", "numpy" or "scalar": [dtype, shape,
offset, size], {"dtype": name}, and {"subclass": [module, class, {name: tensor}, context, shape, stride]} for a subclass
of Tensor that PyTorch can take apart, and {"shard": [shape, start, placements, local tensor]} for the part of a DTensor
that this process holds, which reads as a Piece. Numbers, texts, lists, true, false and null stand for themselves.
Reading calls nothing but __tensor_unflatten__ of classes that the program has imported.
"""

from __future__ import annotations

import collections
import ctypes
import json
import math
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

MAGIC = b"ATOLLST1"
_SMALL = 1 << 16  # arrays up to this size are copied together, so that there are few parts

_NUMPY_KINDS = "biufc"
_TORCH_TYPES = (
    "float32 float64 float16 bfloat16 uint8 int8 int16 int32 int64 bool complex64 complex128 "
    "float8_e4m3fn float8_e5m2 uint16 uint32 uint64"
).split()


def torch_module() -> Any:
    """torch, if the program uses it: this file never imports it."""
    return sys.modules.get("torch")


def is_plain(value: Any) -> bool:
    """A tensor whose memory holds its values. Subclasses keep theirs elsewhere, also where they have an address."""
    kind = type(value)
    return kind.__module__.split(".")[0] == "torch" and kind.__name__ in ("Tensor", "Parameter", "Buffer")


class Piece(NamedTuple):
    """The part of a sharded tensor that one process held."""

    shape: tuple[int, ...]  # of the whole tensor
    start: tuple[int, ...]  # of the part in it
    placements: tuple[int, ...]  # for each dimension of the mesh the dimension that it cuts; -1: replicas
    tensor: Any


def is_shard(value: Any) -> bool:
    """A DTensor, if the program uses them."""
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(value, module.DTensor)


def _piece(value: Any, where: str) -> Piece:
    """What this process holds of a DTensor. Raises TypeError for one that fully_shard does not make."""
    from ..._lib import InvalidError
    from ..shards.blocks import block_of, local

    try:
        start = block_of(where, value).start
    except InvalidError as e:
        raise TypeError(str(e).replace("parameter ", "", 1)) from e
    placements = tuple(p.dim if p.is_shard() else -1 for p in value.placements)
    return Piece(tuple(value.shape), start, placements, local(value))


def check_tensor(value: Any, where: str) -> None:
    """Raises TypeError for a tensor that cannot be saved; `where` names it."""
    torch = torch_module()
    if is_shard(value):
        value = _piece(value, where).tensor
    if value.layout != torch.strided:
        raise TypeError(f"{where} is a {type(value).__name__} of {value.dtype}: atoll saves dense tensors")
    if not is_plain(value):
        if not (hasattr(value, "__tensor_flatten__") and hasattr(type(value), "__tensor_unflatten__")):
            raise TypeError(
                f"{where} is a {type(value).__module__}.{type(value).__qualname__}, which has no __tensor_flatten__: "
                "atoll cannot save it, so use an optimizer whose state is plain tensors"
            )
    elif str(value.dtype).removeprefix("torch.") not in _TORCH_TYPES:
        raise TypeError(f"{where} is a tensor of {value.dtype}, which atoll cannot save")


class Large(NamedTuple):
    """An array above _SMALL bytes: its memory on the host, or a contiguous tensor on a device."""

    address: int
    size: int
    device: Any = None


class Writer:
    """Turns values into parts. Large CPU arrays are not copied: `parts` point into them, and `keep` holds them.

    stage(number, tensor): a finished copy in host memory of a tensor that is on a device. everything: also of tensors
    and arrays on the host. None: `pieces` has the tensors on devices as they are.
    """

    def __init__(self, stage: Callable[[int, Any], Any] | None = None, everything: bool = False) -> None:
        self._stage, self._everything = stage, everything
        self._size, self._small, self._staged = 0, bytearray(), 0
        self._order: list[Large | int] = []  # a large array, or a length in _small
        self.keep: list[Any] = []

    def _add(self, address: int, size: int) -> list[int]:
        offset = self._size
        self._size += size
        if size <= _SMALL:
            self._small += ctypes.string_at(address, size)
            if self._order and isinstance(self._order[-1], int):
                self._order[-1] += size
            else:
                self._order.append(size)
        else:
            self._order.append(Large(address, size))
        return [offset, size]

    def _copy(self, tensor: Any) -> Any:
        assert self._stage
        self._staged += 1
        return self._stage(self._staged - 1, tensor)

    def _add_device(self, tensor: Any, size: int) -> list[int]:
        """A tensor on a device that is read later."""
        offset, self._size = self._size, self._size + size
        self._order.append(Large(0, size, tensor))
        return [offset, size]

    def _array(self, value: Any, where: str) -> Any:
        kind = "numpy" if isinstance(value, np.ndarray) else "scalar"
        if value.dtype.kind not in _NUMPY_KINDS:
            raise TypeError(f"{where} is an array of {value.dtype}: atoll saves arrays of numbers")
        array = np.ascontiguousarray(value)  # at least one dimension
        if self._everything and array.nbytes > _SMALL:
            array = self._copy(array)
        self.keep.append(array)
        return {kind: [array.dtype.str, list(value.shape), *self._add(array.ctypes.data, array.nbytes)]}

    def _subclass(self, value: Any, where: str) -> Any:
        names, context = value.__tensor_flatten__()
        inner = {name: self.value(getattr(value, name), f"{where}.{name}") for name in names}
        kind = type(value)
        shape, stride = list(value.shape), list(value.stride())
        return {"subclass": [kind.__module__, kind.__qualname__, inner, self.value(context, where), shape, stride]}

    def _tensor(self, value: Any, where: str) -> Any:
        check_tensor(value, where)
        if is_shard(value):
            piece = _piece(value, where)
            return {"shard": [piece.shape, piece.start, piece.placements, self._tensor(piece.tensor, where)]}
        if not is_plain(value):
            return self._subclass(value, where)
        kind, tensor = str(value.dtype).removeprefix("torch."), value.detach()
        size, on_device = tensor.numel() * tensor.element_size(), tensor.device.type != "cpu"
        if on_device and not self._stage and size > _SMALL:
            tensor = tensor.contiguous()
            return {"torch": [kind, list(value.shape), *self._add_device(tensor, size)]}
        if on_device and not self._stage:
            tensor = tensor.cpu()
        elif on_device or self._everything and size > _SMALL:
            tensor = self._copy(tensor)
        tensor = tensor.contiguous()
        self.keep.append(tensor)
        return {"torch": [kind, list(value.shape), *self._add(tensor.data_ptr() if size else 0, size)]}

    def value(self, value: Any, where: str) -> Any:
        """The JSON form of a value; `where` names it in errors. Raises TypeError for what cannot be saved."""
        torch = torch_module()
        if value is None or isinstance(value, (bool, int, float, str)) and type(value).__module__ == "builtins":
            return value
        if torch and isinstance(value, torch.Tensor):
            return self._tensor(value, where)
        if torch and isinstance(value, torch.dtype):
            return {"dtype": str(value).removeprefix("torch.")}
        if isinstance(value, (np.ndarray, np.generic)):
            return self._array(value, where)
        if isinstance(value, list):
            return [self.value(v, f"{where}[{i}]") for i, v in enumerate(value)]
        if isinstance(value, tuple):
            return {"tuple": [self.value(v, f"{where}[{i}]") for i, v in enumerate(value)]}
        if isinstance(value, dict):
            pairs = [(k, self.value(v, f"{where}[{k!r}]")) for k, v in value.items()]
            if isinstance(value, collections.Counter):
                return {"counter": [list(p) for p in pairs]}
            if all(type(k) is str for k in value):
                return {"map": dict(pairs)}
            if all(type(k) in (str, int, float, bool) for k in value):
                return {"pairs": [list(p) for p in pairs]}
        if isinstance(value, (bytes, bytearray)):
            held = (ctypes.c_ubyte * len(value)).from_buffer_copy(value)
            self.keep.append(held)
            return {"bytes": self._add(ctypes.addressof(held), len(value))}
        raise TypeError(
            f"{where} is of type {type(value).__name__}: atoll saves numbers, texts, lists, dicts, arrays and tensors"
        )

    def pieces(self, header: Any) -> list[Large]:
        """All bytes in order. They stay valid as long as this object lives, and the arrays do not change."""
        text = json.dumps(header).encode()
        head = ctypes.create_string_buffer(MAGIC + len(text).to_bytes(8, "little") + text)
        small = (ctypes.c_char * max(1, len(self._small))).from_buffer(self._small or bytearray(1))
        self.keep += [head, small]
        out, at = [Large(ctypes.addressof(head), len(head) - 1)], 0
        for item in self._order:
            if isinstance(item, int):
                out.append(Large(ctypes.addressof(small) + at, item))
                at += item
            else:
                out.append(item)
        return [large for large in out if large.size]

    def parts(self, header: Any, cap: int = 1 << 30) -> list[tuple[int, int]]:
        """[<= cap] (address, size) of the same bytes, all of them on the host."""
        out = [(large.address, large.size) for large in self.pieces(header)]
        if len(out) > cap:  # too many for the library: the last ones become one copy
            rest = b"".join(ctypes.string_at(*part) for part in out[cap - 1 :])
            joined = ctypes.create_string_buffer(rest, len(rest))
            self.keep.append(joined)
            out[cap - 1 :] = [(ctypes.addressof(joined), len(rest))]
        return out


def on_host(_number: int, tensor: Any) -> Any:
    """A stage that keeps nothing."""
    return tensor.copy() if isinstance(tensor, np.ndarray) else tensor.detach().cpu()


class Reader:
    """Reads what Writer wrote. borrow: parts of sharded tensors are views of the data, which nobody may change."""

    def __init__(self, data: memoryview, borrow: bool = False) -> None:
        self._may_borrow, self._borrow = borrow, False
        if bytes(data[:8]) != MAGIC or len(data) < 16:
            raise ValueError("it is not a state of this version of atoll")
        length = int.from_bytes(data[8:16], "little")
        if length > len(data) - 16:
            raise ValueError("it is cut off")
        self.header = json.loads(bytes(data[16 : 16 + length]))
        self._blobs = data[16 + length :]

    def _bytes(self, offset: int, size: int) -> memoryview:
        if not (isinstance(offset, int) and isinstance(size, int) and 0 <= offset <= offset + size <= len(self._blobs)):
            raise ValueError("an array lies outside of the data")
        return self._blobs[offset : offset + size]

    def _torch_value(self, kind: str, shape: list[int], offset: int, size: int) -> Any:
        torch = torch_module()
        if not torch or kind not in _TORCH_TYPES:
            raise ValueError(f"it holds a torch tensor of {kind}")
        dtype = getattr(torch, kind)
        if min(shape, default=0) < 0 or math.prod(shape) * torch.empty(0, dtype=dtype).element_size() != size:
            raise ValueError("an array has another size than its shape")
        tensor = torch.empty(shape, dtype=dtype)
        if size:
            address = np.frombuffer(self._bytes(offset, size), np.uint8).ctypes.data
            if self._borrow:
                view = (ctypes.c_ubyte * size).from_address(address)
                return torch.frombuffer(view, dtype=dtype).view(shape)
            ctypes.memmove(tensor.data_ptr(), address, size)
        return tensor

    def _subclass_value(
        self, module: str, name: str, inner: Any, context: Any, shape: list[int], stride: list[int]
    ) -> Any:
        torch = torch_module()
        kind: Any = sys.modules.get(module)
        for part in name.split("."):
            kind = getattr(kind, part, None)
        if not (torch and isinstance(kind, type) and issubclass(kind, torch.Tensor)):
            raise ValueError(f"it holds a tensor of the class {module}.{name}, which this script has not imported")
        tensors = {key: self.value(form) for key, form in inner.items()}
        size = torch.Size(shape)
        return kind.__tensor_unflatten__(  # type: ignore[attr-defined]
            tensors, self.value(context), size, tuple(stride)
        )

    def value(self, form: Any) -> Any:
        if isinstance(form, list):
            return [self.value(v) for v in form]
        if not isinstance(form, dict):
            return form
        ((kind, payload),) = form.items()
        if kind == "map":
            return {k: self.value(v) for k, v in payload.items()}
        if kind == "pairs":
            return {k: self.value(v) for k, v in payload}
        if kind == "counter":
            return collections.Counter({k: v for k, v in payload})
        if kind == "tuple":
            return tuple(self.value(v) for v in payload)
        if kind == "bytes":
            return bytes(self._bytes(*payload))
        if kind == "torch":
            return self._torch_value(*payload)
        if kind == "dtype" and payload in _TORCH_TYPES and torch_module():
            return getattr(torch_module(), payload)
        if kind == "shard":
            shape, start, placements, inner = payload
            self._borrow = self._may_borrow
            piece = Piece(tuple(shape), tuple(start), tuple(placements), self.value(inner))
            self._borrow = False
            return piece
        if kind == "subclass":
            return self._subclass_value(*payload)
        if kind in ("numpy", "scalar"):
            dtype, shape, offset, size = payload
            if np.dtype(dtype).kind not in _NUMPY_KINDS:
                raise ValueError(f"it holds an array of {dtype}")
            array = np.frombuffer(self._bytes(offset, size), dtype).reshape(shape)
            return array.copy() if kind == "numpy" else array[()]
        raise ValueError(f"it holds a value of the unknown kind {kind!r}")


def write(value: Any) -> bytes:
    """A value as bytes. Raises TypeError for what cannot be saved."""
    writer = Writer(on_host)
    return b"".join(ctypes.string_at(*part) for part in writer.parts(writer.value(value, "the value")))


def read(data: memoryview | bytes) -> Any:
    """The value that Writer wrote. Raises ValueError if the bytes are no such value."""
    try:
        reader = Reader(memoryview(data))
        return reader.value(reader.header)
    except (KeyError, TypeError, IndexError, RecursionError, json.JSONDecodeError, UnicodeDecodeError) as e:
        raise ValueError(f"it is damaged ({e})") from e
