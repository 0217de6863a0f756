"""Worker: joins a run, counts the steps of the program's optimizer, and exchanges parameters at sync points."""

from __future__ import annotations

import logging
import math
import os
import sys
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from .. import _lib
from .batches import count_tokens, describe
from .notes import StepNotes, detached, on_gpu
from .ranks import Ranks, ranks
from .state import State, get_random, read, set_random, write
from ..units import bytes_text, duration_text

logger = logging.getLogger("atoll")

_SLICE_MS = 200  # a wait is cut into slices, between which Python handles Ctrl-C


def _undivided(function: Any) -> Any:
    """Keeps torch.compile from looking into a hook."""
    torch = sys.modules.get("torch")
    return torch.compiler.disable(function) if torch else function


class Worker:
    """One worker of a run: a context manager around the program's training loop.

        with atoll.Worker(model, optimizer, join="tcp://...") as worker:
            for batch in atoll.batches(dataset, worker, batch_size=16):
                loss = worker.loss(model(batch))
                loss.backward(); optimizer.step(); optimizer.zero_grad()

    Arguments:
        model_or_parameters: a torch.nn.Module (also inside DistributedDataParallel or torch.compile), a dict of
            name -> torch tensor, or a dict of name -> float32 numpy array. Parameters with requires_grad False stay
            out. They are updated in place.
        optimizer: a torch optimizer, or a list of them (the last one's step counts). Its `step` is hooked, and its
            state is saved. None: the program calls worker.step().
        join: the coordinator's join line, a file with it, or a run folder on this machine. None: ATOLL_JOIN.
        every: inner steps between two sync points. None: the run's train.sync_every; another number: ValueError.
        dir: the worker's own folder, with its key and its saved state. None: ./atoll-worker-NAME.
        name: unique in the run. None: that of `dir`, or the host's, followed by -2, -3, ... if another worker has it.
        buffers: "mean": float buffers (BatchNorm) become the mean over the workers; "local": they stay as they are.
        state: objects that are saved and restored with the optimizer: schedulers, GradScaler, generators, dicts of
            arrays. Each has state_dict and load_state_dict, or is a generator, a dict or an array.
        evaluate: callable(model, indices) -> (loss_sum, tokens) on samples `indices` of `val`: nats summed over tokens.
            The worker then takes part in evaluations. The model is in evaluation mode and has the run's parameters.
        train, val: the data sets. atoll.batches sets `train`.
        files: files for the model's folder, beside config.json: a folder, a dict of name -> bytes, or a tokenizer.
        names: name of a parameter -> its name in the run. PEFT adapters get the names of their file.
        threads: for encoding and applying; 0: one per core, at most 8.
        max_wait: seconds without an answer of the coordinator after which calls fail; 0: no limit after the join.

    With torch.distributed and several processes, rank 0 speaks with the coordinator, and the others follow it.
    Raises Error and its subclasses, each with one line that says what is wrong and what to do.
    """

    def __init__(
        self,
        model_or_parameters: Any,
        optimizer: Any = None,
        *,
        join: str | os.PathLike[str] | None = None,
        every: int | None = None,
        dir: str | os.PathLike[str] | None = None,
        name: str | None = None,
        buffers: str = "mean",
        state: Sequence[Any] = (),
        evaluate: Callable[[Any, np.ndarray], tuple[float, int]] | None = None,
        train: Any = None,
        val: Any = None,
        files: Any = None,
        names: Mapping[str, str] | None = None,
        threads: int = 0,
        max_wait: int = 0,
    ) -> None:
        if evaluate is not None and val is None:
            raise ValueError("evaluate= needs val=, the data set whose samples it gets")
        optimizers = list(optimizer) if isinstance(optimizer, (list, tuple)) else [optimizer] if optimizer else []
        if optimizers and not hasattr(optimizers[-1], "register_step_post_hook"):
            raise TypeError(
                f"the optimizer is of type {type(optimizers[-1]).__name__}, not a torch optimizer: give it in state= "
                "instead, and call worker.step()"
            )
        self._a: _lib.Handle | None = None
        self._hooks: list[Any] = []
        self._optimizers, self._every, self._evaluate = optimizers, every, evaluate
        self._train, self._val = train, val
        self._model = self._open_model(model_or_parameters, optimizers, buffers, names)
        self._ranks: Ranks = ranks()
        self._objects = list(state) if isinstance(state, (list, tuple)) else [state]
        self._state = State(self._state_objects(), self._model.stage)
        self._round: _lib.Round = _lib.Round(0, 0, 0, 0.0, 1.0, 0)
        self._indices: np.ndarray | None = None
        self._joined = self._begun = self._done = self._sync_due = self._dropped = self._busy = False
        self._loss_by_hand = False
        self._steps = 0
        self._parts: list[tuple[int, float, float, float]] = []  # of a round: steps, loss, seconds trained, waited
        self._micro = 0  # batches since the last step
        self._per_step = 0  # batches of one step; 0: the program draws its own samples
        self._fetched, self._samples_taken = True, 0
        self._notes, self._late = StepNotes(), None  # type: ignore[var-annotated]
        self._round_tokens, self._round_loss, self._told_tokens = 0, 0.0, 0
        self._error: BaseException | None = None
        self._opened = self._step_started = self._round_started = time.perf_counter()
        self._next_line = 3.0  # seconds after which a wait for the coordinator's address is logged
        self._bytes = (0, 0)
        self._info = _lib.Info()
        if self._ranks.rank == 0:
            self._open(join, name, dir, files, threads, max_wait)
        self._add_hooks()

    # --- opening ----------------------------------------------------------------------------------------------------

    def _open_model(self, model: Any, optimizers: list[Any], buffers: str, names: Mapping[str, str] | None) -> Any:
        first = next(iter(model.values()), None) if isinstance(model, Mapping) else None
        if isinstance(first, np.ndarray):
            from .numpy_model import NumpyModel

            return NumpyModel(model)
        torch = sys.modules.get("torch")
        if torch and (isinstance(model, torch.nn.Module) or isinstance(first, torch.Tensor)):
            from .torch_model import TorchModel, refuse_sharded

            refuse_sharded(model, optimizers)
            return TorchModel(model, buffers=buffers, names=names)
        raise TypeError(
            f"the first argument of atoll.Worker is of type {type(model).__name__}: give a torch.nn.Module, or a dict "
            "of name -> float32 numpy array"
        )

    def _state_objects(self) -> list[tuple[str, Any]]:
        many = len(self._optimizers) > 1
        named = [(f"optimizer[{i}]" if many else "the optimizer", o) for i, o in enumerate(self._optimizers)]
        named += [(f"state[{i}]", o) for i, o in enumerate(self._objects)]
        return named + list(self._model.objects)

    def _open(self, join: Any, name: str | None, dir: Any, files: Any, threads: int, max_wait: int) -> None:
        from .files import given_files

        self._a = _lib.Handle(
            self._model.tensors,
            join=join,
            name=name,
            dir=dir,
            devices=self._model.devices,
            files={**self._model.files, **given_files(files)},
            save=self._state.save,
            load=self._state.load,
            threads=threads,
            max_wait_s=max_wait,
        )
        self._model.attach(self._a.params)

    def _add_hooks(self) -> None:
        torch = sys.modules.get("torch")
        if self._optimizers:
            self._hooks.append(self._optimizers[-1].register_step_post_hook(_undivided(self._on_optimizer_step)))
        outer = getattr(self._model, "outer", None)
        if torch and isinstance(outer, torch.nn.Module):
            self._hooks.append(outer.register_forward_pre_hook(_undivided(self._before_forward), with_kwargs=True))
            self._hooks.append(outer.register_forward_hook(_undivided(self._after_forward), with_kwargs=True))

    # --- what the program calls -------------------------------------------------------------------------------------

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if error is None:
            text = "the script left its loop before the end of the run"
            if self._sync_due and not self._dropped and self._error is None:
                self._push()
        else:
            text = f"{type(error).__name__}: {error}".splitlines()[0].removesuffix(": ")
        self.close(text)

    def close(self, text: str = "the script closed its worker") -> None:
        """Leaves the run, if it is not done, and frees everything. It waits at most 2 s for queued messages."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []
        if self._a:
            if not self._done:
                self._a.leave(text)
            self._info = self._a.info()
            self._model.detach()
            self._a.close()
            self._a = None

    def begin(self) -> bool:
        """Joins the run, or finishes a sync point that is due. The model then has the parameters of the round.

        It waits for the coordinator and for the other workers. False: the run is done. Raises Error.
        """
        self._settle()
        if not self._begun and not self._done:
            self._next_round()
        return not self._done

    def step(
        self,
        loss: Any = None,
        tokens: int | None = None,
        *,
        lr: float | None = None,
        grad_norm: float | None = None,
    ) -> bool:
        """Tells one inner step, for loops without a torch optimizer; at a sync point it exchanges the parameters.

        Call it last in the loop, after everything that `state` holds has changed. loss: nats per token, mean over the
        step. tokens: trained on; None: counted in the batches of atoll.batches, or samples. False: the run is done.
        """
        if self._optimizers:
            raise _lib.Error("worker.step() and optimizer.step() would count twice: optimizer.step() is hooked")
        if tokens is None and not self._per_step:
            tokens = self._round.step_samples
        if tokens is not None:
            self._notes.tokens = tokens
        if loss is not None:
            self._notes.losses = [(detached(loss), 1)]
        if lr is not None:
            self._notes.lr = float(lr)
        if grad_norm is not None:
            self._notes.grad_norm = float(grad_norm)
        self._count_step()
        self._settle()
        return not self._done

    def loss(self, loss: Any) -> Any:
        """Notes the loss of a batch (nats per token, mean) for the metrics, and returns it. It waits for no GPU.

        Losses of Hugging Face models (output.loss) are noted without it.
        """
        if not self._loss_by_hand:
            self._loss_by_hand, self._notes.losses = True, []
        self._note_loss(loss)
        return loss

    def samples(self, n: int) -> np.ndarray:
        """[n] int64: the next n samples of this round, for programs that read their data themselves.

        They index `train`; without `train` they are numbers that no other worker gets. Raises Error if the round has
        fewer left. With several processes each one calls it, and gets the same numbers.
        """
        if not self.begin():
            raise _lib.Error("the run is done: leave the loop when worker.done is True")
        if self._indices is None:
            self._take_samples()
        indices = self._indices.reshape(-1)  # type: ignore[union-attr]
        if self._samples_taken + n > len(indices):
            raise _lib.Error(
                f"this round has {len(indices) - self._samples_taken} samples left, fewer than {n}: a step takes "
                f"{self._round.step_samples} (train.batch_size x train.grad_accum)"
            )
        self._samples_taken += n
        return indices[self._samples_taken - n : self._samples_taken]

    @property
    def done(self) -> bool:
        """The run is complete. At a sync point this exchanges the parameters first, which waits for the others."""
        self._settle()
        return self._done

    @property
    def round(self) -> int:
        """Rounds that this worker's parameters contain, from 0."""
        return self._round.round

    @property
    def assignment(self) -> _lib.Round:
        """The present round: its number, steps, samples of a step, schedule position; this worker's number."""
        return self._round

    @property
    def position(self) -> float:
        """Position of the next step in the schedule of the run, in inner steps: learning rates may follow it."""
        return self._round.position + self._steps * self._round.position_rate

    def info(self) -> _lib.Info:
        """What is known of the run: names, rounds, bytes, seconds of the last round, hash. Empty on ranks above 0."""
        if self._a:
            self._info = self._a.info()
        return self._info

    def setting(self, key: str) -> str:
        """A setting of the run, for example "train.sync_every", once it is joined. Only on rank 0."""
        if not self._a:
            raise _lib.Error("rank 0 has the settings of the run, while its worker is open")
        return self._a.setting(key)

    # --- batches ----------------------------------------------------------------------------------------------------

    def _use(self, train: Any) -> None:
        if self._joined and train is not self._train:
            raise _lib.Error(
                "the run was joined with another training set: give atoll.batches the one data set that it trains on, "
                "before the first forward"
            )
        self._train = train

    def _ready_for_batch(self, batch_size: int) -> bool:
        if self._per_step and self._micro >= self._per_step:
            self._step_missing(batch_size)
        return self.begin()

    def _step_missing(self, batch_size: int) -> None:
        """All samples of a step are taken, and the optimizer took none: a GradScaler skipped it, or sizes differ."""
        if any(type(o).__name__.endswith("GradScaler") for o in self._objects):
            self._count_step()
            return
        raise ValueError(
            f"no optimizer.step() after {self._sizes(batch_size, self._micro)}: it is due after "
            f"{self._round.step_samples} (the run's train.batch_size x train.grad_accum); if a GradScaler skipped it, "
            "give the scaler in state="
        )

    def _sizes(self, batch_size: int, batches: int) -> str:
        processes = f" x {self._ranks.size} processes" if self._ranks.size > 1 else ""
        return f"{batch_size * batches * self._ranks.size} samples (batch_size {batch_size} x {batches}{processes})"

    def _batch_indices(self, batch_size: int) -> list[list[int]]:
        """The samples of each batch of the round for this rank."""
        self._take_samples()
        r, size = self._round, batch_size * self._ranks.size
        if r.step_samples % size:
            raise ValueError(
                f"a step of the run takes {r.step_samples} samples (train.batch_size x train.grad_accum), which "
                f"{self._sizes(batch_size, 1)} do not divide: choose another batch_size"
            )
        self._per_step = r.step_samples // size
        parts = self._indices.reshape(-1, self._ranks.size, batch_size)  # type: ignore[union-attr]
        return [[int(i) for i in row] for row in parts[:, self._ranks.rank]]

    def _take_samples(self) -> None:
        n = self._round.steps * self._round.step_samples
        taken = self._ranks.call(lambda: self._a.samples(n).astype(np.int64).tobytes())  # type: ignore[union-attr]
        self._indices = np.frombuffer(taken, np.int64)

    def _on_batch(self, batch: Any, batch_size: int) -> None:
        self._micro += 1
        self._batch_tokens = count_tokens(batch, batch_size)
        self._notes.tokens = self._notes.tokens + self._batch_tokens
        if self._micro == 1 and self._steps == 0:
            self._step_started = time.perf_counter()

    # --- hooks ------------------------------------------------------------------------------------------------------

    def _before_forward(self, _module: Any, args: Any, kwargs: Any) -> None:
        if self._busy or not sys.modules["torch"].is_grad_enabled():
            return
        if not self.begin():
            raise _lib.Error("the run is done: leave the loop when worker.done is True")
        if not self._per_step:  # the program reads its own data
            first = next((v for v in (*args, *kwargs.values()) if hasattr(v, "shape") and len(v.shape)), None)
            self._batch_tokens = count_tokens(kwargs or args, first.shape[0] if first is not None else 1)
            self._notes.tokens = self._notes.tokens + self._batch_tokens

    def _after_forward(self, _module: Any, _args: Any, kwargs: Any, output: Any) -> None:
        if self._busy or self._loss_by_hand or not sys.modules["torch"].is_grad_enabled():
            return
        loss = output.get("loss") if isinstance(output, dict) else getattr(output, "loss", None)
        if loss is None or getattr(loss, "ndim", None) != 0:
            return
        items = kwargs.get("num_items_in_batch")  # transformers.Trainer: the loss is divided by the tokens of the step
        if items is not None:
            tokens = self._batch_tokens
            loss = loss.detach() * items / (tokens.clamp(min=1) if on_gpu(tokens) else max(1, tokens))
        self._note_loss(loss)

    def _on_optimizer_step(self, optimizer: Any, _args: Any, _kwargs: Any) -> None:
        lr = optimizer.param_groups[0].get("lr", math.nan)
        self._notes.lr = math.nan if on_gpu(lr) else float(lr)
        self._count_step()

    _batch_tokens: Any = 1

    def _note_loss(self, loss: Any) -> None:
        self._notes.losses.append((detached(loss), self._batch_tokens))

    # --- steps ------------------------------------------------------------------------------------------------------

    def _count_step(self) -> None:
        if self._done:
            raise _lib.Error("the run is done: leave the loop when worker.done is True")
        if self._sync_due:  # a second step without a batch or a forward
            self._settle()
        if not self._begun:
            raise _lib.Error("a step came before the first batch: call worker.begin() before the loop")
        if self._per_step and self._micro != self._per_step:
            raise ValueError(
                f"a step after {self._micro} batches: the run's step takes {self._round.step_samples} samples "
                f"(train.batch_size x train.grad_accum), which are {self._per_step} batches of this size"
            )
        now = time.perf_counter()
        notes, self._notes = self._notes, StepNotes()
        notes.step_us = max(1, int((now - self._step_started) * 1e6))
        notes.send()
        self._step_started, self._micro = now, 0
        self._steps += 1
        last = self._steps == self._round.steps
        if self._late:
            self._tell(self._late, False)
            self._late = None
        if notes.on_device and not last:  # its loss is read one step later, when the GPU has computed it
            self._late = notes
        else:
            self._tell(notes, last)
        self._sync_due = last or self._dropped and self._ranks.size == 1

    def _tell(self, notes: StepNotes, last: bool) -> None:
        tokens, loss = notes.read()
        self._round_tokens += tokens
        self._round_loss += 0.0 if math.isnan(loss) else loss * tokens
        told = tokens * self._ranks.size
        if last and self._ranks.size > 1:  # until now rank 0 took its own number for that of each rank
            sums = self._ranks.sums(np.array([self._round_tokens, self._round_loss]))
            told = max(0, int(sums[0]) - self._told_tokens)
            self._round_loss = float(sums[1]) * self._round_tokens / sums[0] if sums[0] else math.nan
        self._told_tokens += told
        if not self._a or self._error or self._dropped:
            return
        try:
            action = self._a.step(told, loss, notes.lr, notes.grad_norm, notes.step_us)
        except _lib.Error as e:
            if self._ranks.size == 1:
                raise
            self._error = e  # raised at the sync point, where all ranks meet
            return
        self._dropped = action == _lib.DROPPED

    # --- sync points ------------------------------------------------------------------------------------------------

    def _settle(self) -> None:
        """Finishes a sync point that is due."""
        if not self._sync_due or self._busy:
            return
        loss = self._round_loss / self._round_tokens if self._round_tokens else math.nan
        steps, round, trained = self._steps, self._round.round, time.perf_counter() - self._round_started
        dropped = self._push()
        waited = time.perf_counter()
        self._next_round()
        self._parts.append((steps, loss, trained, time.perf_counter() - waited))
        if self._a and not dropped and (self._round.round != round or self._done):
            self._log_round(round)  # a round may have several parts

    def _log_round(self, round: int) -> None:
        parts, self._parts = self._parts, []
        steps, trained, waited = (sum(part[i] for part in parts) for i in (0, 2, 3))
        loss = sum(part[0] * part[1] for part in parts) / steps
        info = self._a.info(hashed=False)  # type: ignore[union-attr]
        (up, down), self._bytes = self._bytes, (info.bytes_up, info.bytes_down)
        known = f"loss {loss:.4f}, " if math.isfinite(loss) and loss else ""
        spent = f"{steps:.0f} steps in {duration_text(trained)}, exchange {duration_text(waited)}"
        logger.info("round %d: %s%s, up %s, down %s", round + 1, known, spent, bytes_text(info.bytes_up - up),
                    bytes_text(info.bytes_down - down))

    def _push(self) -> bool:
        """Hands the parameters of the round to the library; True: the round was dropped."""
        self._sync_due = self._begun = False
        if self._ranks.size > 1:
            randoms = self._ranks.gather(write(get_random()))
            self._state.other_random = [bytes(r) for r in randoms[1:]]
        flags = self._ranks.call(self._push_rank0)
        return flags == b"dropped"

    def _push_rank0(self) -> bytes:
        error, self._error = self._error, None
        if error:
            raise error
        if self._dropped:
            return b"dropped"
        self._model.read()
        try:
            self._a.push()  # type: ignore[union-attr]
        except _lib.NonFiniteError as e:
            logger.warning("%s", e)
            return b"dropped"
        return b"pushed"

    def _join(self) -> None:
        self._state.note_initial()
        if self._a:
            self._a.set_data(describe(self._train), describe(self._val) if self._evaluate else _lib.Data())
            self._model.read(initial=True)
        self._joined = True

    def _next_round(self) -> None:
        """Waits for the next round, or the end of the run, and evaluates meanwhile."""
        self._busy = True
        try:
            if not self._joined:
                self._join()
                first = True
            else:
                first = False
            event = _lib.WAITING
            while event not in (_lib.TRAIN, _lib.DONE):
                event = self._wait()
                if event == _lib.EVALUATE:
                    self._run_evaluation()
            self._share_state()
            if event == _lib.TRAIN:
                self._begin_round(first)
            else:
                self._done = True
            if self._a:
                self._model.write()
            self._model.broadcast(self._ranks)
        finally:
            self._busy = False

    def _wait(self) -> int:
        """The next event. With several ranks, all of them meet here in each slice, so that no collective times out."""
        event = int(self._ranks.call(lambda: b"%d" % self._a.wait(_SLICE_MS)))  # type: ignore[union-attr]
        waited = time.perf_counter() - self._opened
        if event == _lib.WAITING and self._a and waited > self._next_line:
            text = self._a.text()
            if text.startswith(("a coordinator:", "the name service:")):  # the library logs all other waits
                logger.info("waiting for %s for %s", duration_text(waited), text)
            self._next_line = 2 * waited
        return event

    def _share_state(self) -> None:
        """A state that was restored, or reset, on rank 0 goes to the other ranks, with their own random numbers."""
        if self._ranks.size == 1:
            return
        changed = self._state.changed
        self._state.changed = False
        data = self._ranks.call(lambda: self._state.copy() if changed else b"")
        if data and self._ranks.rank:
            self._state.load(data)
            others = self._state.other_random
            if len(others) >= self._ranks.rank:
                set_random(read(others[self._ranks.rank - 1]))

    def _begin_round(self, first: bool) -> None:
        r = self._round
        if self._a:
            r = self._a.begin()
        packed = self._ranks.numbers([r.round, r.steps, r.step_samples, r.worker])
        position = self._ranks.sums(np.array([r.position, r.position_rate]) * (self._ranks.rank == 0))
        self._round = _lib.Round(packed[0], packed[1], packed[2], float(position[0]), float(position[1]), packed[3])
        self._indices, self._samples_taken, self._micro, self._steps = None, 0, 0, 0
        self._round_tokens, self._round_loss, self._told_tokens = 0, 0.0, 0
        self._notes, self._late, self._dropped, self._begun = StepNotes(), None, False, True
        self._step_started = self._round_started = time.perf_counter()
        if first:
            self._check_every()
            if not self._state.loaded:
                self._advance_schedulers()

    def _check_every(self) -> None:
        run = int(self._ranks.call(lambda: self.setting("train.sync_every").encode()))
        if self._every is not None and self._every != run:
            raise ValueError(
                f"every={self._every}, but the run's train.sync_every is {run}: leave `every` out, or give {run}"
            )

    def _advance_schedulers(self) -> None:
        """A worker that joins later starts its schedulers at the run's position: they step once per optimizer step."""
        torch = sys.modules.get("torch")
        for scheduler in self._objects if torch else ():
            if isinstance(scheduler, torch.optim.lr_scheduler.LRScheduler):  # type: ignore[union-attr]
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # "scheduler.step() before optimizer.step()"
                    for _ in range(scheduler.last_epoch, int(self._round.position)):
                        scheduler.step()

    # --- evaluation -------------------------------------------------------------------------------------------------

    def _run_evaluation(self) -> None:
        """Evaluates a piece of the validation samples; rank r takes every part r, r + size, ..."""
        task = self._a.evaluation() if self._a else _lib.Evaluation(0, 0, 1, 0)
        task = _lib.Evaluation(*self._ranks.numbers([task.start, task.count, task.part, task.n_parts]))
        if self._a:
            self._model.write()
        self._model.broadcast(self._ranks)
        sums = np.zeros((2, task.n_parts))  # losses, tokens
        if self._evaluate:
            with self._model.evaluating() as model:
                for part in range(self._ranks.rank, task.n_parts, self._ranks.size):
                    at = task.start + part * task.part
                    indices = np.arange(at, min(at + task.part, task.start + task.count), dtype=np.int64)
                    sums[:, part] = [float(x) for x in self._evaluate(model, indices)]
        sums = self._ranks.sums(sums.ravel()).reshape(2, -1)
        if self._a:
            self._a.evaluated(np.ascontiguousarray(sums[0]), sums[1].astype(np.uint64))
