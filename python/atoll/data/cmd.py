"""atoll-prepare: text to token shards, with the tokenizers of Hugging Face models.

The rules of `atoll prepare` in C (cli/cmd_prepare.c, for text files and bytes as tokens) hold, and both programs write
the same bytes for the same input:

- The first of two passes checks everything and counts documents, so nothing is written if an input is invalid.
- Whole documents, chosen by the seed, are held out if the fraction gives at least ten; otherwise the tail of each.
- The new set is written to OUT/set.tmp-PID. Then meta.json and shards of an older set are removed, and the new files
  are renamed into OUT, meta.json last. A signal is handled like a failure: all written files are removed.

Processes read nothing themselves: this one reads blocks, and takes the results in order. The shards do not depend on
the number of processes, and memory is bounded by a few blocks per process.
"""

from __future__ import annotations

import concurrent.futures
import fcntl
import json
import multiprocessing
import os
import re
import shutil
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np

from ..command import DONE, Options, Problem, catch_signals, hold_signals, real, run, say, warn, whole, wrong
from ..progress import BytesProgress
from ..units import bytes_text, percent_text
from . import chat, encode as prepare_encode, input as prepare_input, text_tokenizer
from .encode import Encoded, Plan, Stats
from .input import Block, Inputs, Reader
from .shards import SHARDS_MAX, TOKENS_MAX, ShardWriter, permute, remove_shards
from .text_tokenizer import TextTokenizer

HELD_OUT_MIN = 10
_Result = TypeVar("_Result")


# --- processes --------------------------------------------------------------------------------------------------------


class Pool:
    """Runs a function of prepare_encode on blocks, in processes or, for one process, right here."""

    def __init__(self, plan: Plan, processes: int) -> None:
        self.processes = processes
        self.executor: ProcessPoolExecutor | None = None
        if processes == 1:
            prepare_encode.start(plan)
            return
        context = multiprocessing.get_context("spawn")  # threads of tokenizers do not survive a fork
        self.executor = ProcessPoolExecutor(processes, context, prepare_encode.start, (plan,))

    def map(
        self, function: Callable[..., _Result], blocks: Iterable[Block], *more: Any
    ) -> Iterator[tuple[Block, _Result]]:
        """Yields each block with function(block, *more), in order. At most two blocks a process are under way."""
        if not self.executor:
            for block in blocks:
                yield block, function(block, *more)
            return
        waiting: deque[tuple[Block, concurrent.futures.Future[_Result]]] = deque()
        try:
            for block in blocks:
                waiting.append((block, self.executor.submit(function, block, *more)))
                if len(waiting) > 2 * self.processes:
                    first, future = waiting.popleft()
                    yield first, future.result()
            while waiting:
                first, future = waiting.popleft()
                yield first, future.result()
        except BrokenProcessPool:
            raise Problem(
                "a process that encodes ended early, perhaps without memory: give fewer --processes"
            ) from None

    def close(self) -> None:
        if self.executor:
            self.executor.shutdown(wait=False, cancel_futures=True)


# --- the folder -------------------------------------------------------------------------------------------------------


class OutFolder:
    """The folder OUT, locked; a new set is made beside the old one. A failure removes what this program made."""

    def __init__(self, path: str, force: bool) -> None:
        self.path = path
        self.made: list[str] = []
        at = os.path.abspath(path)
        while not os.path.isdir(at):
            self.made.append(at)
            at = os.path.dirname(at)
        os.makedirs(path, exist_ok=True)
        self.lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self.lock)
            raise Problem(f"another program is writing to {path}: wait for it or use another folder") from None
        except OSError:
            pass  # a file system without locks: then without protection
        self.set = os.path.join(path, f"set.tmp-{os.getpid()}")
        self._sweep()
        if not force and os.listdir(path):
            self.close()
            raise Problem(
                f"{path} exists and is not empty: choose a new folder, or replace the data set in it with --force "
                "(running workers keep the old shards)"
            )
        os.mkdir(self.set)

    def _sweep(self) -> None:
        """Removes the sets of programs that were killed."""
        for entry in os.listdir(self.path):
            match = re.fullmatch(r"set\.tmp-(\d{1,9})", entry)
            if not match:
                continue
            try:
                os.kill(int(match[1]), 0)
            except ProcessLookupError:
                shutil.rmtree(os.path.join(self.path, entry), ignore_errors=True)
            except OSError:
                pass
        shutil.rmtree(self.set, ignore_errors=True)

    def move(self, files: Sequence[str]) -> None:
        """Replaces the older set by the new one; meta.json marks it as complete. `files`: the tokenizer's."""
        with hold_signals():
            meta = os.path.join(self.path, "meta.json")
            if os.path.exists(meta):
                os.unlink(meta)
            for name in ("train", "val"):
                remove_shards(self.path, name)
            shards = sorted(entry for entry in os.listdir(self.set) if re.fullmatch(r"(train|val)_\d{6}\.bin", entry))
            for name in [*shards, *files, "meta.json"]:
                os.rename(os.path.join(self.set, name), os.path.join(self.path, name))
            os.fsync(self.lock)
            self.made = []

    def close(self) -> None:
        """Removes the temporary set, and after a failure the folders that were made."""
        shutil.rmtree(self.set, ignore_errors=True)
        os.close(self.lock)
        for folder in self.made:
            try:
                os.rmdir(folder)
            except OSError:
                break


