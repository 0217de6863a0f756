"""PyTorch modules as tensors of a run: names, types, what is left out, copies both ways, state of the optimizer."""

from __future__ import annotations

import ctypes
import json
import os
import random
import tempfile
import unittest
from pathlib import Path
from unittest import mock

import numpy as np
import torch
from torch import nn

import atoll
from atoll import _lib
from atoll.train.files import given_files
from atoll.train.notes import StepNotes
from atoll.train.samples import count_tokens, describe
from atoll.train.state import State
from atoll.train.shards import blocks
from atoll.train.torch_model import TorchModel, refuse_sharded, unwrap

torch.set_num_threads(1)


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(7, 4)
        self.norm = nn.BatchNorm1d(4)
        self.head = nn.Linear(4, 7, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("mask", torch.ones(3), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(self.embed(x)))


def flags_of(model: TorchModel) -> dict[str, int]:
    return {t.name: t.flags for t in model.tensors}


class Tensors(unittest.TestCase):
    def test_names(self) -> None:
        module = Tied()
        model = TorchModel(module)
        expected = {
            "embed.weight": _lib.DECAY,
            "norm.weight": 0,
            "norm.bias": 0,
            "norm.running_mean": _lib.MEAN,
            "norm.running_var": _lib.MEAN,
        }
        self.assertEqual(flags_of(model), expected)
        self.assertLessEqual(set(expected), set(module.state_dict()))
        self.assertEqual([t.shape for t in model.tensors], [(7, 4), (4,), (4,), (4,), (4,)])
        local = TorchModel(module, buffers="local")
        self.assertEqual(list(flags_of(local)), ["embed.weight", "norm.weight", "norm.bias"])
        ((_, buffers),) = local.objects
        names = {"norm.running_mean", "norm.running_var", "norm.num_batches_tracked"}
        self.assertEqual(set(buffers.state_dict()), names)

    def test_frozen_parameters_stay_out(self) -> None:
        module = Tied()
        module.embed.requires_grad_(False)
        self.assertEqual([t.name for t in TorchModel(module, buffers="local").tensors], ["norm.weight", "norm.bias"])
        module.requires_grad_(False)
        with self.assertRaisesRegex(atoll.InvalidError, "no trainable parameter"):
            TorchModel(module)

    def test_wrappers(self) -> None:
        module = Tied()
        compiled = torch.compile(module)
        self.assertIs(unwrap(compiled), module)
        self.assertEqual(TorchModel(compiled).tensors, TorchModel(module).tensors)
        self.assertIs(unwrap(nn.DataParallel(module)), module)

    def test_given_names(self) -> None:
        names = {"head.weight": "unused", "embed.weight": "wte"}
        self.assertEqual(TorchModel(Tied(), names=names).tensors[0].name, "wte")

    def test_refusals(self) -> None:
        with self.assertRaisesRegex(atoll.InvalidError, 'buffers=\'both\': it is "mean" or "local"'):
            TorchModel(Tied(), buffers="both")
        with self.assertRaisesRegex(atoll.InvalidError, "meta device: load the model"):
            TorchModel(nn.Linear(2, 2, device="meta"))
        with self.assertRaisesRegex(atoll.InvalidError, "weight is of torch.complex64"):
            TorchModel(nn.Linear(2, 2, dtype=torch.complex64))


class Copies(unittest.TestCase):
    """Both forms of the exchange: theta - trained is added to change, or the trained parameters are written there."""

    def attached(self, module: nn.Module, changes: bool = True) -> tuple[TorchModel, np.ndarray, np.ndarray]:
        model = TorchModel(module)
        model.share()
        n = [int(np.prod(t.shape)) for t in model.tensors]
        model.exchange.place([0, *np.cumsum(n[:-1])], changes)
        return model, model.exchange.segment.theta, model.exchange.segment.change

    def test_both_ways(self) -> None:
        module = Tied()
        module.norm.weight.data = torch.tensor([1.0, 2, 3, 4])
        model, theta, change = self.attached(module)
        model.put(initial=True)
        np.testing.assert_array_equal(theta[:28], module.embed.weight.detach().numpy().ravel())
        np.testing.assert_array_equal(theta[28:32], [1, 2, 3, 4])
        self.assertFalse(change.any())
        theta += 1
        embed = module.embed.weight
        model.take()
        self.assertIs(module.embed.weight, embed)
        self.assertIs(module.head.weight, embed)
        np.testing.assert_array_equal(embed.detach().numpy().ravel(), theta[:28])
        self.assertTrue(torch.equal(module.norm.running_mean, torch.ones(4)))

    def test_layouts_in_memory(self) -> None:
        """Channels-last and transposed tensors go in the order of their shape."""
        module = nn.Conv2d(3, 4, 2, bias=False).to(memory_format=torch.channels_last)
        model, theta, change = self.attached(module)
        model.put(initial=True)
        np.testing.assert_array_equal(theta, module.weight.detach().contiguous().numpy().ravel())
        model.take()
        self.assertTrue(module.weight.is_contiguous(memory_format=torch.channels_last))
        with torch.no_grad():
            module.weight[1, 2] += 1
        model.put()
        self.assertEqual(int((change != 0).sum()), 4)
        np.testing.assert_array_equal(change, theta - module.weight.detach().contiguous().numpy().ravel())

    def test_residual_stays(self) -> None:
        """The library's residual in change is added to, with the rounding of (theta - trained) + residual in fp32."""
        module = nn.Linear(50, 40)
        model, theta, change = self.attached(module)
        rng = np.random.default_rng(1)
        theta[:], change[:] = (rng.normal(size=theta.size).astype(np.float32) for _ in range(2))
        residual = change.copy()
        model.put()
        trained = np.concatenate([p.detach().numpy().ravel() for p in module.parameters()])
        np.testing.assert_array_equal(change, (theta - trained) + residual)

    def test_pieces(self) -> None:
        """Tensors that are moved in several pieces give the same numbers."""
        module = nn.ParameterList([torch.randn(5, 7, 3), torch.randn(1000), torch.tensor(2.0)])
        expected = np.concatenate([p.detach().numpy().ravel() for p in module])
        with mock.patch.object(blocks, "_ROWS", 10):
            model, theta, change = self.attached(module)
            model.put(initial=True)
            np.testing.assert_array_equal(theta, expected)
            theta += 1
            model.put()
            np.testing.assert_array_equal(change, theta - expected)
            model.take()
        np.testing.assert_array_equal(np.concatenate([p.detach().numpy().ravel() for p in module]), theta)

    def test_half_precision(self) -> None:
        """An unchanged parameter sends zero, a changed one its change; the rest of the fp32 value stays."""
        for dtype in (torch.bfloat16, torch.float16):
            for changes in (True, False):
                module = nn.Linear(50, 40).to(dtype)
                model, theta, change = self.attached(module, changes)
                start = np.random.default_rng(1).normal(size=len(theta)).astype(np.float32)
                theta[:], change[:] = start, 0 if changes else start
                model.take(begin=True)
                rounded = module.weight.detach().float().numpy().ravel()
                self.assertGreater(np.abs(rounded - start[:2000]).max(), 0)
                model.put()
                np.testing.assert_array_equal(change, 0 * start if changes else start)
                with torch.no_grad():
                    module.weight[0] += 0.5
                moved = module.weight.detach().float().numpy().ravel() - rounded
                model.put()
                now = start - change if changes else change
                np.testing.assert_allclose(now[:2000], start[:2000] + moved, atol=1e-7)
                np.testing.assert_array_equal(now[50:], start[50:])

    def test_nothing_is_added_if_a_number_is_not_finite(self) -> None:
        """The library gets one NaN, in the tensor that has it; large numbers whose sum overflows are fine."""
        for value, dropped in ((float("nan"), True), (float("inf"), True), (3e38, False)):
            module = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 2, bias=False))
            model, theta, change = self.attached(module)
            with torch.no_grad():
                module[1].weight[:, 1] = value
            model.put()
            self.assertEqual(list(np.flatnonzero(np.isnan(change))), [8] if dropped else [])
            self.assertEqual(change[:8].any(), not dropped)

    def test_evaluation_mode(self) -> None:
        module = Tied()
        module.norm.eval()
        model = TorchModel(module)
        torch.manual_seed(3), random.seed(3)
        expected = torch.rand(1), random.random()
        torch.manual_seed(3), random.seed(3)
        with model.evaluating() as evaluated:
            self.assertIs(evaluated, module)
            self.assertFalse(any(m.training for m in module.modules()) or torch.is_grad_enabled())
            torch.rand(5), random.random()
        self.assertEqual((torch.rand(1), random.random()), expected)
        self.assertTrue(module.training and module.embed.training and torch.is_grad_enabled())
        self.assertFalse(module.norm.training)


