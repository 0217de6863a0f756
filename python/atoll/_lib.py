"""ctypes bindings of include/atoll.h: one class for a worker, one for token shards.

Nothing here knows a model. The contract of each call (errors, blocking, ownership) stands in include/atoll.h.
"""

from __future__ import annotations

import atexit
import ctypes
import logging
import math
import os
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from ctypes import POINTER, byref, c_char_p, c_int, c_size_t, c_uint32, c_uint64, c_void_p
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from . import _structs as c
from ._structs import DIMS_MAX

OK, INVALID, REFUSED, UNREACHABLE, NONFINITE, EXHAUSTED, ORDER, NOMEM, IO, FAILED, STOPPED = range(11)
WAITING, TRAIN, EVALUATE, DONE = range(4)
CONTINUE, SYNC, DROPPED = range(3)
SAVE_NONE, SAVE_HELD, SAVE_BESIDE = range(3)  # enum atoll_save
STATE_KEEP = ctypes.c_size_t(-1).value  # ATOLL_STATE_KEEP
CHANGES, PARAMETERS = range(2)  # enum atoll_exchange
DECAY, MEAN = 1, 2  # flags of a tensor
_NAME_MAX = 63
_NO_LIMIT = 2**32 - 1  # seconds

logger = logging.getLogger("atoll")


class Error(RuntimeError):
    """A failure, in one line: what is wrong, where, and what to do. `status` is the library's, or None."""

    status: int | None = None


class Done(Error):
    """The run is complete, and the loop went on. A `with` block of the worker ends with it, and the script goes on."""


class InvalidError(Error, ValueError):
    """An argument, a file or a setting is wrong: the same call fails again."""


class RefusedError(Error):
    """The coordinator refused this worker, or the run is another one."""


class UnreachableError(Error, ConnectionError):
    """The coordinator does not answer."""


class NonFiniteError(Error, ArithmeticError):
    """The parameters hold NaN or infinity."""


class StoppedError(Error, SystemExit):
    """The run has used up its budget (run.max_hours, run.max_gb). Uncaught, it ends the script with code 75 and a line.

    The same command continues when the run does.
    """

    def __init__(self, text: str = "the budget of the run is used up") -> None:
        super().__init__(text)
        self.code = 75
        print(f"atoll: {text}", file=sys.stderr)


_CLASSES: dict[int, type[Error]] = {
    INVALID: InvalidError,
    REFUSED: RefusedError,
    UNREACHABLE: UnreachableError,
    NONFINITE: NonFiniteError,
    STOPPED: StoppedError,
}


@dataclass(frozen=True)
class Tensor:
    """One tensor of the layout: `name` as in the model's safetensors file, `flags` of DECAY and MEAN."""

    name: str
    shape: tuple[int, ...]
    flags: int


@dataclass(frozen=True)
class Data:
    """A data set: all workers of a run must have equal values. samples 0: the worker draws its own samples."""

    hash: int = 0
    samples: int = 0
    sample_tokens: int = 0


@dataclass(frozen=True)
class Round:
    """One round: `steps` inner steps of `step_samples` samples; `position` is the schedule's, in steps of the run."""

    round: int
    steps: int
    step_samples: int
    position: float
    position_rate: float
    worker: int
    lr: float = math.nan  # of the run's newest merged round, mean over its workers; NaN: not known
    epoch: float = 0.0  # epochs of the training data that earlier rounds got


