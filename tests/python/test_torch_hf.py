"""atoll.hf.Callback: transformers.Trainer as a worker, with and without PEFT."""

from __future__ import annotations

import importlib.util
import json
import sys
import time
import unittest
import warnings
from pathlib import Path
from typing import Any

import rig
import torch

ROOT = Path(__file__).resolve().parents[2]
NEEDED = ("transformers", "peft", "accelerate", "tokenizers")
MISSING = [name for name in NEEDED if importlib.util.find_spec(name) is None]

if not MISSING:
    import atoll.hf
    from transformers import (
        AutoModelForCausalLM,
        GPT2Config,
        GPT2LMHeadModel,
        LlamaConfig,
        LlamaForCausalLM,
        PreTrainedTokenizerFast,
        Trainer,
        TrainerCallback,
        TrainingArguments,
    )

torch.set_num_threads(1)
VOCABULARY, LENGTH = 64, 16

# Trains a small GPT-2 with dropout on the samples of samples(), slowly enough to be killed.
FULL = """
import sys
sys.path.insert(0, {tests!r})
import atoll.hf, test_torch_hf as t
name, run, pause = sys.argv[1:]
callback = atoll.hf.Callback(run, name=name)
trainer = t.trainer(t.small_gpt2(), [callback, t.Pause(float(pause))], max_steps=20)
trainer.train()
print("theta", callback.worker.info().theta_hash)
"""


def samples(n: int = 96) -> list[dict[str, list[int]]]:
    """Sequences that count upwards from different numbers in different steps."""
    rows = [[(i * 5 + j * (1 + i % 3)) % VOCABULARY for j in range(LENGTH)] for i in range(n)]
    return [{"input_ids": row, "labels": row} for row in rows]


def small_gpt2() -> Any:
    torch.manual_seed(3)
    return GPT2LMHeadModel(GPT2Config(vocab_size=VOCABULARY, n_positions=LENGTH, n_embd=16, n_layer=1, n_head=2))


def trainer(model: Any, callbacks: list[Any], *, data: Any = None, kind: Any = None, **arguments: Any) -> Any:
    """A Trainer on the CPU that writes nothing; its arguments fit rig.CONFIG."""
    usual = dict(per_device_train_batch_size=4, learning_rate=1e-2, warmup_steps=4, use_cpu=True, save_strategy="no",
                 report_to="none", disable_tqdm=True, logging_steps=1)  # fmt: skip
    return (kind or Trainer)(
        model=model,
        args=TrainingArguments("unused", **{**usual, **arguments}),
        train_dataset=samples() if data is None else data,
        callbacks=callbacks,
    )


if not MISSING:

    class Pause(TrainerCallback):
        """Sleeps before each step."""

        def __init__(self, seconds: float) -> None:
            self._seconds = seconds

        def on_step_begin(self, *_: Any, **__: Any) -> None:
            time.sleep(self._seconds)

    class Log(TrainerCallback):
        """Keeps the loss of each step."""

        def __init__(self) -> None:
            self.losses: list[float] = []

        def on_log(self, _args: Any, _state: Any, _control: Any, logs: dict[str, float], **_: Any) -> None:
            if "loss" in logs:
                self.losses.append(logs["loss"])


