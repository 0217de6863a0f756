"""`atoll plan --gpus` against FSDPMemTracker, PyTorch's own count of a step of the real model with `fully_shard`.

Tensors and ranks are fake: neither memory nor a GPU is needed. On a GPU the allocator, CUDA and NCCL come on top.
"""

from __future__ import annotations

import unittest

import torch
import torch.distributed as dist
from llamas import BATCH, GPUS, HEADS_KV, LENGTH, MODELS, VOCABULARY, Llama, plan
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from transformers import LlamaConfig, LlamaForCausalLM

try:  # not a public interface of PyTorch
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.distributed._tools.fsdp2_mem_tracker import FSDPMemTracker
    from torch.testing._internal.distributed.fake_pg import FakeStore
except ImportError as missing:
    raise unittest.SkipTest(f"this PyTorch has no {missing.name}") from missing


def tracked(m: Llama, mesh: dist.DeviceMesh) -> int:
    """Peak bytes of one rank in the second step."""
    config = LlamaConfig(num_hidden_layers=m.layers, hidden_size=m.width, num_attention_heads=m.heads,
                         num_key_value_heads=HEADS_KV, intermediate_size=m.mlp, vocab_size=VOCABULARY,
                         tie_word_embeddings=m.tied, use_cache=False, attn_implementation="sdpa")
    with FakeTensorMode(allow_non_fake_inputs=True):
        model = LlamaForCausalLM(config)
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        for layer in model.model.layers:
            fully_shard(layer, mesh=mesh, mp_policy=policy)
        fully_shard(model, mesh=mesh, mp_policy=policy)
        optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
        tokens = torch.zeros(BATCH // GPUS, LENGTH, dtype=torch.long)
        tracker = FSDPMemTracker(model, optimizer)
        tracker.track_inputs((tokens,))
        with tracker:
            for _ in range(2):
                model(input_ids=tokens, labels=tokens).loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                tracker.reset_mod_stats()
    peak = tracker.get_tracker_snapshot("peak")
    return peak[torch.device("cpu")]["Total"]


class PlanMemoryTest(unittest.TestCase):
    def test_fsdp2(self) -> None:
        """The plan is no less, and not a third more: it counts gathered weights and logits at the same time."""
        dist.init_process_group("fake", rank=0, world_size=GPUS, store=FakeStore())
        mesh = dist.init_device_mesh("cpu", (GPUS,))
        for m in (MODELS[0], MODELS[2]):
            box = plan("--model.preset=" + m.preset, "--gpu-memory", "80", "--train.recompute=none")["box"]
            way = next(way for way in box["ways"] if way["way"] == "FSDP2")
            planned, peak = way["total"] - way["reserve"], tracked(m, mesh)
            print(f"{m.preset}: planned {planned / 2**30:.1f} GiB, tracked {peak / 2**30:.1f} GiB")
            self.assertGreaterEqual(planned, peak)
            self.assertLess(planned, peak * 4 / 3)
        dist.destroy_process_group()


if __name__ == "__main__":
    unittest.main()
