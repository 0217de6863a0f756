"""The program's own state as bytes: inner optimizer, schedulers, random numbers.

Format: the magic, the length of a JSON header (8 bytes, little-endian), the header, then the raw bytes of all arrays.
In the header a JSON object has one key, the kind of the value: {"map": {...}}, {"pairs": [[k, v], ...]},
{"tuple": [...]}, {"counter": [[k, v], ...]}, {"bytes": [offset, size]}, "torch", "numpy" or "scalar": [dtype, shape,
offset, size], {"dtype": name}, and {"subclass": [module, class, {name: tensor}, context, shape, stride]} for a subclass
of Tensor that PyTorch can take apart. Numbers, texts, lists, true, false and null stand for themselves. Reading calls
nothing but __tensor_unflatten__ of classes that the program has imported.
"""

from __future__ import annotations

import collections
import ctypes
import json
import math
import random
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from .sampled import digest

MAGIC = b"ATOLLST1"
_SMALL = 1 << 16  # arrays up to this size are copied together, so that there are few parts

_NUMPY_KINDS = "biufc"
_TORCH_TYPES = (
    "float32 float64 float16 bfloat16 uint8 int8 int16 int32 int64 bool complex64 complex128 "
    "float8_e4m3fn float8_e5m2 uint16 uint32 uint64"
).split()


def _torch() -> Any:
    """torch, if the program uses it: this file never imports it."""
    return sys.modules.get("torch")


def is_plain(value: Any) -> bool:
    """A tensor whose memory holds its values. Subclasses keep theirs elsewhere, also where they have an address."""
    kind = type(value)
    return kind.__module__.split(".")[0] == "torch" and kind.__name__ in ("Tensor", "Parameter", "Buffer")


def check_tensor(value: Any, where: str) -> None:
    """Raises TypeError for a tensor that cannot be saved; `where` names it."""
    torch = _torch()
    if type(value).__name__ == "DTensor" or value.layout != torch.strided:
        raise TypeError(f"{where} is a {type(value).__name__} of {value.dtype}: atoll saves whole, dense tensors")
    if not is_plain(value):
        if not (hasattr(value, "__tensor_flatten__") and hasattr(type(value), "__tensor_unflatten__")):
            raise TypeError(
                f"{where} is a {type(value).__module__}.{type(value).__qualname__}, which has no __tensor_flatten__: "
                "atoll cannot save it, so use an optimizer whose state is plain tensors"
            )
    elif str(value.dtype).removeprefix("torch.") not in _TORCH_TYPES:
        raise TypeError(f"{where} is a tensor of {value.dtype}, which atoll cannot save")


class Writer:
    """Turns values into parts. Large CPU arrays are not copied: `parts` point into them, and `keep` holds them."""

    def __init__(self, stage: Callable[[int, Any], Any] | None = None) -> None:
        """stage(number, tensor): a finished copy in host memory of a tensor that is on a device."""
        self._stage = stage or (lambda _number, tensor: tensor.detach().cpu())
        self._size, self._small, self._staged = 0, bytearray(), 0
        self._order: list[tuple[int, int] | int] = []  # a large array, or a length in _small
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
            self._order.append((address, size))
        return [offset, size]

    def _array(self, value: Any, where: str) -> Any:
        kind = "numpy" if isinstance(value, np.ndarray) else "scalar"
        if value.dtype.kind not in _NUMPY_KINDS:
            raise TypeError(f"{where} is an array of {value.dtype}: atoll saves arrays of numbers")
        array = np.ascontiguousarray(value)  # at least one dimension
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
        if not is_plain(value):
            return self._subclass(value, where)
        kind, tensor = str(value.dtype).removeprefix("torch."), value.detach()
        if tensor.device.type != "cpu":
            tensor, self._staged = self._stage(self._staged, tensor), self._staged + 1
        tensor = tensor.contiguous()
        self.keep.append(tensor)
        size = tensor.numel() * tensor.element_size()
        return {"torch": [kind, list(value.shape), *self._add(tensor.data_ptr() if size else 0, size)]}

    def value(self, value: Any, where: str) -> Any:
        """The JSON form of a value; `where` names it in errors. Raises TypeError for what cannot be saved."""
        torch = _torch()
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

    def parts(self, header: Any, cap: int = 1 << 30) -> list[tuple[int, int]]:
        """[<= cap] (address, size) of all bytes in order; they stay valid as long as this object lives."""
        text = json.dumps(header).encode()
        head = ctypes.create_string_buffer(MAGIC + len(text).to_bytes(8, "little") + text)
        small = (ctypes.c_char * max(1, len(self._small))).from_buffer(self._small or bytearray(1))
        self.keep += [head, small]
        out, at = [(ctypes.addressof(head), len(head) - 1)], 0
        for item in self._order:
            if isinstance(item, int):
                out.append((ctypes.addressof(small) + at, item))
                at += item
            elif item[1]:
                out.append(item)
        if len(out) > cap:  # too many for the library: the last ones become one copy
            rest = b"".join(ctypes.string_at(*part) for part in out[cap - 1 :])
            joined = ctypes.create_string_buffer(rest, len(rest))
            self.keep.append(joined)
            out[cap - 1 :] = [(ctypes.addressof(joined), len(rest))]
        return out


