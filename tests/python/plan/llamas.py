"""The three models of the tests of `atoll plan --gpus`: their tensors by the names of Hugging Face."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

FP32, BF16 = 4, 2
VOCABULARY, HEADS_KV, GPUS, LORA_RANK, BATCH, LENGTH = 128256, 8, 8, 16, 16, 2048


@dataclass
class Llama:
    preset: str
    layers: int
    width: int
    heads: int
    mlp: int
    tied: bool
    published: float  # parameters, in billions

    def matrices(self) -> dict[str, tuple[int, int]]:
        """The matrices of one layer, rows and columns."""
        keys = self.width // self.heads * HEADS_KV
        return {"q_proj": (self.width, self.width), "k_proj": (keys, self.width), "v_proj": (keys, self.width),
                "o_proj": (self.width, self.width), "gate_proj": (self.mlp, self.width),
                "up_proj": (self.mlp, self.width), "down_proj": (self.width, self.mlp)}

    def layer(self) -> int:
        return sum(rows * columns for rows, columns in self.matrices().values()) + 2 * self.width

    def root(self) -> int:
        return VOCABULARY * self.width * (1 if self.tied else 2) + self.width

    def parameters(self) -> int:
        return self.layers * self.layer() + self.root()

    def adapters(self) -> int:
        return self.layers * sum(LORA_RANK * (rows + columns) for rows, columns in self.matrices().values())

    def kept_by_layer(self) -> int:
        """Bytes for each token that the backward pass of a layer needs, in bf16."""
        keys = self.width // self.heads * HEADS_KV
        norm = [(self.width, FP32), (self.width, BF16), (self.width, BF16)]  # its input, without and with the weight
        attention = [(self.width, BF16), (keys, BF16), (keys, BF16), (self.width, BF16)]  # q, k, v, the result
        mlp = [(self.mlp, BF16)] * 4  # gate, its activation, up, their product
        return sum(count * size for count, size in norm + attention + norm + mlp)

    def config(self) -> dict:
        """A config.json."""
        return {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "num_hidden_layers": self.layers,
                "hidden_size": self.width, "num_attention_heads": self.heads, "num_key_value_heads": HEADS_KV,
                "intermediate_size": self.mlp, "vocab_size": VOCABULARY, "max_position_embeddings": 131072,
                "rms_norm_eps": 1e-5, "rope_theta": 500000.0, "tie_word_embeddings": self.tied}


MODELS = [Llama("llama-1b", 16, 2048, 32, 8192, True, 1.2358),
          Llama("llama-3b", 28, 3072, 24, 8192, True, 3.2127),
          Llama("llama-8b", 32, 4096, 32, 14336, False, 8.0303)]


def plan(*options: str) -> dict:
    """The plan of boxes of 8 GPUs: bf16, 2 sequences of 2048 tokens on each at once."""
    command = [str(Path(os.environ["ATOLL_BIN"]) / "atoll"), "plan", "--gpus", str(GPUS), "--link", "1gbit,rtt=30ms",
               "--json", "--only", "--train.precision=bf16", f"--train.batch_size={BATCH}",
               f"--model.block_size={LENGTH}", *options]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
