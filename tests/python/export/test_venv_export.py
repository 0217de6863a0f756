"""atoll export --dtype bf16, in shards: transformers loads the folder."""

from __future__ import annotations

import os
import subprocess
import tempfile
import unittest
from pathlib import Path

try:
    import torch
    from transformers import AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM
except ImportError as missing:
    raise unittest.SkipTest(f"no {missing.name}") from None

torch.set_num_threads(1)
BIN = Path(os.environ.get("ATOLL_BIN", "build/bin")).resolve()
LLAMA = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 64,
    "max_position_embeddings": 16,
}


class ExportTest(unittest.TestCase):
    def test_transformers_loads_bf16_shards(self) -> None:
        models = {
            "gpt2": GPT2LMHeadModel(GPT2Config(n_layer=2, n_head=2, n_embd=32, n_positions=16, vocab_size=64)),
            "tied": LlamaForCausalLM(LlamaConfig(tie_word_embeddings=True, **LLAMA)),
            "untied": LlamaForCausalLM(LlamaConfig(tie_word_embeddings=False, **LLAMA)),
        }
        with tempfile.TemporaryDirectory() as folder:
            for name, model in models.items():
                given, out = Path(folder) / name, Path(folder) / f"{name}-out"
                model.eval().save_pretrained(given)
                command = [BIN / "atoll", "export", given, out, "--dtype", "bf16", "--max-shard-size", "8KB"]
                subprocess.run(command, check=True, capture_output=True)
                self.assertGreater(len(list(out.glob("model-*-of-*.safetensors"))), 2)
                loaded, notes = AutoModelForCausalLM.from_pretrained(out, output_loading_info=True, dtype="auto")
                self.assertFalse(notes["missing_keys"] or notes["mismatched_keys"], (name, notes))
                self.assertEqual(loaded.dtype, torch.bfloat16)
                want = model.to(torch.bfloat16).state_dict()
                for key, value in loaded.state_dict().items():
                    self.assertTrue(torch.equal(value, want[key]), (name, key))
