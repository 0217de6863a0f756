"""The page of atoll report in headless Chromium: light and dark, without errors, and not blank."""

from __future__ import annotations

import json
import shutil
import subprocess
import unittest

from comparison import comparison
from folder import FolderTest

from atoll.report import cmd as report

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


@unittest.skipUnless(CHROMIUM, "there is no Chromium: apt-get install chromium")
class BrowserTest(FolderTest):
    def setUp(self) -> None:
        super().setUp()
        (self.dir / "comparison.json").write_text(json.dumps(comparison()))
        self.page = report.write(self.dir)

    def browse(self, *words: str) -> tuple[str, str]:
        """Opens the page; returns the output and the messages of its console."""
        done = subprocess.run(
            [str(CHROMIUM), "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
             f"--user-data-dir={self.dir / 'profile'}", "--enable-logging=stderr", "--window-size=1280,3000", *words,
             self.page.as_uri()],
            capture_output=True, text=True, timeout=240, check=True,
        )
        return done.stdout, "\n".join(line for line in done.stderr.splitlines() if "CONSOLE" in line)

    def shot(self, scheme: int) -> list[list[float]]:
        from matplotlib.image import imread

        path = self.dir / f"shot-{scheme}.png"
        _, console = self.browse(f"--screenshot={path}", f"--blink-settings=preferredColorScheme={scheme}")
        self.assertEqual(console, "")
        pixels = imread(path)[:, :, :3]
        self.assertEqual(pixels.shape[:2], (3000, 1280))
        return [[float(v) for v in row] for row in pixels[::5, ::5].reshape(-1, 3)]

    def test_light_and_dark(self) -> None:
        """Most of a page is its background; each third of it has something on it, in several colours."""
        for scheme, background in ((1, "#ffffff"), (0, "#141414")):
            pixels = [tuple(round(255 * v) for v in pixel) for pixel in self.shot(scheme)]
            most = max(set(pixels), key=pixels.count)
            self.assertEqual("#%02x%02x%02x" % most, background)
            third = len(pixels) // 3
            for i in range(3):
                part = pixels[i * third : (i + 1) * third]
                drawn = [pixel for pixel in part if pixel != most]
                self.assertGreater(len(drawn), 0.01 * third)
                self.assertGreater(len(set(drawn)), 30)

    def test_an_error_is_seen(self) -> None:
        """The check above can fail: a broken script leaves a message of the console."""
        self.page.write_text(self.page.read_text().replace("<script>", "<script>nothing.here();"))
        self.assertIn("nothing is not defined", self.browse("--dump-dom")[1])

    def test_legend_hides_an_arm(self) -> None:
        click = 'document.querySelector("[data-arm=arm3]").click();</script>'
        self.page.write_text(self.page.read_text().replace("</script>", click))
        dom, console = self.browse("--dump-dom")
        self.assertEqual(console, "")
        self.assertIn('class="arm3 off"', dom)
        self.assertNotIn('class="arm2 off"', dom)


if __name__ == "__main__":
    unittest.main()
