"""Write docs/reference/cli.md from the command line itself: ``python docs/_site/cli_page.py``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer.main

from jointensor.cli.app import app

PAGE = Path(__file__).resolve().parents[1] / "reference" / "cli.md"
HEAD = """# The command line

Written from the program itself by `make docs`; `jointensor COMMAND --help` says the same.
Results go to stdout, notes and progress to stderr. Exit codes: 0 done, 1 failed, 2 wrong usage.
"""


def cli_page() -> str:
    """The page: every command with its arguments and options."""
    return HEAD + "\n" + "\n".join(_command(typer.main.get_command(app), "jointensor"))


def _command(command: Any, name: str) -> Iterator[str]:
    yield f"## {name}\n"
    yield " ".join((command.help or "").split()) + "\n"
    context = command.context_class(command, info_name=name)
    records = [one.get_help_record(context) for one in command.params if one.name != "help"]
    if any(records):
        yield "| | |\n|---|---|"
        yield "\n".join(f"| {_code(shown)} | {_escaped(text)} |" for shown, text in filter(None, records)) + "\n"
    for word, inner in getattr(command, "commands", {}).items():
        yield from _command(inner, f"{name} {word}")


def _code(text: str) -> str:
    """An option as code; its brackets only say that it may be left out, which its default says too."""
    return f"`{text.strip('[]').replace('|', '/')}`"


def _escaped(text: str) -> str:
    for sign in "|<*[":
        text = text.replace(sign, "\\" + sign)
    return " ".join(text.split())


if __name__ == "__main__":
    PAGE.write_text(cli_page(), encoding="utf-8")
