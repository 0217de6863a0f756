"""atoll export: bf16, shards, memory, and what stays after a failure."""

from __future__ import annotations

import json
import os
import resource
import struct
import subprocess
import tempfile
import unittest
from pathlib import Path
from typing import Any

import numpy as np

BIN = Path(os.environ.get("ATOLL_BIN", "build/bin")).resolve()
VOCAB, WIDTH, CONTEXT, LAYERS = 256, 64, 32, 2
MIB = 1 << 20


def shapes(width: int = WIDTH, vocab: int = VOCAB) -> dict[str, tuple[int, ...]]:
    """Tensors of a GPT-2."""
    out: dict[str, tuple[int, ...]] = {"wte.weight": (vocab, width), "wpe.weight": (CONTEXT, width)}
    for i in range(LAYERS):
        for name, shape in {
            "ln_1": (width,),
            "ln_2": (width,),
            "attn.c_attn": (width, 3 * width),
            "attn.c_proj": (width, width),
            "mlp.c_fc": (width, 4 * width),
            "mlp.c_proj": (4 * width, width),
        }.items():
            out[f"h.{i}.{name}.weight"] = shape
            out[f"h.{i}.{name}.bias"] = shape[-1:]
    return out | {"ln_f.weight": (width,), "ln_f.bias": (width,)}


def write_safetensors(path: Path, tensors: dict[str, np.ndarray]) -> None:
    head: dict[str, Any] = {}
    at = 0
    for name, x in tensors.items():
        head[name] = {"dtype": "F32", "shape": list(x.shape), "data_offsets": [at, at + x.nbytes]}
        at += x.nbytes
    text = json.dumps(head).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(x.tobytes() for x in tensors.values()))


def read_safetensors(path: Path) -> dict[str, tuple[str, np.ndarray]]:
    data = path.read_bytes()
    size = struct.unpack_from("<Q", data)[0]
    out = {}
    for name, t in json.loads(data[8 : 8 + size]).items():
        if name == "__metadata__":
            continue
        begin, end = (8 + size + at for at in t["data_offsets"])
        kind = {"F32": "<f4", "BF16": "<u2"}[t["dtype"]]
        out[name] = (t["dtype"], np.frombuffer(data[begin:end], kind).reshape(t["shape"]))
    return out


def nearest_even(x: np.ndarray) -> np.ndarray:
    """bf16 of fp32: the nearer neighbour, of two equally near ones the one whose last bit is 0."""
    bits = np.ascontiguousarray(x).view("<u4").astype(np.uint64)
    low, rest = bits >> 16, bits & 0xFFFF
    up = (rest > 0x8000) | ((rest == 0x8000) & (low & 1 == 1))
    return (low + up).astype("<u2")