class Sharded(unittest.TestCase):
    """Models and optimizers that shard their state are refused with the reason and what to do."""

    def test_fsdp(self) -> None:
        import torch.distributed as dist
        from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
        from torch.distributed.optim import ZeroRedundancyOptimizer
        from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module

        with tempfile.TemporaryDirectory() as folder:
            dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=0, world_size=1)
            try:
                mesh = dist.device_mesh.init_device_mesh("cpu", (1,))
                parallel = parallelize_module(nn.Linear(4, 4), mesh, ColwiseParallel())
                zero = ZeroRedundancyOptimizer(nn.Linear(2, 2).parameters(), torch.optim.SGD, lr=1)
                for module, line in (
                    (parallel, "tensor parallelism: shard the model with .*fully_shard"),
                    (FullyShardedDataParallel(nn.Linear(4, 4), device_id=torch.device("cpu")), "FSDP1.*fully_shard"),
                    (dict(parallel.named_parameters()), "DTensors without fully_shard"),
                ):
                    with self.assertRaisesRegex(atoll.InvalidError, line):
                        refuse_sharded(module, [])
                refuse_sharded(fully_shard(nn.Linear(4, 4), mesh=mesh), [])
                refuse_sharded(nn.Linear(2, 2), [zero])
            finally:
                dist.destroy_process_group()

    def test_deepspeed(self) -> None:
        module = nn.Linear(2, 2)
        module.weight.ds_id = 1  # as DeepSpeed marks the parameters of ZeRO 3
        with self.assertRaisesRegex(atoll.InvalidError, "DeepSpeed ZeRO.*fully_shard"):
            refuse_sharded(module, [])
        engine = type("DeepSpeedEngine", (nn.Module,), {})()
        with self.assertRaisesRegex(atoll.InvalidError, "DeepSpeed ZeRO.*fully_shard"):
            refuse_sharded(engine, [])


