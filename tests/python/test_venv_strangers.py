"""Folders of strangers: no code in them runs and nobody is asked to allow it; what they write is shown, not obeyed."""

from __future__ import annotations

import contextlib
import io
import json
import os
import pickle
import subprocess
import sys
import unittest
from pathlib import Path
from typing import Any
from unittest import mock

try:
    import torch
    import transformers
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
except ImportError as missing:
    raise unittest.SkipTest(f"no {missing.name}") from None

from folder import FolderTest

from atoll import command, generate
from atoll.data import chat, cmd as prepare, pretrained, text_tokenizer

torch.set_num_threads(1)
PACKAGE = Path(__file__).resolve().parents[2] / "python"
END = "<|endoftext|>"
TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }}{{ eos_token }}{% endfor %}" \
    "{% if add_generation_prompt %}assistant: {% endif %}"


def neo(folder: Path, **config: Any) -> None:
    """A model of a family that runs in transformers."""
    sizes = {"vocab_size": 257, "hidden_size": 8, "num_layers": 1, "num_heads": 2, "max_position_embeddings": 32}
    torch.manual_seed(1)
    made = transformers.GPTNeoConfig(**sizes, attention_types=[[["global"], 1]], bos_token_id=0, eos_token_id=0)
    transformers.GPTNeoForCausalLM(made).save_pretrained(str(folder))
    edit(folder / "config.json", **config)


def edit(path: Path, **values: Any) -> None:
    path.write_text(json.dumps({**(json.loads(path.read_text()) if path.exists() else {}), **values}))


