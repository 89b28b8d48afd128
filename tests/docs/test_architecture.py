"""docs/architecture.md names files, classes and functions that exist."""

import ast
import re

import pytest

from tests.docs.pages import DOCS, ROOT

SOURCE = ROOT / "src" / "jointensor"
TEXT = re.sub(
    r"^```.*?^```$", "", (DOCS / "architecture.md").read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE
)
CODE = re.findall(r"`([^`\n]+)`", TEXT)
FILE = re.compile(r"((?:[a-z_0-9]+/)*[a-z_0-9]+\.py)(?:: ([\w., ]+))?")
DOTTED = re.compile(r"(?:[a-z_]\w*\.){1,3}[A-Za-z_]\w*(?:\.\w+)?")
PACKAGES = {path.name.removesuffix(".py") for path in SOURCE.iterdir()}


def names_of(path, owner=None):
    """Names that a module, or a class of it, defines, assigns or imports."""
    body = ast.parse(path.read_text(encoding="utf-8")).body
    if owner:
        body = next(node.body for node in body if isinstance(node, ast.ClassDef) and node.name == owner)
    found = set()
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found |= {target.id for target in targets if isinstance(target, ast.Name)}
        elif isinstance(node, ast.ImportFrom):
            found |= {alias.asname or alias.name for alias in node.names}
    return found


def named_files():
    return [found.groups() for code in CODE if (found := FILE.fullmatch(code)) and found[1] != "pyproject.toml"]


def named_paths():
    dotted = {code for code in CODE if DOTTED.fullmatch(code) and code.split(".")[0] in PACKAGES}
    return sorted(code for code in dotted if not code.endswith((".py", ".json", ".html")))


@pytest.mark.parametrize(("file", "names"), named_files(), ids=lambda value: str(value))
def test_files_and_their_names_exist(file, names):
    path = next((base / file for base in (SOURCE, ROOT) if (base / file).is_file()), None)
    assert path is not None, f"there is no {file}"
    for name in re.findall(r"[\w.]+", names or ""):
        owner, _, member = name.rpartition(".")
        assert member in names_of(path, owner or None), f"{file} has no {name}"


@pytest.mark.parametrize("code", named_paths())
def test_dotted_names_exist(code):
    parts = code.split(".")
    for count in range(len(parts), 0, -1):
        base = SOURCE.joinpath(*parts[:count])
        path = next((one for one in (base.with_suffix(".py"), base / "__init__.py") if one.is_file()), None)
        if path is not None:
            break
    rest = parts[count:]
    assert len(rest) <= 2, f"there is no {code}"
    if rest:
        assert rest[0] in names_of(path), f"there is no {code}"
    if len(rest) == 2:
        assert rest[1] in names_of(path, rest[0]), f"there is no {code}"


def test_enough_is_checked():
    assert len(named_files()) > 20
    assert len(named_paths()) > 15


def test_every_package_is_in_the_table():
    for name in PACKAGES - {"__init__", "__main__", "_version", "__pycache__", "threads", "py.typed"}:
        assert re.search(rf"`{name}(\.py)?`", TEXT), name