class OptimizerState(unittest.TestCase):
    def resumed(self, make_optimizer, module: nn.Module) -> None:
        """Steps after a restored state equal those without it, bit for bit."""
        optimizer = make_optimizer(module.parameters())
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 20)
        state = State([("the optimizer", optimizer), ("state[0]", scheduler)])

        def steps(n: int) -> None:
            for _ in range(n):
                dtype = next(module.parameters()).dtype
                module(torch.randn(8, 30, dtype=dtype)).square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()
                scheduler.step()

        state.note_initial()
        begin = [p.detach().clone() for p in module.parameters()]
        steps(3)
        middle = [p.detach().clone() for p in module.parameters()]
        saved = b"".join(ctypes.string_at(*part) for part in state.save())
        steps(3)
        end = [p.detach().clone() for p in module.parameters()]
        for values, data in ((middle, saved), (begin, None)):
            for p, value in zip(module.parameters(), values):
                p.data.copy_(value)
            state.load(data)
            steps(3 if data else 6)
            for p, value in zip(module.parameters(), end):
                self.assertTrue(torch.equal(p, value))
        self.assertEqual(scheduler.last_epoch, 6)

    def test_optimizers(self) -> None:
        for make in (
            lambda p: torch.optim.AdamW(p, 0.01, amsgrad=True),
            lambda p: torch.optim.SGD(p, 0.01, momentum=0.9, nesterov=True),
            lambda p: torch.optim.RAdam(p, 0.01),
            lambda p: torch.optim.Adafactor(p, 0.01),
        ):
            for dtype in (torch.float32, torch.bfloat16):
                torch.manual_seed(1)
                self.resumed(make, nn.Linear(30, 20).to(dtype))

    def test_fp32_state_of_bf16_parameters(self) -> None:
        """load_state_dict rounds it to bf16: the restored bits are those that were saved."""
        p = nn.Parameter(torch.ones(5, dtype=torch.bfloat16))
        optimizer = torch.optim.SGD([p], 0.1, momentum=0.9)
        exact = torch.full((5,), 1.0001)
        optimizer.state[p]["momentum_buffer"] = exact.clone()
        state = State([("the optimizer", optimizer)])
        saved = state.copy()
        optimizer.state[p]["momentum_buffer"].zero_()
        state.load(saved)
        self.assertTrue(torch.equal(optimizer.state[p]["momentum_buffer"], exact))

    def test_no_copy_of_large_tensors(self) -> None:
        module = nn.Linear(300, 300)
        optimizer = torch.optim.Adam(module.parameters())
        module(torch.ones(1, 300)).sum().backward()
        optimizer.step()
        parts = State([("the optimizer", optimizer)]).save()
        for key in ("exp_avg", "exp_avg_sq"):
            self.assertIn((optimizer.state[module.weight][key].data_ptr(), 360000), parts)

    def test_tensors_of_a_device(self) -> None:
        """A tensor that is not in host memory is staged once for each place in the state (a stand-in for CUDA)."""

        class OnDevice(torch.Tensor):
            device = torch.device("cuda:0")

        OnDevice.__module__, OnDevice.__name__ = "torch", "Tensor"  # no subclass that keeps its values elsewhere

        staged = []

        def stage(number: int, tensor: torch.Tensor) -> torch.Tensor:
            staged.append(number)
            return torch.tensor(tensor.tolist())

        values = {"a": torch.arange(3), "b": torch.arange(2), "c": torch.ones(2)}
        values = {key: v if key == "b" else v.as_subclass(OnDevice) for key, v in values.items()}
        state = State([("state[0]", values)], stage)
        first = b"".join(ctypes.string_at(*part) for part in state.save())
        state.save()
        self.assertEqual(staged, [0, 1, 0, 1])
        back = {"a": None, "b": None, "c": None}
        State([("state[0]", back)]).load(first)
        self.assertEqual([v.tolist() for v in back.values()], [[0, 1, 2], [0, 1], [1, 1]])