class Writes:
    """Its pickle writes the file when it is read."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return open, (str(self.path), "w")


class StrangersTest(FolderTest):
    def setUp(self) -> None:
        super().setUp()
        self.marker = self.dir / "marker"
        self.model, self.tok = self.dir / "model", self.dir / "tok"
        self.tok.mkdir()
        self.code = f"open({str(self.marker)!r}, 'w').close()\n"
        own = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))},
                                   merges=[]))
        own.pre_tokenizer, own.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
        own.add_special_tokens([END])
        own.save(str(self.dir / "tokenizer.json"))
        self.own = own

    def run_main(self, main: Any, *words: str, code: int) -> tuple[str, str]:
        """Runs a program with "y" for each question; there must be none."""
        with mock.patch("builtins.input", side_effect=AssertionError("it asks a question")):
            told = self.call(main, *words, code=code, stdin=b"y\n" * 9)
        self.assertFalse(self.marker.exists(), "code of the folder ran")
        return told

    def refuses(self, what: str, folder: Path, code: int = 1) -> None:
        words = [str(folder), "--prompt", "ab", "--tokenizer", str(self.dir / "tokenizer.json"), "--tokens", "2"]
        _, errors = self.run_main(generate.main, *words, code=code)
        self.assertRegex(errors, f"^atoll: .*{what}")
        self.assertEqual(errors.count("\n"), 1, errors)
        self.assertTrue(all(c.isprintable() or c == "\n" for c in errors), repr(errors))

    def auto_map(self) -> dict[str, str]:
        (self.model / "modeling_evil.py").write_text(
            f"{self.code}from transformers import GPTNeoConfig as C, GPTNeoForCausalLM as M\n"
        )
        return {"AutoConfig": "modeling_evil.C", "AutoModelForCausalLM": "modeling_evil.M"}

    def test_code_of_a_model(self) -> None:
        neo(self.model, model_type="evil")
        edit(self.model / "config.json", auto_map=self.auto_map())
        self.refuses(r"needs code of that folder \(auto_map in config.json\), and Atoll runs none: ", self.model)
        words = [sys.executable, "-m", "atoll.generate", str(self.model), "--prompt", "a", "--tokenizer",
                 str(self.dir / "tokenizer.json")]
        done = subprocess.run(words, input="y\n" * 9, text=True, capture_output=True, cwd=self.dir, timeout=300,
                              env={**os.environ, "PYTHONPATH": str(PACKAGE)})
        self.assertEqual((done.returncode, done.stdout), (1, ""), done.stderr)
        self.assertNotIn("custom code?", done.stderr)
        self.assertFalse(self.marker.exists(), "code of the folder ran")

    def test_code_that_is_not_needed(self) -> None:
        """transformers knows the family, so the folder's code is not used."""
        neo(self.model)
        edit(self.model / "config.json", auto_map=self.auto_map())
        out, _ = self.run_main(generate.main, str(self.model), "--prompt", "ab", "--tokenizer",
                               str(self.dir / "tokenizer.json"), "--tokens", "3", code=0)
        self.assertTrue(out.startswith("ab"))

    def test_pickles(self) -> None:
        neo(self.model)
        (self.model / "model.safetensors").unlink()
        (self.model / "pytorch_model.bin").write_bytes(pickle.dumps(Writes(self.marker)))
        self.refuses("weights only in pytorch_model.bin, which can hold code .*: convert them to ", self.model)
        (self.model / "pytorch_model.bin").unlink()
        self.refuses("it has no model", self.model)

    def test_kernels(self) -> None:
        neo(self.model, attn_implementation="evil/kernel")
        self.refuses("needs the kernel evil/kernel of the Hub, which is code", self.model)

    def test_texts_of_a_folder(self) -> None:
        """What a folder writes into messages is no control character; damaged files give one line."""
        self.model.mkdir()
        for content in ('{"model_type": "e\\u001b[2Jvil"}', "[" * 100_000, "{", '{"model_type": ["x"]}'):
            (self.model / "config.json").write_text(content)
            self.refuses("transformers cannot load", self.model)

    def test_adapters(self) -> None:
        neo(self.dir / "base")
        self.model.mkdir()
        (self.dir / "evil_module.py").write_text(self.code)
        base = {"base_model_name_or_path": str(self.dir / "base"), "peft_type": "LORA", "r": 2, "lora_alpha": 2,
                "target_modules": ["q_proj"]}
        config = self.model / "adapter_config.json"
        (self.model / "adapter_model.safetensors").write_bytes(b"")
        try:
            import peft
        except ImportError:
            self.skipTest("no peft")
        with mock.patch.object(sys, "path", [str(self.dir), *sys.path]):
            for key, value in (("auto_mapping", {"base_model_class": "C", "parent_library": "evil_module"}),
                               ("megatron_config", {"a": 1}), ("corda_config", {"cache_file": "x"}),
                               ("tokenizer_kwargs", {"trust_remote_code": True})):
                config.write_text(json.dumps({**base, "megatron_core": "evil_module", key: value}))
                self.refuses(rf"names code to import \({key} in adapter_config.json\), and Atoll ", self.model)
        config.write_text(json.dumps({**base, "task_type": "CAUSAL_LM"}))
        (self.model / "adapter_model.safetensors").unlink()
        (self.model / "adapter_model.bin").write_bytes(pickle.dumps(Writes(self.marker)))
        self.refuses("weights only in adapter_model.bin", self.model)
        (self.dir / "base" / "model.safetensors").rename(self.dir / "base" / "pytorch_model.bin")
        (self.model / "adapter_model.bin").rename(self.model / "adapter_model.safetensors")
        self.refuses("base has weights only in pytorch_model.bin", self.model)
        (self.dir / "base" / "pytorch_model.bin").rename(self.dir / "base" / "model.safetensors")
        model = transformers.AutoModelForCausalLM.from_pretrained(self.dir / "base")
        lora = peft.LoraConfig(r=2, target_modules=["q_proj"], task_type="CAUSAL_LM")
        model.name_or_path = str(self.dir / "base")
        good = peft.get_peft_model(model, lora)
        good.peft_config["default"].base_model_name_or_path = str(self.dir / "base")
        good.save_pretrained(self.dir / "good")
        self.assertTrue(pretrained.load_model(str(self.dir / "good")))

    def test_code_of_a_tokenizer(self) -> None:
        (self.tok / "tok_evil.py").write_text(self.code)
        edit(self.tok / "tokenizer_config.json", tokenizer_class="E", auto_map={"AutoTokenizer": ["tok_evil.E", None]})
        edit(self.tok / "config.json", model_type="evil", auto_map={"AutoConfig": "tok_evil.C"})
        (self.tok / "vocab.txt").write_text("a\n")
        (self.dir / "text.txt").write_text("a b c\n" * 50)
        words = [str(self.dir / "out"), str(self.dir / "text.txt"), "--tokenizer", str(self.tok)]
        _, errors = self.run_main(prepare.main, *words, code=2)
        self.assertRegex(errors, r"^atoll: the tokenizer in .*tok needs code of that folder \(auto_map in "
                                 r"tokenizer_config.json\), and Atoll runs none: give a tokenizer.json\n$")

    def test_chat_template_beside_code(self) -> None:
        """A conversation needs the template and the tokens of such a folder, not its code."""
        (self.tok / "tok_evil.py").write_text(self.code)
        edit(self.tok / "tokenizer_config.json", tokenizer_class="Evil", chat_template=TEMPLATE,
             eos_token={"content": END}, auto_map={"AutoTokenizer": ["tok_evil.E", "tok_evil.E"]})
        self.own.save(str(self.tok / "tokenizer.json"))
        with mock.patch("builtins.input", side_effect=AssertionError("it asks a question")):
            template = chat.ChatTemplate(text_tokenizer.load(str(self.tok)))
            text, _ = template.spans([{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}])
        self.assertEqual(text, f"user: q{END}assistant: a{END}")
        self.assertFalse(self.marker.exists(), "code of the folder ran")

    def test_text_on_a_terminal(self) -> None:
        """A model that writes ESC: a terminal gets marks, a pipe gets the bytes."""
        bad = "\x1b]0;PWNED\x07 \x9b \u202e\u200b\ufeff\r\x7f"
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            generate.write(bad)
            self.assertEqual(out.getvalue(), bad)
            with mock.patch.object(out, "isatty", return_value=True):
                generate.write(bad + "é日\t\n")
        mark = "\ufffd"
        self.assertEqual(out.getvalue()[len(bad) :], f"{mark}]0;PWNED{mark} {mark} {mark * 5}é日\t\n")
        errors = io.StringIO()
        with contextlib.redirect_stderr(errors):
            command.warn(bad)
        self.assertTrue(errors.getvalue().rstrip("\n").isprintable(), repr(errors.getvalue()))


if __name__ == "__main__":
    unittest.main()
