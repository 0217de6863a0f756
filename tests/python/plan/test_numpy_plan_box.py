"""`atoll plan --gpus` against arithmetic that is written here: tensors by name, and what PyTorch keeps of a step."""

from __future__ import annotations

import json
import tempfile
import unittest
from pathlib import Path

from llamas import BATCH, BF16, FP32, GPUS, LENGTH, MODELS, VOCABULARY, Llama, plan

GIB = 1 << 30


def shard(count: int) -> int:
    return -(-count // GPUS)


class PlanBoxTest(unittest.TestCase):
    def expected(self, m: Llama, recompute: bool) -> dict[str, dict[str, int]]:
        tokens = BATCH // GPUS * LENGTH
        p, a = m.parameters(), m.adapters()
        last_norm = m.width * (FP32 + 2 * BF16)
        kept = m.layers * m.kept_by_layer()
        if recompute:
            kept = m.layers * m.width * BF16 + m.kept_by_layer()
        step = {"activations": tokens * (kept + last_norm), "reserve": 2 * GIB,
                "logits": tokens * VOCABULARY * (BF16 + 3 * FP32)}
        gathered = BF16 * (m.root() + 2 * m.layer())
        gradients = BF16 * (m.root() + m.layer()) + FP32 * max(m.root(), m.layer())
        ways = {
            "DDP": {"parameters": 4 * p, "gradients": 4 * p + 4 * p, "moments": 8 * p, "in_use": 2 * p},
            "FSDP2": {"parameters": 4 * shard(p), "gradients": 4 * shard(p), "moments": 8 * shard(p),
                      "in_use": gathered + gradients},
            "LoRA": {"parameters": 2 * p + 4 * a, "gradients": 8 * a, "moments": 8 * a, "in_use": 2 * a},
            "LoRA on FSDP2": {"parameters": 2 * shard(p) + 4 * shard(a), "gradients": 4 * shard(a),
                              "moments": 8 * shard(a), "in_use": gathered},
        }
        return {way: {**parts, **step, "total": sum(parts.values()) + sum(step.values())}
                for way, parts in ways.items()}

    def check_gpu(self, m: Llama, box: dict, gib: int) -> dict[str, str]:
        """Activations are checkpointed where they do not fit otherwise. Returns the ways that fit, and how."""
        fits = {}
        self.assertEqual([way["way"] for way in box["ways"]], list(self.expected(m, False)))
        for way in box["ways"]:
            name = way["way"]
            recompute = self.expected(m, False)[name]["total"] > gib * GIB
            expected = self.expected(m, recompute)[name]
            self.assertEqual({key: way[key] for key in expected}, expected, f"{m.preset}, {name}")
            self.assertEqual(way["activation_checkpointing"], recompute)
            self.assertEqual(way["fits"], expected["total"] <= gib * GIB)
            if way["fits"]:
                fits[name] = "checkpointed" if recompute else "kept"
        return fits

    def check_host(self, m: Llama, box: dict) -> None:
        p, host = m.parameters(), box["host"]
        encoded = p * (1 + 4 / 256)  # int8:256: a byte each, and an fp32 scale for 256 of them
        self.assertEqual([host["theta"], host["change"]], [4 * p, 4 * p])
        self.assertAlmostEqual(host["messages"] / (2 * encoded), 1, delta=0.01)
        self.assertLess(host["total"], 10.1 * p + GIB)
        self.assertEqual(host["total"], sum(host[key] for key in ("theta", "change", "messages", "arriving")))
        self.assertAlmostEqual(box["saved"] / (4 * p + 4 * p + 8 * p + encoded), 1, delta=0.001)  # residual; moments
        self.assertEqual(host["copy"], 0)
        exchange = box["exchange"]
        self.check_coordinator(m, exchange["coordinator"], 4 + 2 + 2)  # theta; momentum and residual in bf16
        self.assertEqual(exchange["params"], p)
        for way in ("bytes_up", "bytes_down"):
            self.assertAlmostEqual(exchange[way] / encoded, 1, delta=0.002)
        for way in ("up_s", "down_s"):
            self.assertAlmostEqual(exchange[way] / (encoded / 125e6), 1, delta=0.002)  # 1 Gbit/s
        self.assertGreater(exchange["link_s"], exchange["up_s"])  # up and down overlap, fragment by fragment
        self.assertGreater(exchange["box_s"], 0)

    def check_coordinator(self, m: Llama, found: int, state: int) -> None:
        """One fragment is merged at a time; it is at least one tensor. Deltas that arrive have a limit of their own."""
        largest = VOCABULARY * m.width
        merge = largest * FP32 + largest * (1 + 4 / 256)  # the sum, and the encoded update
        self.assertGreater(found, state * m.parameters() + merge)
        self.assertLess(found, state * m.parameters() + merge + GIB)

    def check_lora(self, m: Llama, box: dict) -> None:
        lora, whole = box["lora"], box["exchange"]
        self.assertEqual(lora["params"], m.adapters())
        self.assertAlmostEqual(lora["bytes_up"] / (m.adapters() * (1 + 4 / 256)), 1, delta=0.01)
        self.assertLess(lora["link_s"], whole["link_s"] / 2)  # an fsync may take long here
        self.assertLess(lora["coordinator"], whole["coordinator"] / 5)

    def test_three_models(self) -> None:
        lora = {"LoRA": "kept", "LoRA on FSDP2": "kept"}
        fits = {"llama-1b": {"DDP": "kept", "FSDP2": "kept", **lora},
                "llama-3b": {"DDP": "checkpointed", "FSDP2": "kept", **lora},
                "llama-8b": {"FSDP2": "kept", **lora}}
        for m in MODELS:
            with self.subTest(m.preset):
                self.assertAlmostEqual(m.parameters() / 1e9, m.published, places=4)
                box = plan("--model.preset=" + m.preset, "--gpu-memory", "80")["box"]
                self.assertEqual(self.check_gpu(m, box, 80), fits[m.preset])
                self.check_host(m, box)
                self.check_lora(m, box)

    def test_outer_sgd(self) -> None:
        m = MODELS[0]
        box = plan("--model.preset=" + m.preset, "--gpu-memory", "80", "--outer.optimizer=sgd")["box"]
        self.check_coordinator(m, box["exchange"]["coordinator"], 4 + 2)

    def test_saved_beside_training(self) -> None:
        """checkpoint.worker_every 1: the last byte of a delta waits for the save. auto: a copy is saved."""
        m = MODELS[0]
        found = {every: plan("--model.preset=" + m.preset, "--gpu-memory", "80", "--checkpoint.worker_every=" + every)
                 for every in ("1", "auto")}
        waits, copies = found["1"]["box"], found["auto"]["box"]
        self.assertGreaterEqual(waits["exchange"]["link_s"], 0.99 * found["1"]["plan"]["save_s"])
        self.assertEqual([waits["host"]["copy"], copies["host"]["copy"]], [0, copies["saved"]])

    def test_folder_without_weights(self) -> None:
        """A Hugging Face config.json is enough."""
        m = MODELS[0]
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "config.json").write_text(json.dumps(m.config()), encoding="utf-8")
            box = plan("--model.init_from=" + folder, "--gpu-memory", "16")["box"]
        self.assertEqual(set(self.check_gpu(m, box, 16).values()), {"checkpointed"})


if __name__ == "__main__":
    unittest.main()