def write_file(folder: str, name: str, data: bytes) -> None:
    with open(os.path.join(folder, name), "xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


# --- the two passes ---------------------------------------------------------------------------------------------------


@dataclass
class Task:
    """One call of the program."""

    options: Any
    plan: Plan
    tokenizer: TextTokenizer | None
    inputs: Inputs
    progress: BytesProgress
    held_out: int = 0  # number of validation documents; 0: tails, or none


@dataclass
class Written:
    train: ShardWriter
    val: ShardWriter
    stats: Stats
    targets: int = 0  # of a chat set: tokens with loss


def count_input(task: Task, pool: Pool, reader: Reader) -> Stats:
    """The first pass. Problem: an input is invalid, or no document is left."""
    total = Stats()
    task.progress.begin("reading, pass 1 of 2:")
    for block, stats in pool.map(prepare_encode.count, reader.blocks()):
        total.add(stats)
        task.progress.add(block.consumed)
    if not total.documents:
        for (_, what), (n, place) in total.notes.items():
            if total.names and "without" in what:
                names = ", ".join(total.names[:20])
                raise wrong(f"{n} {what}, the first {place}: name one of its fields with --field: {names}")
        why = next(iter(total.notes), ("", ""))[1]
        raise wrong(f"the input has no text: {task.options.inputs[0]} has only {why or 'nothing'}")
    if total.bytes // task.options.shard_tokens >= 8 * SHARDS_MAX:
        raise wrong(f"--shard-tokens is {task.options.shard_tokens}, too few for {total.bytes} bytes: give more")
    return total


def split(task: Task, documents: int) -> float:
    """Decides what is held out: sets task.held_out. Returns the fraction of each document that is, or 0."""
    fraction = task.options.val_fraction
    share = int(documents * fraction)
    if task.plan.chat:  # a conversation stays whole
        task.held_out = max(share, 1) if fraction > 0 and documents > 1 else 0
        return 0
    task.held_out = share if documents * fraction >= HELD_OUT_MIN else 0
    return 0 if task.held_out else fraction


def deal(task: Task, written: Written, part: Encoded, documents: int, total: int) -> None:
    """Writes the tokens of a block to the training and the validation set. `documents`: those before the block."""
    if task.held_out:
        index = documents - 1 + np.cumsum(part.first)
        val = permute(task.options.seed, 0, index.astype(np.uint64), total) < task.held_out
    else:
        val = part.tail
    of_val = np.repeat(val, part.lengths)
    written.val.put(part.tokens[of_val])
    written.train.put(part.tokens[~of_val])
    if task.plan.chat:
        written.targets += int(np.count_nonzero(part.tokens < 0x80000000))
    written.stats.add(part.stats)
    if max(written.train.n_shards, written.val.n_shards) > SHARDS_MAX:
        raise wrong(
            f"--shard-tokens is {task.options.shard_tokens}: this text gives more than {SHARDS_MAX} shards; give more"
        )


def write_set(task: Task, folder: str) -> Written:
    """Both passes: writes the shards into the folder. Problem, OSError."""
    options, plan = task.options, task.plan
    reader = Reader(task.inputs.sources, plan.fields)
    pool = Pool(plan, options.processes)
    writers = [ShardWriter(folder, name, plan.width, plan.chat, options.shard_tokens) for name in ("train", "val")]
    written = Written(writers[0], writers[1], Stats())
    try:
        total = count_input(task, pool, reader)
        tails = split(task, total.documents)
        cuts = {}
        if tails:
            texts = [source for source in task.inputs.sources if source.kind == "text"]
            cuts = {
                s.path: prepare_input.tail_cut(s, reader.sizes[s.path], tails, plan.tokenizer != "bytes") for s in texts
            }
        documents = 0
        task.progress.begin("encoding, pass 2 of 2:")
        for block, part in pool.map(prepare_encode.encode, reader.blocks(cuts), tails):
            deal(task, written, part, documents, total.documents)
            documents += int(np.count_nonzero(part.first))
            task.progress.add(block.consumed)
        if documents != total.documents:
            raise Problem(f"the input changed while it was read: {total.documents} documents, then {documents}")
        for writer in writers:
            writer.close()
        return written
    finally:
        task.progress.clear()
        pool.close()
        for writer in writers:
            writer.abort()


# --- results ----------------------------------------------------------------------------------------------------------


def meta_of(task: Task, written: Written) -> dict[str, Any]:
    tokens = written.train.n_tokens + written.val.n_tokens
    meta: dict[str, Any] = {
        "tokenizer": "tokenizer.json" if task.tokenizer else "bytes",
        "vocab_size": task.tokenizer.vocab_size if task.tokenizer else 256,
        "separator": task.plan.separator,
        "token_bytes": task.plan.width,
        "documents": written.stats.documents,
        "bytes": written.stats.bytes,
        "train_tokens": written.train.n_tokens,
        "val_tokens": written.val.n_tokens,
        "bytes_per_token": round(written.stats.bytes / max(1, tokens), 9),
        "seed": task.options.seed,
        "val_fraction": task.options.val_fraction,
        "held_out": "documents" if task.held_out or task.plan.chat else "tails",
    }
    if task.tokenizer and not task.plan.chat:
        meta["prefix"], meta["suffix"] = list(task.tokenizer.prefix), list(task.tokenizer.suffix)
    if task.plan.chat:
        meta["masked"], meta["target_tokens"] = True, written.targets
    return meta


def as_pattern(path: str) -> str:
    """Returns the pattern for glob that matches only this path, for data.train."""
    text = re.sub(r"[{}\\]|^~", lambda match: "\\" + match[0], path)
    return re.sub(r"[*?[]", lambda match: f"[{match[0]}]", text)


def _row(label: str, count: int, text: str = "") -> None:
    say(f"{label:<10} {count:12d}{'  ' if text else ''}{text}")


def _shards(writer: ShardWriter, out: str) -> str:
    return f"{writer.n_shards} shard{'' if writer.n_shards == 1 else 's'}: {out}/{writer.name}_*.bin"


def report(task: Task, written: Written, seconds: float) -> None:
    out, stats = as_pattern(task.options.out), written.stats
    train, val = written.train, written.val
    tokens = train.n_tokens + val.n_tokens
    n = len(task.inputs.sources)
    _row("documents", stats.documents, f"in {n} file{'' if n == 1 else 's'}")
    if task.inputs.n_skipped:
        _row("skipped", task.inputs.n_skipped, "files and folders: see the warnings")
    for (label, what), (count, place) in sorted(stats.notes.items(), reverse=True):
        _row(label, count, f"{what}; the first: {place}")
    speed = f"{bytes_text(stats.bytes / max(seconds, 1e-3))}/s with {task.options.processes} processes"
    _row("bytes", stats.bytes, speed if task.options.processes != 1 else speed[:-2])
    _row("tokens", tokens, f"{stats.bytes / max(1, tokens):.3f} bytes per token")
    if task.plan.chat:
        _row("answers", written.targets, f"tokens with loss, {percent_text(written.targets / max(1, tokens))}")
    _row("train", train.n_tokens, _shards(train, out))
    what = "whole documents" if task.held_out or task.plan.chat else "the tail of each document"
    _row("val", val.n_tokens, f"{percent_text(val.n_tokens / max(1, tokens))}, {what}: {out}/val_*.bin")
    if task.tokenizer:
        report_tokenizer(task, task.tokenizer)
    if task.options.val_fraction > 0 and not val.n_tokens:
        warn(
            f"no validation text: --val-fraction {task.options.val_fraction:g} of this text is 0 tokens, "
            "and a run needs some: add text, or raise it"
        )


def report_tokenizer(task: Task, tokenizer: TextTokenizer) -> None:
    """Prints what surrounds a document, and the settings of a run."""
    separator, around = task.plan.separator, [tokenizer.name(token) for token in (*tokenizer.prefix, *tokenizer.suffix)]
    if task.plan.chat:
        between = "the chat template separates conversations"
    elif separator is not None:
        between = f"{tokenizer.name(separator)} precedes each document"
    else:
        between = "no separator between documents"
    if around and not task.plan.chat:
        between += f"; the tokenizer adds {' '.join(around)}"
    _row("vocabulary", tokenizer.vocab_size, between)
    out = task.options.out
    say(f"settings   data.tokenizer={os.path.join(out, 'tokenizer.json')} model.vocab_size={tokenizer.vocab_size}")
    if task.plan.chat:
        print("loss mask  train with the Python package (atoll.Tokens); atoll-worker refuses masked shards")


# --- main -------------------------------------------------------------------------------------------------------------


def options_of() -> Options:
    cores = len(os.sched_getaffinity(0))
    o = Options(
        "atoll prepare",
        "OUT INPUT... [options]",
        "Turn text into token shards: .txt, .md, .jsonl (also .gz, .zst), .parquet, folders of them, folders of the\n"
        "library datasets, and standard input (-). Writes OUT/train_000000.bin ..., OUT/val_000000.bin ...,\n"
        "OUT/meta.json and the tokenizer. A folder OUT with content needs --force.",
    )
    o.add_argument("out", metavar="OUT", help="the folder of the data set")
    o.add_argument("inputs", metavar="INPUT", nargs="+", help="files, folders, or - for standard input")
    o.add_argument(
        "--tokenizer", metavar="NAME", default="bytes", help="bytes (default), or a tokenizer.json or its folder"
    )
    o.add_argument(
        "--field", metavar="NAME", help="field with the text (default text; with --chat: messages or conversations)"
    )
    o.add_argument(
        "--chat", action="store_true", help="conversations, written by the tokenizer's template; loss on answers only"
    )
    o.add_argument("--separator", metavar="TOKEN", help="token before each document, or none (default: end of text)")
    o.add_argument(
        "--val-fraction",
        metavar="X",
        type=real(0, 0.5),
        default=0.05,
        help="fraction held out for validation (default 0.05)",
    )
    o.add_argument(
        "--seed",
        metavar="N",
        type=whole(0, 2**64 - 1),
        default=1,
        help="seed that selects held-out documents (default 1)",
    )
    o.add_argument("--force", action="store_true", help="replace the data set in OUT, also while a run uses it")
    o.add_argument(
        "--shard-tokens",
        metavar="N",
        type=whole(256, TOKENS_MAX),
        default=100_000_000,
        help="tokens per shard (default 100000000)",
    )
    o.add_argument(
        "--processes",
        metavar="N",
        type=whole(1, 1024),
        default=cores,
        help="processes that encode (default: one per core)",
    )
    return o


def plan_of(options: Any) -> tuple[Plan, TextTokenizer | None]:
    """Loads the tokenizer and decides how documents are encoded. Problem."""
    fields = (options.field,) if options.field else chat.FIELDS if options.chat else ("text",)
    if options.tokenizer == "bytes":
        if options.chat:
            raise wrong("--chat needs a tokenizer with a chat template: give --tokenizer FOLDER")
        if options.separator:
            raise wrong("--separator needs a --tokenizer; bytes are separated by token 0")
        return Plan("bytes", fields=fields), None
    tokenizer = text_tokenizer.load(options.tokenizer)
    width = 2 if tokenizer.vocab_size <= 1 << 16 and not options.chat else 4
    plan = Plan(options.tokenizer, width, fields, options.chat, None)
    if options.chat:
        chat.ChatTemplate(tokenizer)
        return plan, tokenizer
    if options.separator == "none":
        return plan, tokenizer
    end = tokenizer.end
    if options.separator:
        end = tokenizer.backend.token_to_id(options.separator)
        if end is None:
            raise wrong(f"--separator is '{options.separator}', which {options.tokenizer} does not know")
    elif end is None:
        raise wrong(f"{options.tokenizer} does not say which token ends a text: give --separator TOKEN, or none")
    alone = end in tokenizer.prefix[:1] or end in tokenizer.suffix[-1:]  # the tokenizer itself separates documents
    return replace(plan, separator=None if alone and not options.separator else end), tokenizer


def _replace_stdin(inputs: Inputs, folder: str) -> None:
    """Copies standard input into the folder of the set."""
    for i, source in enumerate(inputs.sources):
        if source.path == "-":
            inputs.sources[i] = prepare_input.spool(os.path.join(folder, "input"))


def body(words: Sequence[str]) -> int:
    options = options_of().parse(words)
    catch_signals()
    began = time.monotonic()
    plan, tokenizer = plan_of(options)
    inputs = prepare_input.collect(options.inputs)
    folder = OutFolder(options.out, options.force)
    try:
        _replace_stdin(inputs, folder.set)
        task = Task(options, plan, tokenizer, inputs, BytesProgress(sum(source.size for source in inputs.sources)))
        written = write_set(task, folder.set)
        files = tokenizer.files() if tokenizer else {}
        for name, data in files.items():
            write_file(folder.set, name, data)
        write_file(folder.set, "meta.json", (json.dumps(meta_of(task, written), indent=2) + "\n").encode())
        folder.move(list(files))
    except OSError as error:
        if error.filename:
            raise
        raise Problem(f"cannot write to {options.out}: {error.strerror}: make room, then run it again") from None
    finally:
        folder.close()
    report(task, written, time.monotonic() - began)
    return DONE


def main(words: Sequence[str] | None = None) -> int:
    """The program. Returns the exit code."""
    return run(body, words, "stopped by a signal; the unfinished output is removed: run the same command again")

