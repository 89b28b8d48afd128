"""The site builds without a warning, asks for nothing outside, and describes what there is."""

import importlib.util
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from importlib import import_module
from pathlib import Path

import pytest

from tests.docs.pages import DOCS, PAGES, ROOT, name_of

LOADED = {
    "script": "src", "link": "href", "img": "src", "iframe": "src", "source": "src", "video": "src", "audio": "src",
    "object": "data", "embed": "src", "input": "src", "track": "src",
}  # fmt: skip
"""What a browser fetches by itself when it opens a page."""
NOT_FETCHED = {"canonical", "alternate", "next", "prev"}
"""Relations that only tell where something is."""


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    if importlib.util.find_spec("mkdocs") is None:
        pytest.skip("mkdocs is not installed: pip install -e '.[dev]'")
    out = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(out)]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return out


class Page(HTMLParser):
    """What a page fetches, what it links to, its places, and its text."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.fetched, self.links, self.places, self.text, self.classes = [], [], set(), [], set()
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attrs):
        known = dict(attrs)
        self.places.add(known.get("id"))
        self.classes |= set((known.get("class") or "").split())
        if tag == "a" and known.get("href"):
            self.links.append(known["href"])
        address = known.get(LOADED.get(tag, ""))
        if address and known.get("rel") not in NOT_FETCHED:
            self.fetched.append(address)
        self.fetched += re.findall(r"url\(([^)]+)\)", known.get("style") or "")

    def handle_data(self, data):
        self.text.append(data)


def test_no_page_asks_for_anything_outside(site):
    pages = {path: Page(path) for path in site.rglob("*.html")}
    assert len(pages) >= len(list(DOCS.rglob("*.md")))
    for path, page in pages.items():
        for address in page.fetched:
            assert not re.match(r"(https?:)?//", address), f"{path.name} loads {address}"
        # what the theme's script would fetch from elsewhere, if a page had it
        assert "mermaid" not in page.classes
        assert "md-source" not in page.classes
    for sheet in site.rglob("*.css"):
        for address in re.findall(r"(?:url\(|@import )[\"']?([^\"')]+)", sheet.read_text(encoding="utf-8")):
            assert not re.match(r"(https?:)?//", address), f"{sheet.name} loads {address}"


def test_links_of_the_site_lead_somewhere(site):
    pages = {path: Page(path) for path in site.rglob("*.html") if path.name != "404.html"}
    for path, page in pages.items():
        for link in page.links:
            if re.match(r"\w+:", link):
                continue
            target, _, place = link.partition("#")
            there = (path.parent / target).resolve() if target else path
            there = there / "index.html" if there.is_dir() else there
            assert there.exists(), f"{path.name} links to {link}"
            if place and there in pages and place != "__comments":
                assert place in pages[there].places, f"{path.name} links to {link}"


def test_every_page_is_in_the_menu(site):
    menu = Page(site / "index.html").links
    for page in sorted(DOCS.rglob("*.md")):
        address = page.relative_to(DOCS).with_suffix(".html").as_posix()
        assert address in menu, f"{name_of(page)} cannot be found from the first page"


def test_the_reference_has_every_public_name(site):
    text = "\n".join(path.read_text(encoding="utf-8") for path in (site / "reference").glob("*.html"))
    places = set(re.findall(r'id="([^"]+)"', text))
    import jointensor
    from jointensor import testing

    for name in jointensor.__all__:
        if not name.startswith("__"):
            assert f"{jointensor._HOMES[name]}.{name}" in places, f"{name} is in no page of the reference"
    for name in testing.__all__:
        assert f"jointensor.testing.{name}" in places


def test_roles_of_docstrings_become_links(site):
    for path in (site / "reference").glob("*.html"):
        page = Page(path)
        assert not re.search(r":(class|func|meth|mod|attr|data):", " ".join(page.text)), path.name
        assert "autoref" not in path.read_text(encoding="utf-8").replace("autorefs", ""), path.name


def test_what_the_reference_shows_is_documented():
    """Every name of a reference page has a docstring; parameters of functions are told, or too plain to be told."""
    for page in (DOCS / "reference").glob("*.md"):
        for name in re.findall(r"^::: ([\w.]+)$", page.read_text(encoding="utf-8"), re.MULTILINE):
            home, _, last = name.rpartition(".")
            if name == "jointensor.testing" or name == "jointensor.errors":
                thing = import_module(name)
            else:
                thing = getattr(import_module(home), last)
            assert (thing.__doc__ or "").strip(), f"{name} has no docstring"


def test_the_page_of_the_command_line_is_what_the_program_says():
    sys.path.insert(0, str(DOCS / "_site"))
    try:
        from cli_page import PAGE, cli_page
    finally:
        sys.path.pop(0)
    assert PAGE.read_text(encoding="utf-8") == cli_page(), "python docs/_site/cli_page.py writes it again"
    assert "## jointensor data get\n" in cli_page()
    assert "`--interval" in cli_page()


def test_pages_tell_nothing_twice():
    """No paragraph of some length is on two pages."""
    seen = {}
    for page in PAGES:
        text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
        for paragraph in re.split(r"\n\s*\n", text):
            words = " ".join(paragraph.split())
            if len(words) > 150:
                assert words not in seen, f"on {name_of(page)} and {name_of(seen[words])}: {words}"
                seen[words] = page
