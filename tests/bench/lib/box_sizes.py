"""The models of `./run bench box`: shapes of the matrices of GPT-2 124M and of a Llama of 1.1B parameters."""

from __future__ import annotations

from typing import NamedTuple


class Size(NamedTuple):
    dtype: str
    outer: list[tuple[int, ...]]  # outside of the blocks
    block: list[tuple[int, ...]]  # of each block
    blocks: int
    need_gib: float  # of all processes together
    preset: str  # of nearly the same size


SIZES = {
    "small": Size("float32", [(256, 64)], [(64, 192), (64, 64), (65,)], 2, 0, "gpt2"),
    "124m": Size("float32", [(50257, 768), (1024, 768)], [(768, 2304), (768, 768), (768, 3072), (3072, 768)], 12, 4, "gpt2"),
    "1.1b": Size("bfloat16", [(32000, 2048), (32000, 2048)],
                 [(2048, 2048), (256, 2048), (256, 2048), (2048, 2048), (5632, 2048), (5632, 2048), (2048, 5632)],
                 22, 18, "llama-1b"),
}
