"""Pages in a real browser: nothing broken, nothing fetched, no sideways scrolling on a phone."""

import re
import shutil
import subprocess

import pytest
from typer.testing import CliRunner

from jointensor.cli.app import app

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium on this machine")

MEASURE = """<!doctype html>
<iframe id=page src="{page}" style="width:{width}px;height:3000px;border:0"></iframe><pre id=said></pre>
<script>
document.getElementById("page").onload = () => {{
  const page = document.getElementById("page").contentDocument;
  const clipped = [...page.querySelectorAll("svg")].filter(s => {{
    const box = s.getBoundingClientRect();
    return [...s.querySelectorAll("text")].some(t => {{
      const b = t.getBoundingClientRect();
      return b.left < box.left - 1 || b.right > box.right + 1 || b.top < box.top - 1 || b.bottom > box.bottom + 1;
    }});
  }});
  document.getElementById("said").textContent = "width=" + page.documentElement.scrollWidth
    + " plots=" + page.querySelectorAll("svg").length
    + " clipped=" + clipped.map(s => s.getAttribute("aria-label")).join("|") + ";";
}};
</script>"""


def browse(page, tmp_path, width):
    """Width of the page in a window, its plots, those with text outside of them, and what the console said."""
    probe = tmp_path / f"probe{width}.html"
    probe.write_text(MEASURE.format(page=page.as_uri(), width=width))
    done = subprocess.run(
        [
            CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--disable-web-security",
            "--enable-logging=stderr", "--allow-file-access-from-files", "--virtual-time-budget=4000",
            f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom", probe.as_uri(),
        ],
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    said = re.search(r"width=(\d+) plots=(\d+) clipped=([^;]*);", done.stdout)
    assert said, done.stdout[-2000:]
    return int(said[1]), int(said[2]), said[3], [line for line in done.stderr.splitlines() if "CONSOLE" in line]


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """A fit, a search and a comparison of a table with long labels."""
    folder = tmp_path_factory.mktemp("pages")
    lines = ["who,what,day,value"]
    for i in range(12):
        for j in range(6):
            for k in range(1, 10):
                if (i + 2 * j + k) % 4:
                    name = f"somebody with quite a long name {i}"
                    lines.append(f"{name},<b>thing</b> & {j},2024-01-{k:02d},{(i + 1) * (j + 1) + (k % 3)}")
    (folder / "table.csv").write_text("\n".join(lines))
    given = [str(folder / "table.csv"), "--modes", "who,what,day", "--value", "value", "--quiet"]
    for words in (
        ["fit", *given, "--rank", "2/2", "--budget", "5", "--out", str(folder / "fit")],
        ["fit", *given, "--rank", "auto", "--budget", "8", "--out", str(folder / "auto")],
        ["compare", *given, "mean", "bias", "cp:1", "--jobs", "1", "--seeds", "1", "--out", str(folder / "compare")],
    ):
        done = CliRunner().invoke(app, words)
        assert done.exit_code == 0, done.output
    return {name: folder / name / "report.html" for name in ("fit", "auto", "compare")}


@pytest.mark.parametrize("name", ["fit", "auto", "compare"])
@pytest.mark.parametrize("width", [360, 1200])
def test_a_page_fits_its_window_and_nothing_is_cut_off(pages, tmp_path, name, width):
    page = pages[name]
    wide, plots, clipped, console = browse(page, tmp_path, width)
    assert wide <= width
    assert plots >= (1 if name == "compare" else 8)
    assert clipped == ""
    assert console == []
    assert page.stat().st_size < 5_000_000
