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
  const over = (a, b) => a.left < b.right - 1 && b.left < a.right - 1 && a.top < b.bottom - 3 && b.top < a.bottom - 3;
  const mixed = [...page.querySelectorAll("svg")].filter(s => {{
    const boxes = [...s.querySelectorAll("text")].map(t => t.getBoundingClientRect());
    return boxes.some((a, k) => boxes.slice(k + 1).some(b => over(a, b)));
  }});
  const letters = [...page.querySelectorAll("svg")].filter(s => s.clientWidth).map(s =>
    parseFloat(getComputedStyle(s.querySelector("text")).fontSize) * s.clientWidth / s.viewBox.baseVal.width);
  const hidden = [...page.querySelectorAll(".scroll")].filter(t => t.scrollWidth > t.clientWidth + 1);
  document.getElementById("said").textContent = "width=" + page.documentElement.scrollWidth
    + " plots=" + page.querySelectorAll("svg").length
    + " letters=" + Math.min(...letters) + "," + Math.max(...letters)
    + " hidden=" + hidden.map(t => t.innerText.slice(0, 20)).join("|")
    + " clipped=" + [...clipped, ...mixed].map(s => s.getAttribute("aria-label")).join("|") + ";";
}};
</script>"""


def browse(page, tmp_path, width):
    """What a window of this width shows: figures by name, and what the console said."""
    probe = tmp_path / f"probe{width}.html"
    probe.write_text(MEASURE.format(page=page.as_uri(), width=width), encoding="utf-8")
    done = subprocess.run(
        [
            CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--disable-web-security",
            "--enable-logging=stderr", "--allow-file-access-from-files", "--virtual-time-budget=4000",
            f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom", probe.as_uri(),
        ],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    said = re.search(r"width=(?P<width>\d+) plots=(?P<plots>\d+) letters=(?P<small>[\d.]+),(?P<large>[\d.]+) "
                     r"hidden=(?P<hidden>[^;]*) clipped=(?P<clipped>[^;]*);", done.stdout)  # fmt: skip
    assert said, done.stdout[-2000:]
    return said.groupdict(), [line for line in done.stderr.splitlines() if "CONSOLE" in line]


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
    (folder / "table.csv").write_text("\n".join(lines), encoding="utf-8")
    given = [str(folder / "table.csv"), "--modes", "who,what,day", "--value", "value", "--quiet"]
    for words in (
        ["fit", *given, "--rank", "2/2", "--set", "refine_epochs=8", "--set", "cycle=8", "--out", str(folder / "fit")],
        ["fit", *given, "--rank", "auto", "--budget-fits", "12", "--out", str(folder / "auto")],
        ["compare", *given, "mean", "bias", "cp:1", "--jobs", "1", "--seeds", "1", "--out", str(folder / "compare")],
    ):
        done = CliRunner().invoke(app, words)
        assert done.exit_code == 0, done.output
    lines = ["who,when,value"]
    for i in range(5):
        for k in range(300):
            if (i * k) % 7 != 3 and not (i == 2 and 90 < k < 130):
                day, hour = f"2024-01-{1 + k // 24:02d}", k % 24
                lines.append(f"somebody with quite a long name {i},{day} {hour:02d}:00,{1e4 * (hour - 12) + i}")
    (folder / "hours.csv").write_text("\n".join(lines), encoding="utf-8")
    words = ["fit", str(folder / "hours.csv"), "--mode", "who", "--mode", "date=day(when)", "--mode", "hour=hour(when)"]
    words += ["--value", "value", "--rank", "2/0", "--quiet", "--out", str(folder / "series")]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    assert "Some series along date and hour" in (folder / "series" / "report.html").read_text(encoding="utf-8")
    return {name: folder / name / "report.html" for name in ("fit", "auto", "compare", "series")}


@pytest.mark.parametrize("name", ["fit", "auto", "compare", "series"])
@pytest.mark.parametrize("width", [360, 1200])
def test_a_page_fits_its_window_and_nothing_is_cut_off(pages, tmp_path, name, width):
    page = pages[name]
    seen, console = browse(page, tmp_path, width)
    assert int(seen["width"]) <= width
    assert int(seen["plots"]) >= (1 if name == "compare" else 8)
    assert seen["clipped"] == ""
    assert seen["hidden"] == ""  # no column of a table is out of sight
    assert 7.5 <= float(seen["small"]) <= float(seen["large"]) <= 16  # of the letters of plots, in pixels
    assert console == []
    assert page.stat().st_size < 5_000_000
