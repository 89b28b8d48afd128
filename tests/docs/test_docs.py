"""Every code block of the README and the docs runs, page by page, in a folder of its own, and prints what it shows."""

import importlib.util
import re
import shlex
import subprocess
from pathlib import Path

import pytest

from tests.docs.pages import DOCS, PAGES, ROOT, Tolerance, blocks_of, commands_of, difference, name_of
from tests.docs.warm import Warm

# Pages are run on less data: the test is whether commands run and print what is shown, not how good a fit is.
SHORTER = {
    "README.md": [
        ("make_epidemic(seed=0).observed.", "make_epidemic(seed=0).observed.take(range(0, 32449, 20))."),
        ("--out runs/compared", "--out runs/compared --seeds 1 --jobs 1 --set refine_epochs=1 --set rounds=1"),
    ],
    "docs/tutorial.md": [("--rank auto --budget 60", "--rank auto --budget-fits 8")],
    "docs/howto/impute.md": [
        ("--seed 0 --quiet", "--seed 0 --quiet --rank 2/0"),
        ("TensorCompleter(random_state=0)", "TensorCompleter(random_state=0, rank=(2, 0))"),
    ],
    "docs/auto.md": [("--rank auto --budget 10", "--rank auto --budget-fits 8")],
}
FIGURES = ("docs/results", "docs/benchmarks.md")
"""Pages whose commands take hours: only the options of their commands are checked."""
WRITTEN = [page for page in PAGES if not name_of(page).startswith(FIGURES)]


@pytest.fixture(scope="module")
def warm(tmp_path_factory):
    server = Warm(tmp_path_factory.mktemp("warm"))
    yield server
    server.close()


@pytest.mark.parametrize("page", WRITTEN, ids=name_of)
def test_code_blocks_run_and_print_what_is_shown(page, tmp_path, warm):
    text = page.read_text(encoding="utf-8")
    for long, short in SHORTER.get(name_of(page), []):
        assert long in text, f"{name_of(page)} does not say '{long}' any more"
        text = text.replace(long, short)
    for number, block in enumerate(blocks_of(text)):
        assert block.language in ("sh", "python"), f"a block in '{block.language}': nothing runs it"
        if not _runs(block):
            continue
        (tmp_path / ".code").mkdir(exist_ok=True)
        script = tmp_path / ".code" / f"block_{number}.{block.language}"
        script.write_text(block.code, encoding="utf-8")
        command = ["python", str(script)] if block.language == "python" else ["sh", "-eu", str(script)]
        done = warm.run(command, tmp_path)
        assert done.returncode == 0, f"{block.code}\n{done.stdout}"
        if block.output is not None:
            missing = difference(block.output, done.stdout, block.tolerance)
            assert missing is None, f"{block.code}\nshould print:\n{missing}\n\nall of it:\n{done.stdout}"


def _runs(block):
    """Whether a block is run here: not what installs, needs a GPU, or is a target of make, which have other tests."""
    if block.remark.startswith("not run: ") or block.code.startswith("make "):
        return False
    if block.remark == "needs a GPU":
        return False
    assert not block.remark, f"'{block.remark}' means nothing above code"
    return True


@pytest.mark.parametrize("script", sorted((ROOT / "examples").glob("*.py")), ids=lambda script: script.name)
def test_examples_run(script, tmp_path, warm):
    done = warm.run(["python", str(script)], tmp_path)
    assert done.returncode == 0, done.stdout


def test_the_warm_process_tells_when_something_fails(warm, tmp_path):
    (tmp_path / "wrong.py").write_text("import warnings\nwarnings.warn('unhandled')\n", encoding="utf-8")
    assert warm.run(["python", "wrong.py"], tmp_path).returncode == 1
    done = warm.run(["jointensor", "fit", "nothing.csv"], tmp_path)
    assert done.returncode == 2
    assert "fit needs a source and a run folder" in done.stdout