class FilesOfAModel(unittest.TestCase):
    def test_config(self) -> None:
        class Config:
            def to_json_string(self, use_diff: bool = True) -> str:
                return json.dumps({"model_type": "tied"})

        module = Tied()
        module.config = Config()
        files = TorchModel(module).files
        self.assertEqual(json.loads(files["config.json"]), {"model_type": "tied", "architectures": ["Tied"]})

    def test_given_files(self) -> None:
        class Tokenizer:
            def save_pretrained(self, folder: str) -> None:
                (Path(folder) / "tokenizer.json").write_text("{}")

        with tempfile.TemporaryDirectory() as folder:
            for name in ("config.json", "merges.txt", "model.safetensors", "model.safetensors.index.json"):
                (Path(folder) / name).write_text(name)
            self.assertEqual(given_files(folder), {"config.json": b"config.json", "merges.txt": b"merges.txt"})
            both = given_files([Tokenizer(), {"a.json": "1"}])
            self.assertEqual(both, {"tokenizer.json": b"{}", "a.json": b"1"})
        self.assertFalse(os.path.exists(folder))


class Tokens(unittest.TestCase):
    def test_counts(self) -> None:
        x = torch.zeros(2, 5, dtype=torch.int64)
        masked = torch.tensor([[1, -100, 3], [-100, -100, 4]])
        for batch, tokens in (
            ({"input_ids": x, "labels": masked}, 3),
            ({"attention_mask": x, "input_ids": x}, 10),
            ((x, masked), 3),
            ((torch.rand(2, 9), torch.tensor([1, 2])), 2),
            (torch.rand(2, 9), 2),
            ([x], 10),
            ({"pixels": torch.rand(2, 9), "name": ["a", "b"]}, 2),
        ):
            self.assertEqual(count_tokens(batch, 2), tokens)

    def test_losses(self) -> None:
        """The loss of a step is the mean over the tokens of its batches."""
        notes = StepNotes()
        notes.losses = [(torch.tensor(2.0), 30), (torch.tensor(4.0), 10)]
        notes.tokens = 40
        notes.send()
        self.assertEqual(notes.read(), (40, 2.5))
        notes.losses = [(torch.tensor(float("inf")), 30)]
        self.assertTrue(np.isnan(notes.read()[1]))

    def test_random_augmentation(self) -> None:
        """A data set whose samples change has a hash of its length; others have one of their content."""

        class Augmented:
            def __init__(self, noise: float) -> None:
                self.noise = noise

            def __len__(self) -> int:
                return 10

            def __getitem__(self, i: int):
                return torch.full((3,), float(i)) + self.noise * torch.rand(3), i

        torch.manual_seed(1)
        before = torch.get_rng_state()
        random_a, fixed = describe(Augmented(1)), describe(Augmented(0))
        self.assertTrue(torch.equal(torch.get_rng_state(), before))
        torch.manual_seed(2)
        self.assertEqual(describe(Augmented(1)), random_a)
        self.assertEqual(describe(Augmented(0)), fixed)
        self.assertNotEqual(random_a.hash, fixed.hash)
        self.assertNotEqual(describe(list(range(10))).hash, describe(list(range(11))).hash)


if __name__ == "__main__":
    unittest.main()
