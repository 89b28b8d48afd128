"""Docstrings name things by Sphinx roles, which editors follow; on the site they become links."""

from __future__ import annotations

import re
from typing import Any

import griffe

ROLE = re.compile(r":(?:class|func|meth|mod|attr|data):`(~?)([\w.]+)`")


def to_markdown(text: str) -> str:
    """Roles as links to where the thing is described, or as code where it is not; ``::`` as one colon.

    >>> to_markdown("see :func:`~jointensor.fit`")
    'see <autoref identifier="jointensor.fit" optional>`fit`</autoref>'
    """

    def link(found: re.Match[str]) -> str:
        short, name = found.groups()
        shown = name.rsplit(".", 1)[-1] if short else name
        return f'<autoref identifier="{name}" optional>`{shown}`</autoref>'

    return re.sub(r"::$", ":", ROLE.sub(link, text), flags=re.MULTILINE)


class Roles(griffe.Extension):
    """Applies :func:`to_markdown` to every docstring."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Called once for each module, class, function and attribute."""
        if obj.docstring is not None:
            obj.docstring.value = to_markdown(obj.docstring.value)
