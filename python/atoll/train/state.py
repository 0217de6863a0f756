"""The program's own state in saved states: inner optimizer, schedulers, random numbers; of each process its part.

A worker of one process gives its state to the library, in one piece. With several processes on one host each one writes
a file of its own (saved/files.py), and the library's file names them by a tag. Processes on other hosts send their part
to rank 0.
"""

from __future__ import annotations

import ctypes
import logging
import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np

from .. import _lib
from ..units import bytes_text
from .ranks import Ranks
from .sampled import digest
from .saved.files import RankFile, is_shared, reading
from .saved.objects import Object, get_random, set_random
from .saved.reshard import merged
from .saved.values import Reader, Writer, check_tensor, is_plain, is_shard, on_host, read, torch_module, write

__all__ = ["State", "Writer", "check_tensor", "get_random", "is_plain", "read", "set_random", "write"]

logger = logging.getLogger("atoll")

_COMPARED = 1 << 16  # bytes of an array that ranks compare whole, such as the state of a generator; else samples
_RESET, _LOADED = b"R", b"L"  # what rank 0 tells of a state that it loaded


class State:
    """All state of the program: optimizers, objects, local buffers, random numbers; of each rank what it has alone.

    objects: (name for errors, object). stage: as for Writer. The worker's own entries are `own`: name -> object with
    get() and set().
    """

    def __init__(
        self, objects: Sequence[tuple[str, Any]], stage: Callable[[int, Any], Any] | None = None
    ) -> None:
        self._objects = [Object(value, name) for name, value in objects]
        self._stage, self._writer, self._initial = stage, None, b""  # type: ignore[var-annotated]
        self._arrays: dict[int, np.ndarray] = {}  # copies of arrays, which the next save uses again
        self._others: list[bytes] = []  # the ranks above 0, if they have no files
        self._apart: list[bool] = []  # objects of which each rank has another part; empty: not compared yet
        self._rank, self._size, self._folder = 0, 1, ""
        self._file: RankFile | None = None
        self._tag = 0  # of the files of the present state; 0: none
        self._together = False  # the other ranks gave, or write, their part of the present state
        self._copied = 0  # bytes of the copies that exist
        self._way = -1  # of the last save: SAVE_HELD, SAVE_BESIDE
        self._loaded = b""  # what rank 0 loaded, for the other ranks
        self.own: dict[str, Any] = {}
        self.loaded = self.changed = False  # a saved state was restored; it was restored or reset

    def check_optimizers(self) -> None:
        """Raises TypeError if an optimizer has state that cannot be saved. Call it after the first step."""
        torch = torch_module()
        for o in self._objects:
            optimizer = o.optimizer
            for state in optimizer.state.values() if optimizer else ():
                for key, value in state.items() if isinstance(state, dict) else ():
                    if isinstance(value, torch.Tensor):
                        check_tensor(value, f"{o.where}: state {key!r}")

    @property
    def count(self) -> int:
        """Objects of the program, with the optimizers."""
        return len(self._objects)

    # --- several processes ------------------------------------------------------------------------------------------

    def open(self, ranks: Ranks, handle: Any) -> None:
        """The worker has its folder. All ranks call it before they join."""
        self._rank, self._size = ranks.rank, ranks.size
        self._folder = ranks.call(lambda: handle.dir().encode()).decode()
        if ranks.size == 1 or not is_shared(self._folder, ranks):
            return
        with _Agreement(ranks):
            self._file = RankFile(self._folder, ranks.rank)

    def close(self) -> None:
        """The worker is about to leave the run: what this rank writes is completed."""
        if self._file:
            self._file.close()
        self._file = None

    def prepare(self, ranks: Ranks, handle: Any) -> None:
        """Before a push, or a begin, on all ranks: if it saves, each rank starts to write its part."""
        if ranks.size == 1:
            return
        self._tag, self._together = 0, False
        copies = int(ranks.sums(np.array([self._bytes() - self._copied], np.float64))[0]) if self._file else 0
        way = int(ranks.call(lambda: b"%d" % handle.next_save(max(0, copies))))
        if way == _lib.SAVE_NONE:
            return
        self._compare(ranks)
        self._together = True
        if not self._file:
            self._others = ranks.gather(self._part())[1:]
            return
        tag = int.from_bytes(ranks.bytes(os.urandom(8) if ranks.rank == 0 else None), "little") or 1
        self._start_file(ranks, tag, beside=way == _lib.SAVE_BESIDE)
        if handle:
            handle.state_files(tag, ranks.size)
            self._tell(way, copies)
        self._way = way

    def _start_file(self, ranks: Ranks, tag: int, beside: bool) -> None:
        with _Agreement(ranks):
            assert self._file
            self._file.begin(tag)
        self._tag = tag
        try:
            writer = Writer(self._copy if beside else None, everything=beside)
            objects, randoms = self._part_form(writer)
            pieces = writer.pieces({"map": {"objects": objects, "random": randoms}})
            self._copied = max(self._copied, self._bytes()) if beside else self._copied
        except BaseException as e:  # rank 0 would wait for this file
            self._file.fail(str(e))
            raise
        torch = torch_module()
        if torch and torch.cuda.is_available() and torch.cuda.is_initialized():
            torch.cuda.synchronize()
        self._file.write(pieces, writer)

    def begun(self) -> None:
        """A round has begun on all ranks: from now on the state changes."""
        if self._file and self._way == _lib.SAVE_HELD:
            self._file.join()  # the library has waited for it already, unless the save failed
        self._tag, self._together = 0, False

    def _tell(self, way: int, copies: int) -> None:
        changed = way != self._way
        if changed and way == _lib.SAVE_BESIDE:
            logger.info("saves: each process writes its part of the state beside the training, from a copy (%s in all)",
                        bytes_text(copies))
        elif changed:
            logger.info("saves: each process writes its part of the state (%s in this one) without a copy, and the "
                        "delta waits for the disk", bytes_text(self._bytes()))

    def _copy(self, number: int, value: Any) -> Any:
        """A copy of a tensor or an array, in memory that the next save uses again."""
        if not isinstance(value, np.ndarray):
            return (self._stage or on_host)(number, value)
        held = self._arrays.get(number)
        if held is None or held.shape != value.shape or held.dtype != value.dtype:
            held = self._arrays[number] = np.empty_like(value)
        np.copyto(held, value)
        return held

    def _bytes(self) -> int:
        """Bytes of this rank's part."""
        return sum(_bytes_of(o.get()) for i, o in enumerate(self._objects) if self._keeps(i))

    def _keeps(self, i: int) -> bool:
        """Whether this rank saves object i: rank 0 all, the others what they have alone."""
        return self._rank == 0 or not self._apart or self._apart[i]

    def _compare(self, ranks: Ranks) -> None:
        """Finds the objects of which the ranks have different parts. Before each save, because state may begin late: an
        average, an optimizer that does not step at first, a generator that one rank draws from."""
        apart = self._apart or [False] * len(self._objects)
        marks = [known or o.partition or _has_shards(o.get()) for known, o in zip(apart, self._objects)]
        own = [b"%-8d" % i if marks[i] else digest(o.get(), _COMPARED) for i, o in enumerate(self._objects)]
        rows = ranks.gather(b"".join(own))
        cells = [[row[at : at + 8] for row in rows] for at in range(0, len(rows[0]), 8)]
        self._apart = [mark or len(set(found)) > 1 for mark, found in zip(marks, cells)]

    def share(self, ranks: Ranks) -> None:
        """A state that was restored, or reset, on rank 0: the other ranks do the same with their part."""
        if ranks.size == 1:
            return
        changed, self.changed = self.changed, False
        data = ranks.call(lambda: (self._loaded or _RESET) if changed else b"")
        with _Agreement(ranks):
            if data and ranks.rank:
                self.load(None if data == _RESET else data[len(_LOADED) :])

    # --- save -------------------------------------------------------------------------------------------------------

    def _value(self, writer: Writer) -> Any:
        value = {"own": writer.value({name: o.get() for name, o in self.own.items()}, "the worker's notes")}
        if self._tag:
            value["files"] = {"map": {"tag": f"{self._tag:016x}", "ranks": self._size}}
            return {"map": value}
        value["objects"], value["random"] = self._part_form(writer)
        value["ranks"] = writer.value(self._others, "the states of the ranks")
        return {"map": value}

    def _part_form(self, writer: Writer) -> tuple[Any, Any]:
        """What this rank saves: its objects and random numbers. Raises TypeError for what cannot be saved."""
        objects = [writer.value(o.get(), o.where) if self._keeps(i) else None for i, o in enumerate(self._objects)]
        return {"tuple": objects}, writer.value(get_random(), "the random state")

    def _part(self) -> bytes:
        writer = Writer(on_host)
        objects, randoms = self._part_form(writer)
        form = {"map": {"objects": objects, "random": randoms}}
        return b"".join(ctypes.string_at(*part) for part in writer.parts(form))

    def save(self, cap: int = 1 << 30) -> list[tuple[int, int]] | None:
        """Parts (address, size) that stay valid until the next save. None: the other ranks' parts are of an earlier
        moment. Raises TypeError for what cannot be saved."""
        if self._size > 1 and not self._together:
            return None
        self._writer = Writer(self._stage or on_host)
        value = self._value(self._writer)
        return self._writer.parts(value, cap)

    def copy(self) -> bytes:
        """All that this rank has, as a copy."""
        apart, self._apart = self._apart, []
        data = self._part()
        self._apart = apart
        return data

    def note_initial(self) -> None:
        """Notes the present state as that of a new run."""
        self._initial = self.copy()

    # --- load -------------------------------------------------------------------------------------------------------

    def load(self, data: memoryview | bytes | None) -> None:
        """Sets a saved state; None: that of a new run. Raises ValueError if it does not fit: then it is the latter, and
        InvalidError if it cannot be used by this number of processes."""
        if self._file:
            self._file.join()
        self._tag, self._together, self._loaded = 0, False, b""
        if data is None:
            part = read(self._initial)
            self._apply(part["objects"], part["random"])
            self.loaded, self.changed = False, True
            return
        value = read(data)
        if not isinstance(value, dict) or not ("files" in value or "objects" in value and "random" in value):
            raise ValueError("it is damaged, or of another version of atoll")
        if "objects" in value:
            self._check_number(len(value["objects"]))
        try:
            self._restore(value)
        except ValueError:
            self.load(None)
            raise
        for name, o in self.own.items():
            if name in value.get("own", {}):
                o.set(value["own"][name])
        self._loaded = _LOADED + bytes(data) if self._size > 1 and self._rank == 0 else b""
        self.loaded, self.changed = True, True

    def _restore(self, value: dict[str, Any]) -> None:
        """value: what rank 0 saved, with the parts of the other ranks or the tag of their files."""
        with ExitStack() as open_files:
            if "files" in value:
                tag, n = int(value["files"]["tag"], 16), int(value["files"]["ranks"])

                def part_of(rank: int) -> dict[str, Any]:
                    reader: Reader = open_files.enter_context(reading(self._folder, rank, tag))
                    return dict(reader.value(reader.header))
            else:
                n = 1 + len(value.get("ranks", ()))

                def part_of(rank: int) -> dict[str, Any]:
                    part = value if rank == 0 else read(value["ranks"][rank - 1])
                    return {**part, "objects": part["objects"] or (None,) * len(value["objects"])}

            if n == self._size:
                part = part_of(self._rank)
                shared = part if self._rank == 0 else part_of(0)
                objects = [own if own is not None else of_all
                           for own, of_all in zip(part["objects"], shared["objects"])]
                self._apply(objects, part["random"])
            else:
                self._apply(self._merged([part_of(rank) for rank in range(n)]), None)

    def _merged(self, parts: list[dict[str, Any]]) -> list[Any]:
        """The objects of another number of processes. Raises InvalidError for those that cannot be split again."""
        self._check_number(len(parts[0]["objects"]))
        objects, n = [], len(parts)
        for i, o in enumerate(self._objects):
            values = [part["objects"][i] for part in parts]
            try:
                if any(v is None for v in values[1:]) or n == 1:
                    objects.append(values[0])
                elif o.partition:
                    raise ValueError(f"{o.where} is a ZeroRedundancyOptimizer, and each process has another part of it")
                else:
                    objects.append(merged(values, o.where))
                objects[-1] = o.fitted(objects[-1], self._parameters())
            except ValueError as e:
                raise _lib.InvalidError(
                    f"the saved state is of {n} processes, and this worker has {self._size}: {e}: start it with {n} "
                    "processes, or with a new folder (dir=)"
                ) from e
        if self._rank == 0:
            logger.info("the saved state is of %d processes, and this worker has %d: took over the optimizer; random "
                        "numbers begin anew", n, self._size)
        return objects

    def _parameters(self) -> list[Any]:
        optimizers = [o.optimizer for o in self._objects if o.optimizer]
        return [p for optimizer in optimizers for group in optimizer.param_groups for p in group["params"]]

    def _check_number(self, n: int) -> None:
        if n != len(self._objects):
            raise ValueError(f"it holds {n} objects, and this script gives {len(self._objects)}")

    def _apply(self, objects: Sequence[Any], randoms: dict[str, Any] | None) -> None:
        """randoms None: they stay as they are."""
        self._check_number(len(objects))
        parameters = self._parameters()
        for o, saved in zip(self._objects, objects):
            try:
                o.set(o.fitted(saved, parameters))
            except Exception as e:
                raise ValueError(f"{o.where}: {str(e).splitlines()[0] if str(e) else type(e).__name__}") from e
        if randoms is not None:
            set_random(randoms)


class _Agreement:
    """A block that all ranks execute. An error of one of them is raised on all."""

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks

    def __enter__(self) -> None:
        pass

    def __exit__(self, _kind: Any, error: BaseException | None, _trace: Any) -> None:
        if error is not None and not isinstance(error, Exception):
            return
        texts = self._ranks.gather(b"" if error is None else b"-" + str(error).encode())
        first = next((i for i, text in enumerate(texts) if text), None)
        if error is None and first is not None:
            raise _lib.Error(f"rank {first}: {texts[first][1:].decode()}")


def _walk(value: Any) -> Any:
    """All values that are in containers."""
    if isinstance(value, dict):
        for item in value.values():
            yield from _walk(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _walk(item)
    else:
        yield value


def _has_shards(value: Any) -> bool:
    return any(is_shard(item) for item in _walk(value))


def _bytes_of(value: Any) -> int:
    """Bytes of the tensors and arrays in a value that this process holds."""
    total = 0
    for item in _walk(value):
        held = item.to_local() if is_shard(item) else item
        if hasattr(held, "nbytes"):
            total += int(held.nbytes)
    return total
