"""Each method of PEFT: the adapter in the run's checkpoint loads with equal logits, or the join refuses it by name."""

from __future__ import annotations

import unittest
import warnings
from typing import Any
from unittest import mock

import torch
import transformers

import atoll
from rig import RunTest

try:
    import peft
    from peft.mapping import PEFT_TYPE_TO_CONFIG_MAPPING as CONFIGS
except ImportError as missing:
    raise unittest.SkipTest(f"no {missing.name}") from None

warnings.simplefilter("ignore")
LINEAR = {"target_modules": ["q_proj", "v_proj"]}
PROMPT = {"num_virtual_tokens": 4}
OPTIONS: dict[str, dict[str, Any]] = {  # methods that are not here get LINEAR
    "LORA": {**LINEAR, "r": 4},
    "ADALORA": {**LINEAR, "total_step": 100},
    "ADAPTION_PROMPT": {"adapter_len": 4, "adapter_layers": 2},
    "BEFT": {"target_modules": ["v_proj"]},
    "BOFT": {**LINEAR, "boft_block_size": 4},
    "C3A": {**LINEAR, "block_size": 8},
    "CARTRIDGE": PROMPT,
    "CPT": {"cpt_token_ids": [1, 2, 3], "cpt_mask": [1, 1, 1], "cpt_tokens_type_mask": [1, 2, 3]},
    "FOURIERFT": {**LINEAR, "n_frequency": 20},
    "GRALORA": {**LINEAR, "r": 4, "gralora_k": 2},
    "IA3": {"target_modules": ["q_proj", "down_proj"], "feedforward_modules": ["down_proj"]},
    "LN_TUNING": {"target_modules": ["input_layernorm"]},
    "MISS": {**LINEAR, "r": 4},
    "MULTITASK_PROMPT_TUNING": {**PROMPT, "num_tasks": 2},
    "OFT": {**LINEAR, "oft_block_size": 4},
    "POLY": {**LINEAR, "r": 2, "n_tasks": 2},
    "PREFIX_TUNING": PROMPT,
    "PROMPT_TUNING": PROMPT,
    "P_TUNING": PROMPT,
    "ROAD": {**LINEAR, "group_size": 16},
    "SHADOW": {},
    "SHIRA": {**LINEAR, "r": 4},
    "TRAINABLE_TOKENS": {"target_modules": ["embed_tokens"], "token_indices": [1, 2]},
    "VBLORA": {**LINEAR, "vector_length": 8, "num_vectors": 16},
    "WAVEFT": {**LINEAR, "n_frequency": 20},
}
# Their files hold values that PEFT computes when it writes them, or do not hold what trains.
REFUSED = ("CARTRIDGE", "CPT", "P_TUNING", "SHIRA", "XLORA")
TASKS = ("MULTITASK_PROMPT_TUNING", "POLY")  # the calls need task_ids
IDS = torch.arange(24).reshape(2, 12)


def base() -> Any:
    torch.manual_seed(1)
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = transformers.LlamaConfig(vocab_size=64, use_cache=False, bos_token_id=0, eos_token_id=0, **sizes)
    return transformers.LlamaForCausalLM(config)


def config_of(method: str, **changed: Any) -> Any:
    config = next(c for kind, c in CONFIGS.items() if kind.value == method)
    return config(task_type="CAUSAL_LM", **{**OPTIONS.get(method, LINEAR), **changed})


