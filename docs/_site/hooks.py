"""What mkdocs is told beyond mkdocs.yml: pages of results, and links that leave the folder of the docs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from posixpath import normpath
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[2]
LINK = re.compile(r"(?<=\]\()(\.\./[^)#\s]+)(?=[)#\s])")
COPIES = "repository"
"""Where files from elsewhere in the repository lie on the site."""


def on_config(config: Any) -> Any:
    """Every page in docs/results is listed under Results, whatever it is called."""
    pages = sorted((ROOT / "docs" / "results").rglob("*.md"))
    for section in config["nav"]:
        if "Results" in section:
            section["Results"] += [page.relative_to(ROOT / "docs").as_posix() for page in pages]
    return config


def on_files(files: Files, config: Any) -> Files:
    """Files of the repository that a page links to come along: pages link to them as they would on a disk."""
    for page in list(files.documentation_pages()):
        for _, copy, path in _leaving(page.src_uri, page.content_string):
            if files.get_file_from_path(copy) is None:
                files.append(File.generated(config, copy, abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Links that left the folder lead to the copies."""
    up = "../" * page.file.src_uri.count("/")
    for link, copy, _path in _leaving(page.file.src_uri, markdown):
        markdown = markdown.replace(f"]({link}", f"]({up}{copy}")
    return markdown


def _leaving(page: str, text: str) -> Iterator[tuple[str, str, Path]]:
    """Links of a page to files outside docs: as written, where the copy lies, the file."""
    for link in dict.fromkeys(LINK.findall(text)):
        path = (ROOT / "docs" / page).parent.joinpath(link).resolve()
        if path.is_file() and path.is_relative_to(ROOT) and not path.is_relative_to(ROOT / "docs"):
            yield link, normpath(f"{COPIES}/{path.relative_to(ROOT).as_posix()}"), path
