"""Every code block of the README and the docs runs, page by page, in a folder of its own."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_code_blocks_run(page, tmp_path):
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "OMP_NUM_THREADS": "2"}
    for language, code in BLOCK.findall(page.read_text(encoding="utf-8")):
        if language == "sh" and re.match(r"make |\./|python -m jointensor.experiments", code):
            _check_make_targets(code)
            continue
        assert language in ("sh", "python"), f"{page.name} has a block in {language}: nothing runs it"
        command = [sys.executable, "-W", "error", "-c", code] if language == "python" else ["sh", "-euc", code]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{code}\n{done.stdout}\n{done.stderr}"


def _check_make_targets(code):
    for line in code.splitlines():
        if line.startswith("make "):
            subprocess.run(["make", "-n", line.split()[1]], cwd=ROOT, check=True, capture_output=True)


@pytest.mark.parametrize("script", sorted((ROOT / "examples").glob("*.py")), ids=lambda script: script.name)
def test_examples_run(script, tmp_path):
    command = [sys.executable, "-W", "error", str(script)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_links_between_pages_lead_somewhere():
    for page in [*PAGES, ROOT / "CONTRIBUTING.md"]:
        for target in re.findall(r"\]\(([^)#]+)\)", page.read_text(encoding="utf-8")):
            if not target.startswith("http"):
                assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_every_recipe_field_that_the_paper_leaves_open_is_in_the_docs():
    from jointensor.training import recipe

    source = Path(recipe.__file__).read_text(encoding="utf-8")
    fields = re.findall(r'^    (\w+):.*?\n    """(.*?)"""', source, re.DOTALL | re.MULTILINE)
    page = (ROOT / "docs" / "training.md").read_text(encoding="utf-8")
    open_fields = [name for name, text in fields if "Open." in text]
    assert len(open_fields) >= 5
    for name in open_fields:
        assert f"`{name}`" in page


def test_the_version_is_stated_once():
    import jointensor

    assert f"version: {jointensor.__version__}" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")