class _Reader:
    def __init__(self, data: memoryview) -> None:
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
        torch = _torch()
        if not torch or kind not in _TORCH_TYPES:
            raise ValueError(f"it holds a torch tensor of {kind}")
        dtype = getattr(torch, kind)
        if min(shape, default=0) < 0 or math.prod(shape) * torch.empty(0, dtype=dtype).element_size() != size:
            raise ValueError("an array has another size than its shape")
        tensor = torch.empty(shape, dtype=dtype)
        if size:
            ctypes.memmove(tensor.data_ptr(), np.frombuffer(self._bytes(offset, size), np.uint8).ctypes.data, size)
        return tensor

    def _subclass_value(
        self, module: str, name: str, inner: Any, context: Any, shape: list[int], stride: list[int]
    ) -> Any:
        torch = _torch()
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
        if kind == "dtype" and payload in _TORCH_TYPES and _torch():
            return getattr(_torch(), payload)
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
    writer = Writer()
    return b"".join(ctypes.string_at(*part) for part in writer.parts(writer.value(value, "the value")))


def read(data: memoryview | bytes) -> Any:
    """The value that Writer wrote. Raises ValueError if the bytes are no such value."""
    try:
        reader = _Reader(memoryview(data))
        return reader.value(reader.header)
    except (KeyError, TypeError, IndexError, RecursionError, json.JSONDecodeError, UnicodeDecodeError) as e:
        raise ValueError(f"it is damaged ({e})") from e


# --- what is saved --------------------------------------------------------------------------------------------------


def get_random() -> dict[str, Any]:
    """The states of random, numpy.random and torch (CPU and CUDA)."""
    out: dict[str, Any] = {"python": random.getstate(), "numpy": np.random.get_state()}
    torch = _torch()
    if torch:
        out["torch"] = torch.get_rng_state()
        if torch.cuda.is_available() and torch.cuda.is_initialized():
            out["cuda"] = torch.cuda.get_rng_state_all()
    return out


def set_random(states: dict[str, Any]) -> None:
    """Sets what get_random returned."""
    random.setstate(states["python"])
    np.random.set_state(states["numpy"])
    torch = _torch()
    if torch and "torch" in states:
        torch.set_rng_state(states["torch"])
    if torch and "cuda" in states and torch.cuda.is_available():
        torch.cuda.set_rng_state_all(states["cuda"][: torch.cuda.device_count()])


class _Object:
    """One object of the program that has state: how to read and how to set it."""

    def __init__(self, value: Any, where: str) -> None:
        self.value, self.where = value, where
        torch = _torch()
        if isinstance(value, random.Random):
            self.get, self.set = value.getstate, value.setstate
        elif isinstance(value, np.random.Generator):
            self.get, self.set = lambda: value.bit_generator.state, self._set_bit_generator
        elif isinstance(value, np.random.RandomState):
            self.get, self.set = value.get_state, value.set_state
        elif torch and isinstance(value, torch.Generator):
            self.get, self.set = value.get_state, value.set_state
        elif isinstance(value, (dict, np.ndarray)):
            self.get, self.set = lambda: value, self._set_in_place
        elif hasattr(value, "state_dict") and hasattr(value, "load_state_dict"):
            self.get, self.set = value.state_dict, value.load_state_dict
            if torch and isinstance(value, torch.optim.Optimizer):
                self.set = self._set_optimizer
        else:
            raise TypeError(
                f"{where} is of type {type(value).__name__}, which has no state_dict: atoll saves objects with "
                "state_dict and load_state_dict, random generators, dicts and arrays"
            )

    def _set_bit_generator(self, state: Any) -> None:
        self.value.bit_generator.state = state

    def _set_in_place(self, saved: Any) -> None:
        if isinstance(self.value, np.ndarray):
            _copy_array(self.value, saved, self.where)
            return
        for key, old in list(self.value.items()):
            if key not in saved:
                del self.value[key]
            elif isinstance(old, np.ndarray):
                _copy_array(old, saved[key], f"{self.where}[{key!r}]")
        for key, new in saved.items():
            if not isinstance(self.value.get(key), np.ndarray):
                self.value[key] = new

    def _set_optimizer(self, saved: Any) -> None:
        """load_state_dict, which casts states to the type of their parameter; then those that lost bits by it again."""
        torch, optimizer = _torch(), self.value
        optimizer.load_state_dict(saved)
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        ids = [i for group in saved["param_groups"] for i in group["params"]]
        for number, p in zip(ids, parameters):
            for key, value in saved["state"].get(number, {}).items():
                now = optimizer.state[p].get(key)
                if isinstance(value, torch.Tensor) and isinstance(now, torch.Tensor) and now.dtype != value.dtype:
                    optimizer.state[p][key] = value.to(now.device)


