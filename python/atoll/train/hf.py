"""A callback that makes ``transformers.Trainer`` a worker of a run."""

from __future__ import annotations

import collections
import functools
import itertools
import math
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

try:
    import torch
    import transformers
    from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
except ImportError as error:
    from ..command import need_text

    raise ImportError(need_text(str(error.name), "atoll.hf")) from None

from .._lib import InvalidError, logger
from .batches import Batches
from .samples import is_stream
from .worker import Worker, reason

_SAMPLERS = {"RandomSampler", "SequentialSampler", "SeedableRandomSampler", "DistributedSampler", "BatchSampler",
             "BatchSamplerShard"}

class Callback(TrainerCallback):  # type: ignore[misc]
    """Trains the Trainer's model as a worker of a run::

        trainer = Trainer(model, args, train_dataset=samples, callbacks=[atoll.hf.Callback("tcp://...")])
        trainer.train()

    - The run begins with ``train()``. The Trainer's batches are the samples leased to this worker: its data set needs a
      length and ``[index]``, and its sampler must take each sample once.
    - ``per_device_train_batch_size`` x ``gradient_accumulation_steps`` x processes must be the run's
      ``train.batch_size`` x ``train.grad_accum``.
    - ``train()`` ends with the run, and the model then has the run's last parameters. ``max_steps`` or
      ``num_train_epochs`` must not end it earlier.
    - Optimizer, learning-rate scheduler and random numbers are saved at each sync point. The same command continues
      after any end, also ``kill -9``.
    - A PEFT model sends only its adapter, and a checkpoint of the run is an adapter folder.
    - ``processing_class`` (the tokenizer) goes into the checkpoints.
    - The worker leaves the run when ``train()`` returns or when the program ends. In a notebook, call ``close()`` after
      an interrupted ``train()``, or use the callback as a context manager.

    The arguments are those of :class:`atoll.Worker`. ``train()`` raises ``InvalidError`` for arguments that do not fit
    the run, and the errors of the worker.
    """

    worker: Worker | None = None
    """The worker since the last ``train()`` began. Its ``info()`` has bytes, seconds and ``theta_hash``."""

    def __init__(
        self,
        join: str | os.PathLike[str] | None = None,
        every: int | None = None,
        dir: str | os.PathLike[str] | None = None,
        name: str | None = None,
        buffers: str = "mean",
        *,
        frozen: str = "same",
        evaluate: Callable[[Any, np.ndarray], tuple[float, int]] | None = None,
        val: Any = None,
        files: Any = None,
        threads: int = 0,
        max_wait: float = 0,
    ) -> None:
        self._files = files
        self._options: dict[str, Any] = dict(join=join, every=every, dir=dir, name=name, buffers=buffers)
        self._options.update(frozen=frozen, evaluate=evaluate, val=val, threads=threads, max_wait=max_wait)
        self._trainer: Any = None
        self._batches: Any = None
        self._loss: Any = None  # of the micro-batches since the last step
        self._total = 0  # steps of the run; 0: async
        self._epochs = 0  # that the Trainer planned; 0: not known

    def __enter__(self) -> Callback:
        return self

    def __exit__(self, _kind: Any, error: BaseException | None, _trace: Any) -> None:
        self.close(None if error is None else reason(error))

    def close(self, text: str | None = None) -> None:
        """Completes a sync point that is due, and leaves the run, if it is not done. With a text, which stands in the
        coordinator's log, it leaves at once."""
        if self._trainer is not None:
            vars(self._trainer).pop("training_step", None)
            self._trainer = None
        self._loss = None
        if self.worker is not None:
            self.worker.close(text)

    # --- events of the Trainer ---

    def on_init_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        # A Trainer that resumes from its own checkpoint would skip batches, on a copy of the data loader. But the
        # coordinator knows which samples are left.
        args.ignore_data_skip = True
        trainer = _trainer()
        if hasattr(trainer, "set_initial_training_values"):
            self._plan_more_epochs(trainer)

    def _plan_more_epochs(self, trainer: Any) -> None:
        """Doubles the epochs that the Trainer plans, so that dropped rounds do not end it before the run, which ends
        it."""
        plan = trainer.set_initial_training_values

        def planned(*args: Any, **kwargs: Any) -> Any:
            self._epochs, *rest = plan(*args, **kwargs)
            return (2 * self._epochs if self._epochs < sys.maxsize // 2 else self._epochs, *rest)

        trainer.set_initial_training_values = planned

    def on_train_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        *,
        model: Any,
        optimizer: Any,
        lr_scheduler: Any,
        train_dataloader: Any,
        **kwargs: Any,
    ) -> None:
        self.close("the script began another training")
        if train_dataloader is None:  # 4.49
            raise InvalidError(
                f"transformers {transformers.__version__} does not tell callbacks its data loader: install a newer one"
            )
        _check_sampler(train_dataloader)
        tokenizer = kwargs.get("processing_class") or kwargs.get("tokenizer")
        saved = [lr_scheduler, getattr(optimizer, "scaler", None)]
        worker = Worker(
            model,
            optimizer,
            state=[item for item in saved if item is not None],
            files=[item for item in (tokenizer, self._files) if item is not None],
            **self._options,
        )
        self.worker, self._trainer = worker, _trainer()
        try:
            batches = Batches(
                train_dataloader.dataset,
                worker,
                args.train_batch_size,
                collate_fn=train_dataloader.collate_fn,
                num_workers=args.dataloader_num_workers,
                pin_memory=args.dataloader_pin_memory and torch.cuda.is_available(),
            )
            if worker.begin():
                _check_batch(worker, args)
                self._begin_run(state)
            else:
                logger.info("the run is done: the model has its last parameters")
        except BaseException as error:
            self.close(reason(error))
            raise
        self._batches = batches
        _lease(train_dataloader, batches)
        if self._trainer is not None:
            self._trainer.training_step = functools.partial(self._training_step, self._trainer.training_step)

    def _begin_run(self, state: TrainerState) -> None:
        """Lets the Trainer count the steps of the run, and end with it."""
        worker = self.worker
        total = int(worker.rounds.setting("train.max_steps"))  # type: ignore[union-attr]
        self._total = 0 if worker.rounds.setting("train.method") == "async" else total  # type: ignore[union-attr]
        if self._total and state.max_steps != total:
            logger.warning(
                "the learning rate is scheduled for %d steps, but the run has %d: set max_steps=%d in "
                "TrainingArguments",
                state.max_steps,
                total,
                total,
            )
            if state.max_steps - state.global_step < total - int(worker.position):  # type: ignore[union-attr]
                raise InvalidError(
                    f"the Trainer ends after {state.max_steps} steps, but the run takes {total}: set max_steps={total} "
                    "in TrainingArguments"
                )
        self._follow(state)
        state.num_train_epochs = self._epochs or state.num_train_epochs
        if hasattr(self._trainer, "_globalstep_last_logged"):  # the first loss is the mean since this step
            self._trainer._globalstep_last_logged = state.global_step

    def _follow(self, state: TrainerState) -> None:
        """The Trainer stands at the run's position, or after it by dropped rounds: a Trainer never counts back.

        An async run has no fixed number of steps for one worker.
        """
        if self._total:
            position = int(self.worker.position)  # type: ignore[union-attr]
            state.global_step = max(state.global_step, position)
            state.max_steps = state.global_step + self._total - position
        else:
            state.max_steps = max(state.max_steps, state.global_step + 1)

    def _training_step(self, step: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """The Trainer's step on a micro-batch, whose loss is its part of the step's mean."""
        loss = step(*args, **kwargs)
        self._loss = loss.detach() if self._loss is None else self._loss + loss.detach()
        return loss

    def on_pre_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if self.worker is None:
            return
        # The Trainer's epoch may end with a shorter step. The rest of its samples is taken and left out.
        collections.deque(itertools.islice(self._batches, self.worker.feed.missing_batches()), maxlen=0)
        if self._loss is not None:
            self.worker.loss(self._loss)
            self._loss = None

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        worker = self.worker
        if worker is None:
            return
        if not worker.feed.batches:
            raise InvalidError(
                "the Trainer did not read the leased samples: give atoll.hf.Callback in Trainer(callbacks=...), or "
                "call train() without resume_from_checkpoint"
            )
        if getattr(kwargs.get("optimizer"), "step_was_skipped", False):  # fp16: the gradient was not finite
            worker.skip()
        if worker.done:
            control.should_training_stop = True
            return
        if state.global_step >= state.max_steps:  # the Trainer would end, but a round was dropped
            control.should_training_stop = False
        self._follow(state)

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self.close()


def _trainer() -> Any:
    """The Trainer that called this event; None: not found."""
    frame = sys._getframe()
    while frame is not None:
        found = frame.f_locals.get("self")
        if isinstance(found, transformers.Trainer):
            return found
        frame = frame.f_back  # type: ignore[assignment]
    return None


def _check_sampler(loader: Any) -> None:
    """Raises InvalidError for a loader whose order of samples the Trainer needs: the coordinator deals the samples."""
    if is_stream(loader.dataset):
        return
    sampler = getattr(loader, "batch_sampler", None)
    seen = [sampler]
    while sampler is not None:
        sampler = getattr(sampler, "batch_sampler", None) or getattr(sampler, "sampler", None)
        seen.append(sampler)
    if loader.batch_sampler is None:
        seen = [getattr(loader, "sampler", None)]
    other = next((s for s in seen if s is not None and type(s).__name__ not in _SAMPLERS), None)
    if other is not None:
        raise InvalidError(
            f"the Trainer draws its samples by a {type(other).__name__}, and a run deals each sample to one worker in "
            "its own order: atoll.hf.Callback trains only with samplers that take each sample once"
        )


def _check_batch(worker: Worker, args: TrainingArguments) -> None:
    sizes = [("per_device_train_batch_size", args.per_device_train_batch_size)]
    sizes += [("gradient_accumulation_steps", args.gradient_accumulation_steps)]
    sizes += [("GPUs", args.n_gpu)] if args.n_gpu > 1 else []
    sizes += [("processes", args.world_size)] if args.world_size > 1 else []
    needed, given = worker.assignment.step_samples, math.prod(size for _, size in sizes)
    if given != needed:
        raise InvalidError(
            f"{' x '.join(f'{name} {size}' for name, size in sizes)} gives {given} samples a step, but a step of the "
            f"run takes {needed} (train.batch_size x train.grad_accum): make them equal"
        )


def _lease(loader: Any, batches: Batches) -> None:
    """Gives a data loader of the Trainer a class that yields leased samples.

    Accelerate's data loaders fetch one batch ahead, which a sync point forbids: the next round's samples are known only
    after it. The Trainer keeps the loader in a local variable, so that another object cannot take its place.
    """
    kind = type(loader)

    def iterate(self: Any) -> Iterator[Any]:
        return iter(batches) if is_stream(batches.dataset) else itertools.islice(batches, len(self))

    leased = type(f"Leased{kind.__name__}", (kind,), {"__iter__": iterate})
    object.__dict__["__class__"].__set__(loader, leased)  # accelerate's loaders pretend to have another __class__
