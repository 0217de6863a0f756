"""atoll-prepare with tokenizers: its tokens are those of the library, for all inputs and any number of processes."""

from __future__ import annotations

import gzip
import json
import os
import random
import sys
import tempfile
import unittest
from pathlib import Path
from typing import Any

import numpy as np

try:
    import datasets
    import pyarrow
    import pyarrow.parquet
    import zstandard
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
except ImportError as missing:
    raise unittest.SkipTest(f"no {missing.name}") from None

from folder import FolderTest

from atoll.data import cmd as prepare, text_tokenizer

datasets.disable_progress_bars()
END, BEGIN = "<|endoftext|>", "<|begin|>"
TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)


def mixed_lines(n: int) -> list[str]:
    """Lines of prose, code, other scripts, emoji, blanks, and long ones."""
    random_ = random.Random(3)
    words = "the tide boat's I'm we'll 12345 3.14 naïve Größe 日本語 中文 привет".split(" ")
    words += "שלום مرحبا 👩‍👩‍👧 😀 é \u00a0 _x __init__ <|user|>".split(" ")
    code = [
        "def f(x):\n\treturn x ** 2  # ok\n",
        "for (i = 0; i < n; i++) {\r\n    a[i] = b;\r\n}\r\n",
        "SELECT *\n\n\nFROM t;\n",
    ]
    lines = []
    for i in range(n):
        kind = i % 10
        if kind == 0:
            lines.append(random_.choice(code) * random_.randrange(1, 4))
        elif kind == 1:
            lines.append(" " * random_.randrange(1, 9) + "\t" * random_.randrange(3) + "\n" * random_.randrange(3))
        elif kind == 2:
            lines.append("".join(chr(random_.choice([32, 65, 0xE9, 0x4E2D, 0x1F600, 0x0301])) for _ in range(40)))
        else:
            lines.append(" ".join(random_.choice(words) for _ in range(random_.randrange(1, 60))))
    lines[n // 2] = " ".join(random_.choice(words) for _ in range(300_000))  # several blocks
    return lines


class PrepareTest(FolderTest):
    lines: list[str]
    folder: tempfile.TemporaryDirectory[str]

    @classmethod
    def setUpClass(cls) -> None:
        cls.lines = mixed_lines(10_000)
        cls.folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.folder.cleanup)
        cls.tokenizers = Path(cls.folder.name)
        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        special = [END, BEGIN, "<|user|>", "<|assistant|>", "<|system|>", "<|end|>"]
        trainer = trainers.BpeTrainer(
            vocab_size=2000,
            special_tokens=special,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        )
        tokenizer.train_from_iterator(cls.lines[:3000], trainer)
        tokenizer.enable_truncation(8)  # as some models save it: a corpus must not be cut
        (cls.tokenizers / "plain").mkdir()
        tokenizer.save(str(cls.tokenizers / "plain" / "tokenizer.json"))
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{BEGIN} $A", special_tokens=[(BEGIN, tokenizer.token_to_id(BEGIN))]
        )
        (cls.tokenizers / "chat").mkdir()
        tokenizer.save(str(cls.tokenizers / "chat" / "tokenizer.json"))
        (cls.tokenizers / "chat" / "tokenizer_config.json").write_text(
            json.dumps(
                {
                    "tokenizer_class": "PreTrainedTokenizerFast",
                    "bos_token": BEGIN,
                    "eos_token": "<|end|>",
                    "chat_template": TEMPLATE,
                }
            )
        )
        tokenizer.no_truncation()
        cls.own = tokenizer

    def run_program(self, *words: str, code: int = 0, processes: str = "1") -> tuple[str, str]:
        return self.call(prepare.main, *words, "--processes", processes, code=code)

    def fails(self, line: str, *words: str) -> None:
        _, errors = self.run_program(*words, code=2)
        self.assertRegex(errors, f"^atoll: {line}")
        self.assertEqual(errors.count("\n"), 1, errors)

    def tokens(self, out: str, name: str = "train", dtype: str = "<u2") -> list[int]:
        paths = sorted((self.dir / out).glob(f"{name}_*.bin"))
        return [int(t) for path in paths for t in np.fromfile(path, dtype, offset=1024)]

    def expected(self, lines: list[str], prefix: list[int]) -> list[int]:
        return [t for line in lines if line for t in [*prefix, *self.own.encode(line, add_special_tokens=False).ids]]

    def meta(self, out: str) -> dict[str, Any]:
        value: dict[str, Any] = json.loads((self.dir / out / "meta.json").read_text())
        return value

    def test_tokens_of_mixed_lines(self) -> None:
        """10,000 lines: the tokens are those of tokenizers, and the files the same for one process and three."""
        with gzip.open(self.dir / "lines.jsonl.gz", "wt", encoding="utf-8", compresslevel=1) as file:
            for i, line in enumerate(["", *self.lines]):
                file.write(json.dumps({"content": line}, ensure_ascii=i % 2 == 0) + "\n")
        tokenizer = str(self.tokenizers / "plain" / "tokenizer.json")
        words = ("lines.jsonl.gz", "--tokenizer", tokenizer, "--field", "content")
        end = self.own.token_to_id(END)
        out, _ = self.run_program("all", *words, "--val-fraction", "0")
        want = self.expected(self.lines, [end])
        self.assertEqual(self.tokens("all"), want)
        self.assertRegex(
            out,
            rf"vocabulary +{self.own.get_vocab_size()}  <\|endoftext\|> precedes each document\n"
            r"settings   data.tokenizer=all/tokenizer.json ",
        )
        self.assertRegex(out, r"left out +1  empty documents; the first: lines.jsonl.gz line 1\n")
        print(f"{len(want)} tokens of 10000 mixed lines equal tokenizers' own", file=sys.stderr)
        self.run_program("one", *words, "--shard-tokens", "100000")
        self.run_program("three", *words, "--shard-tokens", "100000", processes="3")
        names = sorted(os.listdir(self.dir / "one"))
        self.assertEqual(names, sorted(os.listdir(self.dir / "three")))
        for name in names:
            self.assertEqual((self.dir / "one" / name).read_bytes(), (self.dir / "three" / name).read_bytes(), name)
        meta = self.meta("one")
        self.assertEqual(
            (meta["held_out"], meta["vocab_size"], meta["separator"], meta["token_bytes"]),
            ("documents", self.own.get_vocab_size(), end, 2),
        )
        self.assertEqual(meta["train_tokens"] + meta["val_tokens"], len(want))
        self.assertAlmostEqual(self.tokens("one", "val").count(end), 500, delta=1)
        self.assertEqual(sorted(self.tokens("one") + self.tokens("one", "val")), sorted(want))
        copy = text_tokenizer.load(str(self.dir / "one"))  # the folder is a tokenizer's folder, too
        self.assertEqual((copy.vocab_size, copy.end), (self.own.get_vocab_size(), end))

    def test_inputs(self) -> None:
        """Each input gives the same tokens; the tokenizer's begin token follows the separator."""
        lines = [line for line in self.lines[:400] if line]
        text = "".join(json.dumps({"text": line}) + "\n" for line in lines).encode()
        (self.dir / "a.jsonl").write_bytes(text)
        packer = zstandard.ZstdCompressor()
        (self.dir / "b.jsonl.zst").write_bytes(packer.compress(text[:9000]) + packer.compress(text[9000:]))
        table = pyarrow.table({"id": list(range(len(lines))), "text": lines})
        pyarrow.parquet.write_table(table, self.dir / "c.parquet", row_group_size=100)
        datasets.Dataset.from_dict({"text": lines[::-1]}).select(range(len(lines))[::-1]).save_to_disk(
            str(self.dir / "d")
        )
        split = {
            "train": datasets.Dataset.from_dict({"text": lines}),
            "test": datasets.Dataset.from_dict({"text": ["x"]}),
        }
        datasets.DatasetDict(split).save_to_disk(str(self.dir / "e"))
        chat = str(self.tokenizers / "chat")
        end = self.own.token_to_id("<|end|>")  # the eos_token of tokenizer_config.json
        want = self.expected(lines, [end, self.own.token_to_id(BEGIN)])
        for name in ("a.jsonl", "b.jsonl.zst", "c.parquet", "d", "e"):
            out, _ = self.run_program(f"out-{name}", name, "--tokenizer", chat, "--val-fraction", "0")
            self.assertEqual(self.tokens(f"out-{name}"), want, name)
        self.assertIn(f"<|end|> precedes each document; the tokenizer adds {BEGIN}", out)
        self.run_program("none", "a.jsonl", "--tokenizer", chat, "--val-fraction", "0", "--separator", "none")
        self.assertEqual(self.tokens("none"), self.expected(lines, [self.own.token_to_id(BEGIN)]))
        line = '[0-9]+ lines or rows without a string "body", the first c.parquet row 1: .* --field: id, text$'
        self.fails(line, "no", "c.parquet", "--tokenizer", chat, "--field", "body")

    def test_texts(self) -> None:
        """A text in parts has the tokens of the whole; its tail is held out, and is cut between characters."""
        text = "\n".join(line for line in self.lines[:9000] if "\r" not in line) * 3
        (self.dir / "long.txt").write_bytes(b"\xef\xbb\xbf" + text.encode())
        plain = str(self.tokenizers / "plain")
        end = self.own.token_to_id(END)
        self.run_program("all", "long.txt", "--tokenizer", plain, "--val-fraction", "0")
        self.assertGreater(len(text.encode()), 3 << 20)
        self.assertEqual(self.tokens("all"), self.expected([text], [end]))
        self.run_program("tail", "long.txt", "--tokenizer", plain, "--val-fraction", "0.3")
        train, val = self.tokens("tail"), self.tokens("tail", "val")
        self.assertEqual(self.own.decode(train[1:] + val, skip_special_tokens=False), text)
        self.assertAlmostEqual(
            len(self.own.decode(val, skip_special_tokens=False).encode()), 0.3 * len(text.encode()), delta=300
        )
        (self.dir / "short.txt").write_text("日本語" * 5)
        self.run_program("short", "short.txt", "--tokenizer", plain, "--val-fraction", "0.5")
        self.assertEqual(
            self.own.decode(self.tokens("short")[1:]) + self.own.decode(self.tokens("short", "val")), "日本語" * 5
        )
        (self.dir / "latin.txt").write_bytes("naïve".encode("latin-1"))
        out, _ = self.run_program("latin", "latin.txt", "--tokenizer", plain, "--val-fraction", "0")
        self.assertRegex(
            out, r"changed +1  texts with bytes that are not UTF-8 \(now U\+FFFD\); the first: latin.txt\n"
        )
        self.assertEqual(self.own.decode(self.tokens("latin")[1:]), "na\ufffdve")

    def conversations(self) -> list[Any]:
        turns = [
            ("user", "How many?"),
            ("assistant", "Seven white stones 😀."),
            ("user", "Sure?"),
            ("assistant", "Yes"),
        ]
        return [
            {"messages": [{"role": role, "content": content} for role, content in turns]},
            {"conversations": [{"from": "human", "value": "hi"}, {"from": "gpt", "value": "hello"}]},
            {"messages": [{"role": "user", "content": "no answer"}]},
            {"messages": [{"role": "user", "content": [{"type": "image"}]}, {"role": "assistant", "content": "a"}]},
            {"text": "no conversation"},
        ]

    def test_chat(self) -> None:
        """Only the answers and their ends give loss."""
        (self.dir / "chat.jsonl").write_text("".join(json.dumps(c) + "\n" for c in self.conversations()))
        chat = str(self.tokenizers / "chat")
        out, _ = self.run_program("out", "chat.jsonl", "--chat", "--tokenizer", chat, "--val-fraction", "0")
        self.assertRegex(out, r"documents +2 ")
        self.assertRegex(
            out,
            r"left out +1  conversations that have no answer \(a message of the role assistant\); "
            r"the first: chat.jsonl line 3\n",
        )
        self.assertRegex(
            out,
            r"left out +1  conversations that have a message whose content is not text; the first: chat.jsonl line 4\n",
        )
        self.assertRegex(out, r'left out +1  lines or rows without "messages"; the first: chat.jsonl line 5\n')
        head = np.fromfile(self.dir / "out/train_000000.bin", "<i4", 3)
        tokens = np.array(self.tokens("out", dtype="<u4"), np.uint32)
        self.assertEqual(head.tolist(), [20240801, 8, len(tokens)])
        whole = self.own.decode((tokens & 0x7FFFFFFF).tolist(), skip_special_tokens=False)
        first = (
            f"{BEGIN}<|user|>\nHow many?<|end|>\n<|assistant|>\nSeven white stones 😀.<|end|>\n"
            "<|user|>\nSure?<|end|>\n<|assistant|>\nYes<|end|>\n"
        )
        self.assertEqual(whole, f"{first}{BEGIN}<|user|>\nhi<|end|>\n<|assistant|>\nhello<|end|>\n")
        answers = self.own.decode(tokens[tokens < 0x80000000].tolist(), skip_special_tokens=False)
        self.assertEqual(answers, "Seven white stones 😀.<|end|>\nYes<|end|>\nhello<|end|>\n")
        self.assertEqual(self.meta("out")["target_tokens"], int(np.count_nonzero(tokens < 0x80000000)))
        self.run_program("val", "chat.jsonl", "--chat", "--tokenizer", chat)  # at least one whole conversation
        self.assertEqual(self.meta("val")["held_out"], "documents")
        self.assertGreater(self.meta("val")["val_tokens"], 0)

    def test_refusals(self) -> None:
        (self.dir / "a.txt").write_text("text")
        (self.dir / "no.json").write_text("{}")
        (self.dir / "empty").mkdir()
        plain = str(self.tokenizers / "plain")
        self.fails(
            "the tokenizer gpt2 does not exist: give a tokenizer.json, or the folder of a model",
            "out",
            "a.txt",
            "--tokenizer",
            "gpt2",
        )
        self.fails("no.json is not a tokenizer.json: ", "out", "a.txt", "--tokenizer", "no.json")
        self.fails("empty has no tokenizer that transformers can load: ", "out", "a.txt", "--tokenizer", "empty")
        self.fails(
            "--separator is '<x>', which .* does not know", "out", "a.txt", "--tokenizer", plain, "--separator", "<x>"
        )
        self.fails("the tokenizer .*plain has no chat template: ", "out", "a.txt", "--tokenizer", plain, "--chat")
        (self.dir / "torn.parquet").write_bytes(b"PAR1")
        self.fails("torn.parquet is no parquet file: ", "out", "torn.parquet", "--tokenizer", plain)
        self.assertFalse((self.dir / "out").exists())


if __name__ == "__main__":
    unittest.main()