@unittest.skipIf(MISSING, f"not installed: {', '.join(MISSING)}")
class TrainerTest(rig.RunTest):
    """One worker in this process."""

    def setUp(self) -> None:
        super().setUp()
        warnings.simplefilter("ignore")  # PyTorch and accelerate warn of pinned memory without a GPU

    def callback(self, name: str = "w0", **options: Any) -> Any:
        callback = atoll.hf.Callback(self.run_dir, dir=self.folder / name, name=name, **options)
        self.addCleanup(callback.close)
        return callback

    def start_run(self, **train: Any) -> None:
        self.start_coordinator(train=train)
        rig.wait_for(20, "the address", (self.run_dir / "address").exists)

    def test_loss_and_rate_of_accumulated_steps_and_final_parameters(self) -> None:
        self.start_run(batch_size=2, grad_accum=3, max_steps=20)
        callback, log = self.callback(), Log()
        # 92 samples are 46 batches: an epoch ends with a step of one batch, and the Trainer needs a second epoch.
        t = trainer(small_gpt2(), [callback, log], data=samples(92), per_device_train_batch_size=2,
                    gradient_accumulation_steps=3, max_steps=20)  # fmt: skip
        t.train()
        self.assertEqual(t.state.global_step, 20)
        steps = sorted(self.events("step"), key=lambda e: e["step"])
        self.assertEqual(len(steps), 20)
        for step, (event, loss) in enumerate(zip(steps, log.losses)):
            self.assertAlmostEqual(event["loss"], loss, delta=1e-3)
            rate = 1e-2 * (step / 4 if step < 4 else (20 - step) / 16)  # warmup, then linear to 0
            self.assertAlmostEqual(event["lr"], rate, delta=1e-8)
        self.assertLess(steps[-1]["loss"], steps[0]["loss"])
        rig.wait_for(20, "the summary", (self.run_dir / "summary.json").exists)
        self.assertEqual(callback.worker.info().theta_hash, self.summary()["theta_hash"])
        loaded = AutoModelForCausalLM.from_pretrained(self.run_dir / "checkpoints" / "latest")
        for (name, ours), theirs in zip(t.model.named_parameters(), loaded.parameters()):
            self.assertTrue(torch.equal(ours, theirs), name)

    def test_batch_that_does_not_fit_is_one_line(self) -> None:
        self.start_run()
        with self.assertRaises(atoll.InvalidError) as caught:
            trainer(small_gpt2(), [self.callback()], per_device_train_batch_size=3, max_steps=20).train()
        self.assertEqual(
            str(caught.exception),
            "per_device_train_batch_size 3 x gradient_accumulation_steps 1 gives 3 samples a step, but a step of the "
            "run takes 4 (train.batch_size x train.grad_accum): make them equal",
        )

    def test_length_that_does_not_fit_is_one_line(self) -> None:
        self.start_run()
        with self.assertRaises(atoll.InvalidError) as caught:
            trainer(small_gpt2(), [self.callback()], max_steps=19).train()
        self.assertEqual(
            str(caught.exception),
            "the Trainer ends after 19 steps, but the run takes 20: set max_steps=20 in TrainingArguments",
        )
        with self.assertLogs("atoll", "WARNING") as logged:
            t = trainer(small_gpt2(), [self.callback("w1")], max_steps=50)
            t.train()
        self.assertEqual(t.state.global_step, 20)
        self.assertIn("scheduled for 50 steps, but the run has 20: set max_steps=20", logged.output[0])

    def test_sampler_that_the_trainer_needs_is_refused(self) -> None:
        """GRPO draws each prompt several times; length groups and batch samplers have an order of their own."""

        class RepeatSampler(torch.utils.data.Sampler):
            def __init__(self, data: Any) -> None:
                self.data = data

            def __iter__(self):
                return iter([i for i in range(len(self.data)) for _ in range(2)])

            def __len__(self) -> int:
                return 2 * len(self.data)

        class Repeating(Trainer):
            def _get_train_sampler(self, *_given: Any) -> Any:
                return RepeatSampler(self.train_dataset)

        self.start_run()
        for kind, options, name in (
            (Repeating, {}, "RepeatSampler"),
            (Trainer, {"train_sampling_strategy": "group_by_length"}, "LengthGroupedSampler"),
        ):
            with self.assertRaises(atoll.InvalidError) as caught:
                trainer(small_gpt2(), [self.callback(name)], kind=kind, max_steps=20, **options).train()
            self.assertIn(f"the Trainer draws its samples by a {name}, and a run deals", str(caught.exception))

    def test_loss_is_that_of_the_trainer(self) -> None:
        """DPO and reward trainers have losses of their own; the noted one is what the Trainer minimizes."""

        class Tripled(Trainer):
            def compute_loss(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
                loss = super().compute_loss(model, inputs, *args, **kwargs)
                return 3 * loss if torch.is_tensor(loss) else (3 * loss[0], loss[1])

        losses = {}
        for kind in (Trainer, Tripled):
            self.run_dir = self.folder / f"run-{kind.__name__}"
            self.start_run()
            t = trainer(small_gpt2(), [self.callback(kind.__name__)], kind=kind, max_steps=20, max_grad_norm=0,
                        optim="sgd", learning_rate=1e-9)
            t.train()
            noted = [e["loss"] for e in self.events("step")]
            logged = [e["loss"] for e in t.state.log_history if "loss" in e]
            self.assertEqual(len(noted), 20)
            for ours, theirs in zip(noted, logged):
                self.assertAlmostEqual(ours, theirs, delta=2e-3)
            losses[kind] = noted[0]
        self.assertAlmostEqual(losses[Tripled], 3 * losses[Trainer], delta=0.01)

    def test_dropped_round_does_not_end_the_trainer(self) -> None:
        """The Trainer goes on to the end of the run, and its schedule with it, also past the epochs it planned."""
        self.start_run()
        steps = []

        class Poison(TrainerCallback):
            def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **given: Any) -> None:
                if state.global_step == 12:
                    next(p for p in given["model"].parameters() if p.grad is not None).grad.fill_(float("nan"))

            def on_step_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
                steps.append((state.global_step, given["lr_scheduler"].last_epoch))

        t = trainer(small_gpt2(), [self.callback(), Poison()], max_steps=20, data=samples(80), max_grad_norm=0)
        t.train()
        self.assertEqual(t.state.global_step, 25)
        self.assertEqual(steps[-1], (25, 20))
        rig.wait_for(20, "the summary", (self.run_dir / "summary.json").exists)

    def test_checkpoint_of_the_trainer_does_not_skip_samples(self) -> None:
        self.start_run()
        saving = dict(max_steps=20, save_strategy="steps", save_steps=5, output_dir=str(self.folder / "out"))

        class Stop(TrainerCallback):
            def on_step_end(self, _args: Any, state: Any, control: Any, **_: Any) -> None:
                control.should_training_stop = state.global_step == 10

        arguments = {key: value for key, value in saving.items() if key != "output_dir"}
        first = trainer(small_gpt2(), [self.callback(), Stop()], **arguments)
        first.args.output_dir = saving["output_dir"]
        first.train()
        second = trainer(small_gpt2(), [self.callback()], **arguments)
        second.args.output_dir = saving["output_dir"]
        second.train(resume_from_checkpoint=True)
        self.assertEqual(second.state.global_step, 20)
        rig.wait_for(20, "the summary", (self.run_dir / "summary.json").exists)
        self.assertEqual(self.summary()["steps"], 20)

    def test_exception_leaves_the_run(self) -> None:
        self.start_run()

        class Raise(TrainerCallback):
            def on_step_end(self, _args: Any, state: Any, _control: Any, **_: Any) -> None:
                if state.global_step == 7:
                    raise KeyboardInterrupt

        with self.assertRaises(KeyboardInterrupt), self.callback() as callback:
            trainer(small_gpt2(), [callback, Raise()], max_steps=20).train()
        rig.wait_for(30, "the worker to leave", lambda: self.events("leave"))
        self.assertIn("KeyboardInterrupt", self.events("leave")[0]["text"])