class ExportTest(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.dir = Path(folder.name)

    def model(self, width: int = WIDTH, vocab: int = VOCAB, **config: Any) -> dict[str, np.ndarray]:
        rng = np.random.default_rng(1)
        folder = self.dir / "model"
        folder.mkdir()
        tensors = {n: rng.standard_normal(s, dtype=np.float32) for n, s in shapes(width, vocab).items()}
        # Ties of both parities, the largest value, a subnormal and -0.
        ties = np.array([0x3F808000, 0x3F818000, 0x3F808001, 0x7F7FFFFF, 1, 0x80000000], "<u4").view("<f4")
        tensors["wte.weight"].reshape(-1)[: ties.size] = ties
        write_safetensors(folder / "model.safetensors", tensors)
        about = {"model_type": "gpt2", "n_layer": LAYERS, "n_head": 2, "n_embd": width, "n_positions": CONTEXT}
        (folder / "config.json").write_text(json.dumps(about | {"vocab_size": vocab} | config))
        (folder / "tokenizer_config.json").write_text("{}")
        return tensors

    def export(self, *options: str, out: str = "out", most: int | None = None) -> subprocess.CompletedProcess[str]:
        """most: bytes of private memory that the program may have."""

        def limit() -> None:
            if most:
                resource.setrlimit(resource.RLIMIT_DATA, (most, most))

        return subprocess.run(
            [BIN / "atoll", "export", "model", out, *options],
            cwd=self.dir,
            capture_output=True,
            text=True,
            preexec_fn=limit,
        )

    def test_bf16_rounds_to_nearest_even(self) -> None:
        tensors = self.model(torch_dtype="float32")
        done = self.export("--dtype", "bf16")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("as bf16", done.stdout)
        got = read_safetensors(self.dir / "out/model.safetensors")
        self.assertEqual(set(got), set(tensors))
        for name, x in tensors.items():
            want = nearest_even(x)
            if name == "wte.weight":  # 0x7f7fffff would be infinity
                want.reshape(-1)[3] = 0x7F7F
            self.assertEqual(got[name][0], "BF16")
            np.testing.assert_array_equal(got[name][1], want, name)
        self.assertEqual(json.loads((self.dir / "out/config.json").read_text())["torch_dtype"], "bfloat16")
        self.assertTrue((self.dir / "out/tokenizer_config.json").exists())

    def test_config_without_a_dtype_gets_one(self) -> None:
        self.model()
        self.assertEqual(self.export("--dtype=bf16").returncode, 0)
        self.assertEqual(json.loads((self.dir / "out/config.json").read_text())["torch_dtype"], "bfloat16")

    def test_shards_have_an_index(self) -> None:
        tensors = self.model()
        whole = sum(x.nbytes for x in tensors.values())
        for dtype, size in ("fp32", 4), ("bf16", 2):
            out = f"out-{dtype}"
            done = self.export("--max-shard-size", "100KB", "--dtype", dtype, out=out)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertFalse((self.dir / out / "model.safetensors").exists())
            index = json.loads((self.dir / out / "model.safetensors.index.json").read_text())
            self.assertEqual(index["metadata"]["total_size"], whole * size // 4)
            self.assertEqual(set(index["weight_map"]), set(tensors))
            files = sorted(set(index["weight_map"].values()))
            n = len(files)
            self.assertGreater(n, 2)
            self.assertEqual(files, [f"model-{i + 1:05}-of-{n:05}.safetensors" for i in range(n)])
            self.assertEqual(files, sorted(p.name for p in (self.dir / out).glob("*.safetensors")))
            for file in files:
                held = read_safetensors(self.dir / out / file)
                self.assertEqual({name for name, at in index["weight_map"].items() if at == file}, set(held))
                self.assertTrue(len(held) == 1 or sum(x.nbytes for _, x in held.values()) <= 100_000)
                for name, (kind, x) in held.items():
                    self.assertEqual(kind, "F32" if dtype == "fp32" else "BF16")
                    want = tensors[name].view("<u4") if dtype == "fp32" else nearest_even(tensors[name])
                    if name != "wte.weight":
                        np.testing.assert_array_equal(x.view("<u4" if dtype == "fp32" else "<u2"), want, name)

    def test_shards_become_one_file_again(self) -> None:
        self.model()
        self.assertEqual(self.export("--max-shard-size=64KiB", out="parts").returncode, 0)
        for name, given in ("whole", "model"), ("again", "parts"):
            done = subprocess.run([BIN / "atoll", "export", given, name], cwd=self.dir, capture_output=True, text=True)
            self.assertEqual(done.returncode, 0, done.stderr)
        whole, again = (self.dir / name / "model.safetensors" for name in ("whole", "again"))
        self.assertEqual(whole.read_bytes(), again.read_bytes())

    def test_memory_does_not_grow_with_the_model(self) -> None:
        self.model(width=512, vocab=8192)
        size = (self.dir / "model/model.safetensors").stat().st_size
        self.assertGreater(size, 38 * MIB)
        done = self.export("--dtype", "bf16", most=16 * MIB)
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_a_failure_leaves_nothing(self) -> None:
        tensors = self.model()
        tensors["ln_f.bias"][3] = np.nan
        write_safetensors(self.dir / "model/model.safetensors", tensors)
        done = self.export("--max-shard-size", "100KB", out="deep/out")
        self.assertEqual(done.returncode, 1)
        self.assertRegex(done.stderr, r"^atoll: .*'ln_f.bias' holds NaN or infinity\n$")
        self.assertEqual(os.listdir(self.dir), ["model"])

    def test_wrong_options_are_one_line(self) -> None:
        self.model()
        for options, text in (
            (["--dtype", "fp16"], "--dtype is 'fp16': give fp32 or bf16"),
            (["--max-shard-size", "5"], "--max-shard-size is '5': give a size such as 5GB, 500MB or 2GiB"),
            (["--max-shard-size", "0GB"], "--max-shard-size is '0GB': give a size such as 5GB, 500MB or 2GiB"),
            (["--max-shard-size", "1XB"], "--max-shard-size is '1XB': give a size such as 5GB, 500MB or 2GiB"),
        ):
            done = self.export(*options)
            self.assertEqual((done.returncode, done.stderr), (2, f"atoll: {text}\n"))
        self.assertFalse((self.dir / "out").exists())
