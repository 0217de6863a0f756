"""Worker: what a training script calls. It hooks the script's optimizer and model, and runs the rounds."""

from __future__ import annotations

import atexit
import functools
import logging
import threading
import os
import sys
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from .. import _lib
from . import optimizers as script_optimizers
from .feed import Feed
from .models import open_handle, open_model
from .notes import Tally
from .phase import Phase
from .ranks import Ranks, is_of_lost_process, ranks
from .rounds import Rounds
from .samples import is_stream
from .schedules import Schedules
from .script import DONE, Script
from .state import State

logger = logging.getLogger("atoll")


class Worker:
    """One worker of a run: a context manager around the program's training loop.

        with atoll.Worker(model, optimizer, join="tcp://...") as worker:
            for batch in atoll.batches(dataset, worker, batch_size=16):
                loss = worker.loss(model(batch))
                loss.backward(); optimizer.step(); optimizer.zero_grad()

    A loop with its own data runs `while not worker.done`, and its learning rate follows `worker.position`. A loop that
    runs longer than the run ends with atoll.Done, which the `with` block swallows. After the block the model has the
    run's parameters.

    Arguments:
        model_or_parameters: a torch.nn.Module (also inside DistributedDataParallel or torch.compile), a dict of
            name -> torch tensor, or a dict of name -> float32 numpy array. Parameters with requires_grad False stay
            out. They are updated in place.
        optimizer: a torch optimizer, or a list of them (the last one's step counts), also in wrappers that hold one
            (accelerate, SAM). Its `step` is hooked, and its state is saved. None: the program calls worker.step().
        join: the coordinator's join line, a file with it, or a run folder on this machine. None: ATOLL_JOIN.
        every: inner steps between two sync points. None: the run's train.sync_every; another number: ValueError.
        dir: the worker's own folder, with its key and its saved state. None: ./atoll-worker-NAME.
        name: unique in the run. None: that of `dir`, or the host's, followed by -2, -3, ... if another worker has it.
        buffers: "mean": float buffers (BatchNorm) become the mean over the workers; "local": they stay as they are.
        state: objects that are saved and restored with the optimizer: schedulers, GradScaler, generators, dicts of
            arrays. Each has state_dict and load_state_dict, or is a generator, a dict or an array. A scheduler that
            steps with each inner step stands at int(position) at the start of each round.
        frozen: "same": frozen parameters must be those of the other workers; "any": they may differ, as two
            quantizations of one base model do.
        evaluate: callable(model, indices) -> (loss_sum, tokens) on samples `indices` of `val`: nats summed over tokens.
            The worker then takes part in evaluations. The model is in evaluation mode and has the run's parameters.
        train, val: the data sets. atoll.batches sets `train`.
        files: files for the model's folder, beside config.json: a folder, a dict of name -> bytes, or a tokenizer.
        names: name of a parameter -> its name in the run. PEFT adapters get the names of their file.
        threads: for encoding and applying; 0: one per core, at most 8.
        max_wait: seconds without an answer of the coordinator after which calls fail; 0: 12 hours after the join;
            math.inf: no limit.

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
        frozen: str = "same",
        evaluate: Callable[[Any, np.ndarray], tuple[float, int]] | None = None,
        train: Any = None,
        val: Any = None,
        files: Any = None,
        names: Mapping[str, str] | None = None,
        threads: int = 0,
        max_wait: float = 0,
    ) -> None:
        if evaluate is not None and val is None:
            raise ValueError("evaluate= needs val=, the data set whose samples it gets")
        if evaluate is not None and is_stream(val):
            raise ValueError("val= is a stream, and evaluations take samples by number: give a data set with [index]")
        if frozen not in ("same", "any"):
            raise _lib.InvalidError(f'frozen={frozen!r}: it is "same" or "any"')
        given = script_optimizers.of_script(optimizer)
        self._optimizers = [script_optimizers.innermost(o) for o in given]
        self._ranks: Ranks = ranks()
        self.model = open_model(model_or_parameters, self._optimizers, buffers, names, self._ranks)
        objects = list(state) if isinstance(state, (list, tuple)) else [state]
        saved = script_optimizers.named(given) + [(f"state[{i}]", o) for i, o in enumerate(objects)]
        state_ = State(saved + list(self.model.objects), self.model.stage)
        tally, schedules = Tally(self._ranks), Schedules(objects)
        self.thread = threading.get_ident()  # that opened it
        self._at_exit = functools.partial(_close_at_exit, weakref.ref(self), os.getpid())
        atexit.register(self._at_exit)
        self._info, self._handle, self._script = _lib.Info(), None, None
        self._process_lost = False  # of the other processes of this worker
        self.rounds = Rounds(self.model, state_, self._ranks, tally, schedules)
        self.rounds.every, self.rounds.evaluate, self.rounds.train, self.rounds.val = every, evaluate, train, val
        self.feed = Feed(self.rounds, self._ranks, script_optimizers.scalers(given, objects), self.skip)
        state_.own = {"schedules": schedules, "feed": self.feed}
        if not schedules:  # otherwise these have the rate
            state_.own["lr"] = tally
        try:
            self.model.share()

            def open_() -> bytes:
                self._handle = open_handle(self.model, state_, frozen, files, join=join, name=name, dir=dir,
                                           threads=threads, max_wait_s=max_wait)
                self.rounds.handle = self._handle
                return b""

            self._ranks.call(open_)  # on rank 0; its error is that of all ranks
            self._script = Script(self.model, self._optimizers, self.rounds, self.feed, tally, state_)
        except BaseException:
            self.close("the script failed to open its worker")
            raise

    # --- the end ----------------------------------------------------------------------------------------------------

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> bool:
        """Without an error, and after Done, the loop has ended: see close(). Any other error is not swallowed, except
        the StopIteration of batches that ended with the run."""
        ended = error is None or isinstance(error, _lib.Done) or isinstance(error, StopIteration) and self._done
        if not ended:
            self._note(error)
        self.close(None if ended else reason(error))
        return error is not None and ended

    def close(self, text: str | None = None) -> None:
        """Ends the loop: completes a sync point that is due, leaves the run if it is not done, and frees everything.

        With a text, which stands in the coordinator's log, it leaves at once. A second call does nothing.
        """
        open_ = self.rounds.phase not in (Phase.CLOSED, Phase.APART)
        try:
            if text is None and open_ and self._ranks.alive:
                text = self.rounds.finish()
                if text and self._ranks.rank == 0:
                    logger.warning("%s: start the script again to continue; a loop runs until worker.done", text)
        except BaseException as error:
            self._note(error)
            text = reason(error)
            raise
        finally:
            self._free(text or "the script closed its worker")

    def _note(self, error: BaseException | None) -> None:
        """The error with which the worker ends."""
        self._process_lost = self._ranks.size > 1 and is_of_lost_process(error)

    def _free(self, text: str) -> None:
        if self._script:
            self._script.remove_hooks()
        if self._ranks.rank:
            self.rounds.close_state()
        if self._handle:
            if not self._done and self._process_lost:
                logger.warning("another process of this worker is gone: the run waits for this worker, which continues "
                               "from its saved state: start all its processes again")
                self._handle.abandon()
            elif not self._done:
                self._handle.leave(text)
            self._info = self._handle.info()
            self._handle.close()
            self._handle = None
        self.rounds.close_state()
        self.model.detach()  # after the library, which uses its memory
        self.rounds.close()
        atexit.unregister(self._at_exit)

    # --- what the program calls -------------------------------------------------------------------------------------

    @property
    def done(self) -> bool:
        """The run is complete. It joins the run first, or exchanges the parameters if a sync point is due."""
        return not self.begin()

    def begin(self) -> bool:
        """Joins the run, or finishes a sync point that is due. The model then has the parameters of the round.

        It waits for the coordinator and for the other workers. False: the run is done. Raises Error.
        """
        return self.rounds.begin()

    @property
    def position(self) -> float:
        """Position of the next step in the schedule of the run, in inner steps: learning rates may follow it."""
        return self.rounds.position

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
        Raises Done if it was done before.
        """
        if self._optimizers:
            raise _lib.Error("worker.step() and optimizer.step() would count twice: optimizer.step() is hooked")
        if tokens is not None:
            self.tokens(tokens)
        self._script.told_step(loss, lr, grad_norm)
        return self.begin()

    def skip(self) -> None:
        """Counts a step that the loop leaves out on purpose: without an update, its samples are not trained."""
        if self.begin():
            self._script.count()

    def loss(self, loss: Any) -> Any:
        """Notes the loss of a batch (nats per token, mean) for the metrics, and returns it. It waits for no GPU.

        Losses of Hugging Face models (output.loss) are noted without it.
        """
        self._script.loss(loss)
        return loss

    def tokens(self, n: int) -> None:
        """Tells the tokens of the present step of this process. Without it they are counted where data is known: in
        the batches of atoll.batches, or in the calls of the model; if there are none, samples are."""
        self._script.tokens(n)

    def samples(self, n: int) -> np.ndarray:
        """[n] int64: the next n samples of this round, for programs that read their data themselves.

        They index `train`; without `train` they are numbers that no other worker gets. Raises Error if the round has
        fewer left, and Done after the run. With several processes each one calls it, and gets the same numbers.
        """
        indices = self.feed.samples(n)
        if indices is None:
            raise _lib.Done(DONE)
        return indices

    @property
    def processes(self) -> int:
        """Processes of this worker (torchrun)."""
        return self._ranks.size

    @property
    def round(self) -> int:
        """Rounds that this worker's parameters contain, from 0."""
        return self.rounds.round.round

    @property
    def assignment(self) -> _lib.Round:
        """The present round: its number, steps, samples of a step, schedule position; this worker's number."""
        return self.rounds.round

    def info(self) -> _lib.Info:
        """What is known of the run: names, rounds, bytes, seconds of the last round, hash. Empty on ranks above 0."""
        if self._handle:
            self._info = self._handle.info()
        return self._info

    def setting(self, key: str) -> str:
        """A setting of the run, for example "train.sync_every", once it is joined. Only on rank 0."""
        if not self._handle:
            raise _lib.Error("rank 0 has the settings of the run, while its worker is open")
        return self._handle.setting(key)

    @property
    def _done(self) -> bool:
        return self.rounds.phase is Phase.DONE


def reason(error: BaseException | None) -> str:
    """Why a worker leaves, in one line."""
    if error is None:
        return "the script ended before the run"
    return f"{type(error).__name__}: {error}".splitlines()[0].removesuffix(": ")


def _close_at_exit(worker: weakref.ref[Worker], process: int) -> None:
    """The script ended without closing its worker."""
    open_, error = worker(), getattr(sys, "last_value", None)
    if open_ is None or os.getpid() != process:  # a forked process leaves the worker to its parent
        return
    others = [t.ident for t in threading.enumerate() if t is not threading.current_thread()]
    if open_.thread not in others:  # a thread that still runs may be in a call of the library
        open_._note(error)
        open_.close(reason(error) if error is not None else None)