class Frozen(NamedTuple):
    """A tensor that is not exchanged and must be equal on all workers. dtype: as safetensors writes it."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    bytes: int
    hash: int


Evaluation = c.Evaluation


@dataclass(frozen=True)
class Info:
    """What this worker knows of the run. Bytes are counted on its sockets, seconds are those of the last round."""

    run: str = ""
    name: str = ""
    method: str = ""
    family: str = ""
    round: int = 0
    bytes_up: int = 0
    bytes_down: int = 0
    rtt_s: float = 0.0
    compute_s: float = 0.0
    compress_s: float = 0.0
    send_s: float = 0.0
    wait_s: float = 0.0
    apply_s: float = 0.0
    theta_hash: str = ""  # hex, as in summary.json; empty: none yet
    connected: bool = False


# --- finding the library and the programs ---------------------------------------------------------------------------


def _checkout() -> Path | None:
    root = Path(__file__).resolve().parents[2]
    return root if (root / "include" / "atoll.h").is_file() else None


def _candidates() -> list[str]:
    given = os.environ.get("ATOLL_LIB")
    if given:
        return [given]
    places = [Path(__file__).resolve().parent / "lib" / "libatoll.so"]
    root = _checkout()
    if root:
        places.append(root / "build" / "lib" / "libatoll.so")
    return [str(p) for p in places if p.is_file()] + ["libatoll.so.0", "libatoll.so"]


def program(name: str) -> str:
    """Path of one of Atoll's programs, for example "atoll-coordinator".

    It looks in the folder ATOLL_BIN, in the package, in build/bin of a checkout, and in PATH. Raises Error.
    """
    given = os.environ.get("ATOLL_BIN")
    folders = [Path(given)] if given else [Path(__file__).resolve().parent / "bin"]
    root = _checkout()
    if root and not given:
        folders.append(root / "build" / "bin")
    for folder in folders:
        if os.access(folder / name, os.X_OK):
            return str(folder / name)
    found = None if given else shutil.which(name)
    if not found:
        where = f"in {given} (ATOLL_BIN)" if given else "in the package and in PATH"
        raise Error(f"{name} is not {where}: install the package again, or set ATOLL_BIN to its folder")
    return found


def _declare(lib: ctypes.CDLL) -> ctypes.CDLL:
    handle, error = c_void_p, POINTER(c.Error)
    signatures: dict[str, tuple[object, list[object]]] = {
        "atoll_set_log": (None, [c.Log, c_void_p]),
        "atoll_version": (c_char_p, []),
        "atoll_open": (c_int, [POINTER(handle), POINTER(c.Options), error]),
        "atoll_set_data": (c_int, [handle, POINTER(c.Data), POINTER(c.Data), error]),
        "atoll_params": (c_void_p, [handle]),
        "atoll_n_params": (c_uint64, [handle]),
        "atoll_exchanges": (c_int, [handle]),
        "atoll_offset": (c_uint64, [handle, c_uint32]),
        "atoll_wait": (c_int, [handle, c_uint32, POINTER(c_int), error]),
        "atoll_text": (c_char_p, [handle]),
        "atoll_begin": (c_int, [handle, POINTER(c.Round), error]),
        "atoll_samples": (c_int, [handle, c_void_p, c_uint32, error]),
        "atoll_step": (c_int, [handle, POINTER(c.Step), POINTER(c_int), error]),
        "atoll_push": (c_int, [handle, error]),
        "atoll_evaluation": (c_int, [handle, POINTER(c.Evaluation), error]),
        "atoll_evaluated": (c_int, [handle, c_void_p, c_void_p, error]),
        "atoll_get_info": (None, [handle, POINTER(c.Info)]),
        "atoll_theta_hash": (c_uint64, [handle]),
        "atoll_setting": (c_int, [handle, c_char_p, c_char_p, c_size_t, error]),
        "atoll_dir": (c_char_p, [handle]),
        "atoll_next_save": (c_int, [handle, c_uint64]),
        "atoll_state_files": (None, [handle, c_uint64, c_uint32]),
        "atoll_leave": (None, [handle, c_char_p]),
        "atoll_abandon": (None, [handle]),
        "atoll_close": (None, [handle]),
        "atoll_tokens_open": (c_int, [POINTER(handle), c_char_p, c_uint32, POINTER(c.Data), error]),
        "atoll_tokens_read": (c_int, [handle, c_uint64, c_void_p, error]),
        "atoll_tokens_close": (None, [handle]),
    }
    for name, (result, arguments) in signatures.items():
        function = getattr(lib, name)
        function.restype, function.argtypes = result, arguments
    return lib


_library: ctypes.CDLL | None = None


def library() -> ctypes.CDLL:
    """The loaded libatoll.so; its log lines go to the logger "atoll". Raises Error if the file is not found."""
    global _library
    if _library is None:
        tried = []
        for place in _candidates():
            try:
                _library = _declare(ctypes.CDLL(place))
                break
            except OSError as e:
                tried.append(str(e))
        if _library is None:
            raise Error(f"libatoll.so does not load: {'; '.join(tried)}: install the package again, or set ATOLL_LIB")
        _library.atoll_set_log(_on_log, None)
        atexit.register(_library.atoll_set_log, c.Log(), None)  # its threads must not call a finished interpreter
    return _library


def version() -> str:
    """The version of the library."""
    return str(library().atoll_version().decode())


# --- log ------------------------------------------------------------------------------------------------------------

_interrupted = False
_LEVELS = (logging.ERROR, logging.WARNING, logging.INFO, logging.DEBUG)


@c.Log
def _on_log(_ctx: object, level: int, line: bytes) -> None:
    text = line.decode(errors="replace")
    if text.startswith("step "):  # the program prints its own steps
        level = 3
    try:
        logger.log(_LEVELS[level], text)
    except KeyboardInterrupt:  # it may not pass through C: the next call raises it
        global _interrupted
        _interrupted = True


class _DefaultHandler(logging.StreamHandler):  # type: ignore[type-arg]
    """Prints `atoll: LINE` to stderr as long as the program has configured no handler."""

    def emit(self, record: logging.LogRecord) -> None:
        if not logging.getLogger().handlers and logger.handlers == [self]:
            self.stream = sys.stderr  # as logging.lastResort: also after sys.stderr was replaced
            super().emit(record)


def _configure_log() -> None:
    handler = _DefaultHandler()
    handler.setFormatter(logging.Formatter("atoll: %(message)s"))
    logger.addHandler(handler)
    if logger.level == logging.NOTSET:
        logger.setLevel(logging.INFO)


_configure_log()


# --- calls ----------------------------------------------------------------------------------------------------------


def check(status: int, error: c.Error) -> None:
    """Raises the error of a function of the library that failed."""
    if status != OK:
        text = error.text.decode(errors="replace") or f"the library failed with status {status}"
        e = _CLASSES.get(status, Error)(text)
        e.status = status
        raise e


def _raise_interrupt() -> None:
    global _interrupted
    if _interrupted:
        _interrupted = False
        raise KeyboardInterrupt


def _encoded(option: str, text: str | os.PathLike[str] | None) -> bytes | None:
    """The bytes of an option for C, which would end at a zero byte. The library checks the rest."""
    try:
        encoded = None if text is None else os.fsencode(text)
    except UnicodeEncodeError:
        raise InvalidError(f"{option} must be UTF-8 without control characters") from None
    if encoded is not None and b"\0" in encoded:
        raise InvalidError(f"{option} must be UTF-8 without control characters, but has a zero byte")
    return encoded


def _shown(devices: str) -> bytes:
    """The names of devices for the status: the first 63 bytes, without a cut character."""
    shown = "".join(letter if letter.isprintable() else "?" for letter in devices).encode()
    return shown[:_NAME_MAX].decode(errors="ignore").encode()


def _data(data: Data) -> c.Data:
    return c.Data(data.hash, data.samples, data.sample_tokens)


def _name_tensor(to: c.Tensor | c.Frozen, tensor: Tensor | Frozen) -> None:
    """Sets name and shape."""
    if len(tensor.shape) > DIMS_MAX:
        raise InvalidError(f"tensor {tensor.name} has {len(tensor.shape)} dimensions: at most {DIMS_MAX} are possible")
    to.name, to.ndim = _encoded("the name of a tensor", tensor.name), len(tensor.shape)
    to.shape[: len(tensor.shape)] = tensor.shape


def _memory(name: str, given: np.ndarray | int | None, n: int) -> int | None:
    """The address of [n] float32 that the program lends; an address is taken as it is."""
    if given is None or isinstance(given, int):
        return given
    if given.dtype != np.float32 or given.size != n or not given.flags.c_contiguous or not given.flags.writeable:
        raise InvalidError(f"{name} must be a writeable, contiguous float32 array with {n} elements")
    return given.ctypes.data


class Handle:
    """struct atoll. Its methods are the functions of include/atoll.h; a failed call raises a subclass of Error.

    save: returns parts (address, bytes), valid until the next begin; None: not now. load: takes the bytes, or None for
    the state of a new run. frozen_read(i, offset, out): fills `out` with the bytes from `offset` of frozen[i]; None:
    checkpoints do not hold them. Views are valid during the call. theta, change: [n_params] float32, lent until close,
    as arrays or addresses (options.theta); params is then empty.
    """

    def __init__(
        self,
        tensors: Sequence[Tensor],
        *,
        join: str | os.PathLike[str] | None,
        name: str | None,
        dir: str | os.PathLike[str] | None,
        devices: str,
        files: Mapping[str, bytes],
        save: Callable[[int], list[tuple[int, int]] | None],
        load: Callable[[memoryview | None], None],
        threads: int = 0,
        max_wait_s: float = 0,
        frozen: Sequence[Frozen] = (),
        frozen_any: bool = False,
        frozen_read: Callable[[int, int, memoryview], None] | None = None,
        theta: np.ndarray | int | None = None,
        change: np.ndarray | int | None = None,
    ) -> None:
        self._lib, self._a, self._raised = library(), c_void_p(), None  # type: ignore[var-annotated]
        self._pid, self._save, self._load = os.getpid(), save, load
        self._callbacks = c.Save(self._on_save), c.Load(self._on_load)
        self._frozen_read = frozen_read
        self._read_callback = c.Read(self._on_read) if frozen_read else c.Read()
        c_tensors = (c.Tensor * max(1, len(tensors)))()
        for at, t in zip(c_tensors, tensors):
            _name_tensor(at, t)
            at.flags = t.flags
        named = [c.File(_encoded("the name of a file", name), data, len(data)) for name, data in files.items()]
        c_files = (c.File * max(1, len(files)))(*named)
        c_frozen = (c.Frozen * max(1, len(frozen)))()
        for c_one, one in zip(c_frozen, frozen):
            _name_tensor(c_one, one)
            c_one.dtype, c_one.bytes, c_one.hash = _encoded("a dtype", one.dtype), one.bytes, one.hash
        size = sum(math.prod(t.shape) for t in tensors)
        self._means, self._lent = [bool(t.flags & MEAN) for t in tensors], (theta, change)  # keeps the arrays alive
        options = c.Options(
            size=ctypes.sizeof(c.Options),
            join=_encoded("join", join),
            name=_encoded("name", name),
            dir=_encoded("dir", dir),
            devices=_shown(devices),
            tensors=c_tensors,
            n_tensors=len(tensors),
            files=c_files,
            n_files=len(files),
            state=c.State(None, *self._callbacks),
            threads=threads,
            max_wait_s=_NO_LIMIT if max_wait_s == math.inf else int(max_wait_s),
            frozen=c_frozen,
            n_frozen=len(frozen),
            frozen_any=frozen_any,
            frozen_read=self._read_callback,
            theta=_memory("theta", theta, size),
            change=_memory("change", change, size),
        )
        error = c.Error()
        check(self._lib.atoll_open(byref(self._a), byref(options), byref(error)), error)
        n, address = self._lib.atoll_n_params(self._a), self._lib.atoll_params(self._a)
        self.params: np.ndarray = np.empty(0, np.float32)
        """[n_params] float32: all tensors end to end, in the caller's order. Valid until close."""
        if address:
            self.params = np.ctypeslib.as_array(ctypes.cast(address, POINTER(ctypes.c_float)), (n,))

    def _on_save(self, _ctx: object, parts: object, cap: int) -> int:
        try:
            given = self._save(cap)
            if given is None:
                return STATE_KEEP
            for i, (address, size) in enumerate(given):
                parts[i].data, parts[i].size = address, size  # type: ignore[index]
            return len(given)
        except BaseException as e:  # it may not pass through C
            self._raised = e
            return 0

    def _on_load(self, _ctx: object, data: int | None, size: int) -> int:
        try:
            view = memoryview((ctypes.c_ubyte * size).from_address(data)).cast("B") if data else None
            self._load(view)
            return 0
        except ValueError as e:  # the bytes do not fit; InvalidError: another number of processes can use them
            if isinstance(e, InvalidError):
                self._raised = e
                return -1
            logger.warning("the saved state does not fit this script: %s", e)
            return -1
        except BaseException as e:
            self._raised = e
            return -1

    def _on_read(self, _ctx: object, i: int, offset: int, out: int, size: int) -> int:
        assert self._frozen_read
        try:
            self._frozen_read(i, offset, memoryview((ctypes.c_ubyte * size).from_address(out)).cast("B"))
            return 0
        except BaseException as e:
            self._raised = e
            return -1

    def _call(self, function: str, *arguments: object) -> None:
        if not self._a:
            raise Error("the worker is closed: it works only inside its `with` block")
        if os.getpid() != self._pid:
            raise Error("a forked process used the worker of its parent: use it only in the process that made it")
        error = c.Error()
        status = getattr(self._lib, function)(self._a, *arguments, byref(error))
        raised, self._raised = self._raised, None
        if raised is not None:
            raise raised
        _raise_interrupt()
        check(status, error)

    @property
    def exchanges(self) -> int:
        """With `theta`, once the first event arrived: CHANGES or PARAMETERS. Means: see adds."""
        return int(self._lib.atoll_exchanges(self._a)) if self._a else PARAMETERS

    def adds(self, i: int) -> bool:
        """Whether the program adds theta - trained of tensor i to `change`; otherwise it writes the trained values."""
        return self.exchanges == CHANGES and not self._means[i]

    def offset(self, i: int) -> int:
        """With `theta`: the first element of tensor i in theta and change. The first event may change it."""
        return int(self._lib.atoll_offset(self._a, i))

    def set_data(self, train: Data, val: Data) -> None:
        self._call("atoll_set_data", byref(_data(train)), byref(_data(val)))

    def wait(self, timeout_ms: int) -> int:
        event = c_int()
        self._call("atoll_wait", timeout_ms, byref(event))
        return event.value

    def text(self) -> str:
        return str(self._lib.atoll_text(self._a).decode(errors="replace")) if self._a else ""

    def begin(self) -> Round:
        r = c.Round()
        self._call("atoll_begin", byref(r))
        return Round(r.round, r.steps, r.step_samples, r.position, r.position_rate, r.worker, r.lr, r.epoch)

    def samples(self, n: int) -> np.ndarray:
        """[n] uint64: the next samples of this round."""
        indices = np.empty(n, np.uint64)
        self._call("atoll_samples", indices.ctypes.data, n)
        return indices

    def step(self, tokens: int, loss: float, lr: float, grad_norm: float, step_us: int) -> int:
        action = c_int()
        self._call("atoll_step", byref(c.Step(tokens, loss, lr, grad_norm, step_us)), byref(action))
        return action.value

    def push(self) -> None:
        self._call("atoll_push")

    def evaluation(self) -> Evaluation:
        e = c.Evaluation()
        self._call("atoll_evaluation", byref(e))
        return e

    def evaluated(self, loss_sums: np.ndarray, tokens: np.ndarray) -> None:
        """loss_sums: [n_parts] float64, nats summed over tokens: [n_parts] uint64."""
        self._call("atoll_evaluated", loss_sums.ctypes.data, tokens.ctypes.data)

    def info(self, hashed: bool = True) -> Info:
        """hashed: also theta_hash, which reads all parameters."""
        i, value = c.Info(), 0
        if self._a:
            self._lib.atoll_get_info(self._a, byref(i))
            value = self._lib.atoll_theta_hash(self._a) if hashed else 0
        texts = [field.decode(errors="replace") for field in (i.run, i.name, i.method, i.family)]
        theta_hash = f"{value:016x}" if value else ""
        times = (i.compute_s, i.compress_s, i.send_s, i.wait_s, i.apply_s)
        return Info(*texts, i.round, i.bytes_up, i.bytes_down, i.rtt_us / 1e6, *times, theta_hash, bool(i.connected))

    def setting(self, key: str) -> str:
        out = ctypes.create_string_buffer(4096)
        self._call("atoll_setting", _encoded("the key", key), out, len(out))
        return out.value.decode()

    def dir(self) -> str:
        """The worker's own folder."""
        return os.path.abspath(os.fsdecode(self._lib.atoll_dir(self._a))) if self._a else ""

    def next_save(self, copies: int) -> int:
        """What the next push, or begin, does with the state: SAVE_NONE, SAVE_HELD or SAVE_BESIDE.

        copies: bytes that the program takes for a copy of its state. It waits for a save that still runs.
        """
        return int(self._lib.atoll_next_save(self._a, copies)) if self._a else SAVE_NONE

    def state_files(self, tag: int, ranks: int) -> None:
        """The next saved states have a file of each rank, with this tag; ranks 0: none."""
        if self._a:
            self._lib.atoll_state_files(self._a, tag, ranks)

    def leave(self, text: str) -> None:
        if self._a and os.getpid() == self._pid:
            self._lib.atoll_leave(self._a, text.encode(errors="replace")[: c.TEXT_MAX // 2])

    def abandon(self) -> None:
        """Ends the connection as a killed process does: the run waits for this worker."""
        if self._a and os.getpid() == self._pid:
            self._lib.atoll_abandon(self._a)

    def close(self) -> None:
        if self._a and os.getpid() == self._pid:
            self._lib.atoll_close(self._a)
        self._a = c_void_p()
        self.params, self._lent = np.empty(0, np.float32), (None, None)


TOKEN_MASK = np.uint32(0x80000000)  # ATOLL_TOKEN_MASK: this token gives no loss as a target


class TokenShards:
    """struct atoll_tokens: samples of `sample_tokens` + 1 tokens from shards that `atoll prepare` wrote."""

    def __init__(self, pattern: str | os.PathLike[str], sample_tokens: int) -> None:
        self._lib, self._t, data, error = library(), c_void_p(), c.Data(), c.Error()
        opened = self._lib.atoll_tokens_open(
            byref(self._t), _encoded("the pattern of token shards", pattern), sample_tokens, byref(data), byref(error)
        )
        check(opened, error)
        self.data, self._tokens = Data(data.hash, data.samples, data.sample_tokens), sample_tokens + 1

    def read(self, index: int) -> np.ndarray:
        """[sample_tokens + 1] uint32, some with TOKEN_MASK. Raises InvalidError (no such sample) or Error."""
        out, error = np.empty(self._tokens, np.uint32), c.Error()
        check(self._lib.atoll_tokens_read(self._t, index, out.ctypes.data, byref(error)), error)
        return out

    def close(self) -> None:
        self._lib.atoll_tokens_close(self._t)
        self._t = c_void_p()