class Methods(RunTest):
    def setUp(self) -> None:
        super().setUp()
        transformers.logging.set_verbosity_error()
        torch.set_num_threads(1)

    def train(self, model: Any, **inputs: Any) -> torch.Tensor:
        """A run of one worker; returns the logits of its model."""
        coordinator = self.start_coordinator(train={"max_steps": 2, "sync_every": 1, "batch_size": 2})
        with torch.no_grad():  # adapters often begin at zero, which any other adapter would equal
            for p in model.parameters():
                if p.requires_grad:
                    p.add_(torch.randn_like(p) * 0.05)
        optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.05)
        options = {"join": self.run_dir, "dir": self.folder / "w", "max_wait": 60}
        with atoll.Worker(model, optimizer, **options) as worker:  # type: ignore[arg-type]
            while not worker.done:
                model(input_ids=IDS, labels=IDS, **inputs).loss.backward()
                optimizer.step()
                optimizer.zero_grad()
        self.finish(coordinator)
        return self.logits(model, **inputs)

    def logits(self, model: Any, **inputs: Any) -> torch.Tensor:
        model.eval()
        with torch.no_grad():
            return model(input_ids=IDS, **inputs).logits

    def check(self, model: Any, method: str, **inputs: Any) -> None:
        """Trains the model, and compares it with the adapter of the checkpoint on a new base."""
        trained = self.train(model, **inputs)
        torch.manual_seed(99)  # what PEFT draws when it loads must not matter
        loaded = self.logits(peft.PeftModel.from_pretrained(base(), self.checkpoint()), **inputs)
        self.assertTrue(torch.equal(loaded, trained), f"{method}: {(loaded - trained).abs().max()}")
        plain = self.logits(base())
        self.assertGreater((trained[:, -12:] - plain).abs().max().item(), 1e-4, f"{method} changes nothing")

    def checkpoint(self) -> str:
        return str((self.run_dir / "checkpoints" / "latest").resolve())

    def check_method(self, method: str) -> None:
        if method == "XLORA":
            first = peft.get_peft_model(base(), config_of("LORA"))
            first.save_pretrained(self.folder / "lora")
            OPTIONS["XLORA"] = {"hidden_size": 32, "adapters": {"0": str(self.folder / "lora")}}
        try:
            model = peft.get_peft_model(base(), config_of(method))
        except (ValueError, TypeError, ImportError) as e:
            if method in OPTIONS or method in REFUSED:
                raise
            self.skipTest(f"PEFT does not build {method}: {e}")
        inputs = {"task_ids": torch.tensor([0, 1])} if method in TASKS else {}
        if method in REFUSED:
            with self.assertRaisesRegex(atoll.InvalidError, f"PEFT method {method}\\b"):
                atoll.Worker(model, join=self.run_dir, dir=self.folder / "w")
        else:
            self.check(model, method, **inputs)

    # --- options ----------------------------------------------------------------------------------------------------

    def test_options_of_lora(self) -> None:
        options: dict[str, dict[str, Any]] = {
            "modules_to_save": {"modules_to_save": ["lm_head"]},
            "trainable_token_indices": {"trainable_token_indices": {"embed_tokens": [1, 2]}},
            "rslora": {"use_rslora": True},
            "dora": {"use_dora": True},
            "bias": {"bias": "all", "target_modules": ["q_proj"]},
            "pissa": {"init_lora_weights": "pissa"},
            "olora": {"init_lora_weights": "olora"},
            "embedding": {"target_modules": ["embed_tokens", "q_proj"]},
            "ranks": {"rank_pattern": {"v_proj": 2}, "alpha_pattern": {"v_proj": 3}},
            "all-linear": {"target_modules": "all-linear"},
        }
        for number, (name, changed) in enumerate(options.items()):
            with self.subTest(name):
                self.folder = self.folder.parent / self.folder.name / str(number)
                self.folder.mkdir()
                self.run_dir = self.folder / "run"
                self.check(peft.get_peft_model(base(), config_of("LORA", **changed)), name)

    def test_the_active_one_of_two(self) -> None:
        model = peft.get_peft_model(base(), config_of("LORA"))
        model.add_adapter("second", config_of("LORA", r=2))
        model.set_adapter("second")
        self.check(model, "second")
        file = peft.PeftConfig.from_pretrained(self.checkpoint())
        self.assertEqual(file.r, 2)

    def test_adapter_of_transformers(self) -> None:
        """model.add_adapter of transformers: its checkpoint loads with model.load_adapter and as a PeftModel."""
        # transformers asks for a release of PEFT that may not be installed; what is used here is older.
        patch = mock.patch("transformers.integrations.peft.check_peft_version")
        patch.start()
        self.addCleanup(patch.stop)
        model = base()
        model.add_adapter(config_of("LORA"))
        trained = self.train(model)
        native = base()
        native.load_adapter(self.checkpoint())
        self.assertTrue(torch.equal(self.logits(native), trained))
        self.assertTrue(torch.equal(self.logits(peft.PeftModel.from_pretrained(base(), self.checkpoint())), trained))


def _add(method: str) -> None:
    setattr(Methods, f"test_{method.lower()}", lambda self: self.check_method(method))


for _kind in CONFIGS:
    _add(str(_kind.value))

if __name__ == "__main__":
    unittest.main()
