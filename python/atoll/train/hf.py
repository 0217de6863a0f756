"""A callback that makes ``transformers.Trainer`` a worker of a run."""

from __future__ import annotations

import atexit
import collections
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
from .worker import Worker


class Callback(TrainerCallback):  # type: ignore[misc]
    """Trains the Trainer's model as a worker of a run::

        trainer = Trainer(model, args, train_dataset=samples, callbacks=[atoll.hf.Callback("tcp://...")])
        trainer.train()

    - The run begins with ``train()``. The Trainer's batches are the samples leased to this worker: its data set needs a
      length and ``[index]``, and its sampler has no effect.
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
        evaluate: Callable[[Any, np.ndarray], tuple[float, int]] | None = None,
        val: Any = None,
        files: Any = None,
        threads: int = 0,
        max_wait: int = 0,
    ) -> None:
        self._files = files
        self._options: dict[str, Any] = dict(join=join, every=every, dir=dir, name=name, buffers=buffers)
        self._options.update(evaluate=evaluate, val=val, threads=threads, max_wait=max_wait)
        self._hook: Any = None
        self._batches: Any = None
        self._loss: Any = None  # of the micro-batches since the last step

    def __enter__(self) -> Callback:
        return self

    def __exit__(self, _kind: Any, error: BaseException | None, _trace: Any) -> None:
        self.close(_reason(error))

    def close(self, text: str = "the script closed its worker") -> None:
        """Leaves the run, if it is not done. ``text`` stands in the coordinator's log."""
        atexit.unregister(self._at_exit)
        if self._hook is not None:
            self._hook.remove()
            self._hook = None
        if self.worker is not None:
            self.worker.close(text)

    def _at_exit(self) -> None:
        self.close(_reason(getattr(sys, "last_value", None)))

    # --- events of the Trainer ---

    def on_init_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        # A Trainer that resumes from its own checkpoint would skip batches, on a copy of the data loader. But the
        # coordinator knows which samples are left.
        args.ignore_data_skip = True

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
        tokenizer = kwargs.get("processing_class") or kwargs.get("tokenizer")
        saved = [lr_scheduler, getattr(optimizer, "scaler", None)]
        worker = Worker(
            model,
            optimizer.optimizer if type(optimizer).__name__ == "AcceleratedOptimizer" else optimizer,
            state=[item for item in saved if item is not None],
            files=[item for item in (tokenizer, self._files) if item is not None],
            **self._options,
        )
        self.worker, self._loss = worker, None
        atexit.register(self._at_exit)
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
                _fit_length(worker, state)
            else:
                logger.info("the run is done: the model has its last parameters")
        except BaseException as error:
            self.close(_reason(error))
            raise
        self._batches = batches
        _lease(train_dataloader, batches)
        self._hook = model.register_forward_hook(self._note_loss(args), with_kwargs=True)

    def on_pre_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if self.worker is None:
            return
        # The Trainer's epoch may end with a shorter step. The rest of its samples is taken and left out.
        missing = self.worker._per_step - self.worker._micro
        collections.deque(itertools.islice(self._batches, missing), maxlen=0)
        if self._loss is not None:
            self.worker.loss(self._loss)
            self._loss = None

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        worker = self.worker
        if worker is None:
            return
        if not worker._per_step:
            raise InvalidError(
                "the Trainer did not read the leased samples: give atoll.hf.Callback in Trainer(callbacks=...), or "
                "call train() without resume_from_checkpoint"
            )
        if getattr(kwargs.get("optimizer"), "step_was_skipped", False):  # fp16: the gradient was not finite
            worker._count_step()
        if worker.done:
            control.should_training_stop = True

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if self.worker is not None and not self.worker.done:
            logger.warning("the Trainer ended before the run: start the script again to continue")
        self.close("the Trainer ended before the run")

    def _note_loss(self, args: TrainingArguments) -> Callable[..., None]:
        """A hook that adds the loss of a micro-batch to that of the step, as the Trainer does.

        With ``num_items_in_batch`` the model divides by the tokens of the whole step, of all processes if
        ``average_tokens_across_devices`` is set; otherwise by those of the micro-batch.
        """

        def hook(module: torch.nn.Module, _args: Any, inputs: dict[str, Any], output: Any) -> None:
            loss = output.get("loss") if isinstance(output, dict) else getattr(output, "loss", None)
            if loss is None or loss.ndim or not torch.is_grad_enabled():
                return
            part = loss.detach()
            if inputs.get("num_items_in_batch") is None:
                part = part / args.gradient_accumulation_steps
            elif args.average_tokens_across_devices:
                part = part * args.world_size
            self._loss = part if self._loss is None else self._loss + part

        return hook


def _reason(error: BaseException | None) -> str:
    """Why a worker leaves, in one line."""
    if error is None:
        return "the script ended before the run"
    return f"{type(error).__name__}: {error}".splitlines()[0].removesuffix(": ")


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


def _fit_length(worker: Worker, state: TrainerState) -> None:
    """Lets the Trainer end with the run. An async run has no fixed number of steps for one worker."""
    def setting(key: str) -> str:
        return worker._ranks.call(lambda: worker.setting(key).encode()).decode()

    if setting("train.method") == "async":
        return
    total = int(setting("train.max_steps"))
    left, planned = total - int(worker.position), state.max_steps - state.global_step
    if planned < left:
        raise InvalidError(
            f"the Trainer ends after {planned} steps, but the run takes {left} more: set max_steps={total} in "
            "TrainingArguments"
        )
    if state.max_steps != total:
        logger.warning(
            "the learning rate is scheduled for %d steps, but the run has %d: set max_steps=%d in TrainingArguments",
            state.max_steps,
            total,
            total,
        )
    state.max_steps = state.global_step + left


def _lease(loader: Any, batches: Batches) -> None:
    """Gives a data loader of the Trainer a class that yields leased samples.

    Accelerate's data loaders fetch one batch ahead, which a sync point forbids: the next round's samples are known only
    after it. The Trainer keeps the loader in a local variable, so that another object cannot take its place.
    """
    kind = type(loader)

    def iterate(self: Any) -> Iterator[Any]:
        return itertools.islice(batches, len(self))

    leased = type(f"Leased{kind.__name__}", (kind,), {"__iter__": iterate})
    object.__dict__["__class__"].__set__(loader, leased)  # accelerate's loaders pretend to have another __class__