def _copy_array(to: np.ndarray, saved: Any, where: str) -> None:
    if not isinstance(saved, np.ndarray) or saved.shape != to.shape:
        raise ValueError(f"{where} has another shape than when it was saved")
    np.copyto(to, saved)


class State:
    """All state of the program: optimizers, objects, local buffers, random numbers; of each rank what it has alone.

    objects: (name for errors, object). stage: as for Writer. The worker's own entries are `own`: name -> object with
    get() and set().
    """

    def __init__(
        self, objects: Sequence[tuple[str, Any]], stage: Callable[[int, Any], Any] | None = None
    ) -> None:
        self._objects = [_Object(value, name) for name, value in objects]
        self._stage, self._writer, self._initial = stage, None, b""  # type: ignore[var-annotated]
        self._others: list[bytes] = []  # the ranks above 0
        self._apart: bool | None = None  # the ranks have other objects, such as sharded optimizers; None: not compared
        self.own: dict[str, Any] = {}
        self.loaded = self.changed = False  # a saved state was restored; it was restored or reset

    def check_optimizers(self) -> None:
        """Raises TypeError if an optimizer has state that cannot be saved. Call it after the first step."""
        torch = _torch()
        for o in self._objects:
            for state in getattr(o.value, "state", {}).values() if isinstance(o.value, torch.optim.Optimizer) else ():
                for key, value in state.items() if isinstance(state, dict) else ():
                    if isinstance(value, torch.Tensor):
                        check_tensor(value, f"{o.where}: state {key!r}")

    def _value(self, writer: Writer) -> Any:
        value = {
            "objects": {"tuple": [writer.value(o.get(), o.where) for o in self._objects]},
            "random": writer.value(get_random(), "the random state"),
            "ranks": writer.value(self._others, "the states of the ranks"),
            "own": writer.value({name: o.get() for name, o in self.own.items()}, "the worker's notes"),
        }
        return {"map": value}

    def gather(self, ranks: Any) -> None:
        """Before a save, on all ranks: rank 0 gets what the others have alone. Random numbers always, objects only if
        they differed at the first call."""
        if ranks.size == 1:
            return
        if self._apart is None:
            digests = ranks.gather(digest([o.get() for o in self._objects]))
            self._apart = any(d != digests[0] for d in digests)
        objects = [o.get() for o in self._objects] if self._apart else None
        self._others = ranks.gather(write({"random": get_random(), "objects": objects}))[1:]

    def load_rank(self, rank: int) -> None:
        """After load, on a rank above 0: sets what the state holds for it alone."""
        if len(self._others) < rank:
            return
        own = read(self._others[rank - 1])
        if own["objects"] is not None:
            self._apply(own["objects"], own["random"])
        set_random(own["random"])

    def save(self, cap: int = 1 << 30) -> list[tuple[int, int]]:
        """Parts (address, size) that stay valid until the next save. Raises TypeError for what cannot be saved."""
        self._writer = Writer(self._stage)
        value = self._value(self._writer)
        return self._writer.parts(value, cap)

    def copy(self) -> bytes:
        """The same bytes, as a copy."""
        writer = Writer()
        return b"".join(ctypes.string_at(*part) for part in writer.parts(self._value(writer)))

    def note_initial(self) -> None:
        """Notes the present state as that of a new run."""
        self._initial = self.copy()

    def load(self, data: memoryview | bytes | None) -> None:
        """Sets a saved state; None: that of a new run. Raises ValueError if it does not fit: then it is the latter."""
        value = read(self._initial if data is None else data)
        try:
            objects, randoms, others, own = value["objects"], value["random"], value["ranks"], value["own"]
        except (KeyError, TypeError) as e:
            raise ValueError("it is damaged, or of another version of atoll") from e
        if len(objects) != len(self._objects):
            raise ValueError(f"it holds {len(objects)} objects, and this script gives {len(self._objects)}")
        try:
            self._apply(objects, randoms)
        except ValueError:
            if data is not None:
                self.load(None)
            raise
        for name, o in self.own.items() if data is not None else ():
            if name in own:
                o.set(own[name])
        self._others, self.loaded, self.changed = others, data is not None, True

    def _apply(self, objects: Sequence[Any], randoms: dict[str, Any]) -> None:
        for o, saved in zip(self._objects, objects):
            try:
                o.set(saved)
            except Exception as e:
                raise ValueError(f"{o.where}: {str(e).splitlines()[0] if str(e) else type(e).__name__}") from e
        set_random(randoms)