@pytest.mark.parametrize(
    ("shown", "printed", "tolerance", "same"),
    [
        ("RMSE 6.6 of 1,298", "RMSE  6.9 of 1,298", 0.1, True),
        ("RMSE 6.6 of 1,298", "RMSE 7.9 of 1,298", 0.1, False),
        ("RMSE 6.6 of 1,298", "RMSE 6.6 of 1,299", 0.1, False),
        ("RMSE 6.6", "RMSE 6.7", 0.0, False),
        ("MAE 6.6", "MAE 6.7", 0.1, False),  # no tolerance was given for this line
        ("A01,2021-03-01,29.1,18.9", "A01,2021-03-01,28.3,19.1", 0.1, True),
        ("A01,2021-03-01,29.1", "A01,2021-03-02,29.1", 0.1, False),
        ("after … epochs, … s", "after 12 epochs, 3 s", 0.0, True),
        ("a\n…\nc", "a\nb\nb\nc", 0.0, True),
        ("a\n…\nc", "a\nb\nb", 0.0, False),
        ("a", "a\nb", 0.0, False),
        ("a\nb", "a", 0.0, False),
        ("a\n…", "a\nb", 0.0, True),
        ("a", "epoch 3  refine\na", 0.0, True),
        ("┏━━━┓", "┏━━━━━┓", 0.0, True),
    ],
)
def test_output_is_compared_line_by_line(shown, printed, tolerance, same):
    assert (difference(shown, printed, Tolerance(tolerance, ("RMSE", "A01"))) is None) == same


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_commands_that_are_shown_exist(page):
    options = _options()
    for line in commands_of(page.read_text(encoding="utf-8")):
        words = shlex.split(line.replace("…", ""), comments=True)
        if words[:1] == ["jointensor"] and "[" not in line and words[1:] != ["--version"]:
            name = " ".join(words[1:3]) if words[1] == "data" else words[1]
            for word in words:
                if word.startswith("--"):
                    assert word in options.get(name, ()), f"{line}\n{name} has no option {word}"
        elif words[:1] == ["make"]:
            subprocess.run(["make", "-n", words[1]], cwd=ROOT, check=True, capture_output=True)
        elif words[:2] == ["python", "-m"]:
            assert importlib.util.find_spec(words[2]), line
        elif words[:1] == ["python"] and words[1:] and words[1].endswith(".py") and "/" in words[1]:
            assert (ROOT / words[1]).is_file(), line


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_options_named_in_the_text_exist(page):
    known = set().union(*_options().values()) | {"--help", "--version"}
    scripts = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "benchmarks").glob("*.py"))
    scripts += "".join(p.read_text(encoding="utf-8") for p in (ROOT / "src/jointensor/reproduce").glob("*.py"))
    for code in re.findall(r"(?<!`)`([^`\n]+)`(?!`)", page.read_text(encoding="utf-8")):
        for word in re.findall(r"(?<![\w-])--[a-z][a-z-]*", code):
            assert word in known or f'"{word}"' in scripts, f"`{code}`: nothing has an option {word}"


def _options():
    """Options of every command, by its name."""
    import typer.main

    from jointensor.cli.app import app

    found = {}
    for name, command in typer.main.get_command(app).commands.items():
        inner = getattr(command, "commands", None)
        for word, one in inner.items() if inner else [("", command)]:
            found[f"{name} {word}".strip()] = {option for param in one.params for option in param.opts}
    return found


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_between_pages_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text(encoding="utf-8")):
        if not target.startswith("http"):
            assert (page.parent / target).exists(), f"{name_of(page)} links to {target}"


def test_every_recipe_field_that_the_paper_leaves_open_is_in_the_docs():
    from jointensor.training import recipe

    source = Path(recipe.__file__).read_text(encoding="utf-8")
    fields = re.findall(r'^    (\w+):.*?\n    """(.*?)"""', source, re.DOTALL | re.MULTILINE)
    page = (DOCS / "training.md").read_text(encoding="utf-8")
    open_fields = [name for name, text in fields if "Open." in text]
    assert len(open_fields) >= 5
    for name in open_fields:
        assert f"`{name}`" in page


def test_every_block_and_every_model_is_in_the_docs():
    from jointensor.models.blocks.spec import block_forms
    from jointensor.models.nonlinear import nonlinear_parts

    blocks, models = ((DOCS / name).read_text(encoding="utf-8") for name in ("blocks.md", "models.md"))
    for name in block_forms():
        assert f"`{name}" in blocks
    ours = [name for name in nonlinear_parts.names() if nonlinear_parts.find(name).__module__.startswith("jointensor.")]
    assert "julia" in ours
    for name in ours:
        assert f"`{name}:" in models


def test_the_version_is_stated_once():
    import jointensor

    assert f"version: {jointensor.__version__}" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f"jointensor {jointensor.__version__}\n" in (DOCS / "tutorial.md").read_text(encoding="utf-8")