@unittest.skipIf(MISSING, f"not installed: {', '.join(MISSING)}")
class ProcessesTest(rig.RunTest):
    """Two workers in processes of their own."""

    def train(self, *, kill: bool) -> str:
        """Trains with two workers; with `kill`, one of them is killed in the second round and started again."""
        self.run_dir = self.folder / ("killed" if kill else "undisturbed")
        self.start_coordinator(coordinator={"min_workers": 2, "evict_after_s": 600})
        rig.wait_for(20, "the address", (self.run_dir / "address").exists)
        script, pause = FULL.format(tests=str(Path(__file__).parent)), "0.05"
        workers = []
        for name in (f"{self.run_dir.name}-0", f"{self.run_dir.name}-1"):
            workers.append(self.start_script(script, name, str(self.run_dir), pause))
            rig.wait_for(60, f"{name} to join", lambda: len(self.events("join")) == len(workers))
        if kill:
            rig.wait_for(60, "two rounds", lambda: self.rounds() >= 2)
            time.sleep(0.1)
            self.kill(workers[1])
            self.assertLess(self.rounds(), 4)
            workers[1] = self.start_script(script, f"{self.run_dir.name}-1", str(self.run_dir), pause)
        for worker in workers:
            self.finish(worker, 90)
        rig.wait_for(20, "the summary", (self.run_dir / "summary.json").exists)
        theta = self.summary()["theta_hash"]
        for name in (f"{self.run_dir.name}-0", f"{self.run_dir.name}-1"):
            self.assertIn(f"theta {theta}", self.log(name))
        return theta

    def test_killed_worker_continues_with_the_same_bits(self) -> None:
        self.assertEqual(self.train(kill=True), self.train(kill=False))

    def make_base(self) -> int:
        """Writes base/, a small Llama with a tokenizer, and text.jsonl; returns the bytes of the base."""
        from tokenizers import Tokenizer, models, pre_tokenizers, trainers

        lines = [line.strip() + "." for line in rig.text(20000).split(". ")]
        (self.folder / "text.jsonl").write_text("".join(json.dumps({"text": line}) + "\n" for line in lines))
        tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
        tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
        tokenizer.train_from_iterator(lines, trainers.BpeTrainer(vocab_size=300, special_tokens=["<unk>", "<eos>"],
                                                                 show_progress=False))  # fmt: skip
        fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>", eos_token="<eos>")
        torch.manual_seed(5)
        base = LlamaForCausalLM(
            LlamaConfig(vocab_size=2000, hidden_size=256, intermediate_size=688, num_hidden_layers=2,
                        num_attention_heads=4, num_key_value_heads=4)  # fmt: skip
        )
        base.save_pretrained(self.folder / "base")
        fast.save_pretrained(self.folder / "base")
        return sum(p.numel() * 4 for p in base.parameters())

    def test_lora_sends_the_adapter_only(self) -> None:
        from peft import PeftModel
        from safetensors.torch import load_file

        base_bytes = self.make_base()
        example = [str(ROOT / "examples" / "lora.py"), "base", "text.jsonl", "--workers", "2", "--steps", "20",
                   "--every", "5", "--batch", "4", "--listen", "tcp://127.0.0.1:*", "--run", "run"]  # fmt: skip
        first = self.start([sys.executable, *example, "--name", "w0", "--out", "adapter0"], "w0.log")
        rig.wait_for(60, "the coordinator", (self.run_dir / "address").exists)
        join = [sys.executable, "-m", "atoll.join", "run", *example, "--name", "w1", "--out", "adapter1"]
        second = self.start(join, "w1.log")
        self.finish(first, 120)
        self.finish(second, 60)

        latest = self.run_dir / "checkpoints" / "latest"
        tensors = load_file(latest / "adapter_model.safetensors")
        self.assertTrue(all(".lora_A.weight" in name or ".lora_B.weight" in name for name in tensors), list(tensors))
        adapter_bytes = sum(t.numel() * 4 for t in tensors.values())
        config = json.loads((latest / "adapter_config.json").read_text())
        self.assertEqual((config["peft_type"], config["r"], config["inference_mode"]), ("LORA", 8, True))
        self.assertTrue((latest / "tokenizer.json").exists())
        self.assertTrue((self.run_dir / "init" / "adapter_model.safetensors").is_symlink())

        rounds = sorted(self.events("round"), key=lambda e: e["round"])
        self.assertEqual(len(rounds), 4)
        up, down = rounds[-1]["bytes_up"], rounds[-1]["bytes_down"]
        print(f"\nbase {base_bytes:,} bytes, adapter {adapter_bytes:,} bytes (fp32); "
              f"all rounds, both workers: {up:,} bytes up, {down:,} bytes down")  # fmt: skip
        for a, b in zip(rounds, rounds[1:]):
            round_up, round_down = b["bytes_up"] - a["bytes_up"], b["bytes_down"] - a["bytes_down"]
            print(f"round {b['round']}, each worker: {round_up // 2:,} bytes up, {round_down // 2:,} bytes down")
            self.assertLess(max(round_up, round_down) / 2, 0.4 * adapter_bytes)  # int8 is a quarter of fp32
        self.assertLess(up + down, base_bytes / 3)

        prompt = torch.arange(2, 40).reshape(2, 19)
        with torch.no_grad():
            logits = []
            for folder in (latest, self.folder / "adapter0", self.folder / "adapter1"):
                base = AutoModelForCausalLM.from_pretrained(self.folder / "base")
                untrained = base(prompt).logits
                logits.append(PeftModel.from_pretrained(base, folder)(prompt).logits)
        self.assertTrue(torch.equal(logits[0], logits[1]))
        self.assertTrue(torch.equal(logits[0], logits[2]))
        self.assertGreater((logits[0] - untrained).abs().max().item(), 0.01)


if __name__ == "__main__":
    unittest.main()
