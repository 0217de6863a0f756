"""atoll.Tokens: samples of shards, with and without a loss mask; native workers refuse the mask."""

from __future__ import annotations

import os
import subprocess
import unittest
from pathlib import Path

import numpy as np

from folder import FolderTest

from atoll import InvalidError, Tokens
from atoll.data.shards import MASKED, ShardWriter

BIN = Path(os.environ.get("ATOLL_BIN", "build/bin")).resolve()


class TokensTest(FolderTest):
    def write(self, name: str, tokens: list[int], width: int, masked: bool) -> str:
        writer = ShardWriter(str(self.dir), name, width, masked, 1000)
        writer.put(np.array(tokens, np.uint32))
        writer.close()
        return f"{self.dir}/{name}_*.bin"

    def test_plain(self) -> None:
        for width, last in ((2, 65535), (4, 70000)):
            data = Tokens(self.write(f"w{width}", [1, 2, 3, 4, 5, 6, last], width, False), 3)
            self.assertEqual(len(data), 2)
            x, y = data[1]
            self.assertEqual((x.tolist(), y.tolist()), ([4, 5, 6], [5, 6, last]))
            self.assertEqual((x.dtype, y.dtype), (np.int64, np.int64))
        with self.assertRaisesRegex(InvalidError, "no token shards match"):
            Tokens(f"{self.dir}/none_*.bin", 3)

    def test_masked(self) -> None:
        """A masked token is an input like others, and no target."""
        pattern = self.write("m", [10 | MASKED, 11 | MASKED, 12, 13, 14 | MASKED], 4, True)
        x, y = Tokens(pattern, 4)[0]
        self.assertEqual((x.tolist(), y.tolist()), ([10, 11, 12, 13], [-100, 12, 13, -100]))
        config = Path(self.dir, "run.yaml")
        config.write_text("model: {n_layer: 1, n_head: 1, n_embd: 8, block_size: 4, vocab_size: 256}\n")
        command = [str(BIN / "atoll"), "launch", str(config), "--workers", "1", "--dir", f"{self.dir}/run"]
        command += [f"--data.train={pattern}", f"--data.val={pattern}"]
        done = subprocess.run(command, capture_output=True, text=True)
        self.assertNotEqual(done.returncode, 0)
        line = "m_000000.bin has a loss mask (atoll prepare --chat), which atoll-worker cannot apply"
        self.assertIn(line, done.stderr)


if __name__ == "__main__":
    unittest.main()
