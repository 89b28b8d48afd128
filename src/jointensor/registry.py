"""Parts by name: built in, registered by a decorator, or brought by an installed package.

A part is given as an instance, a class, or text like ``"julia,gate=sigmoid"``.
"""

from __future__ import annotations

import ast
import difflib
import inspect
from collections.abc import Callable, Iterable
from importlib.metadata import entry_points
from typing import Any

from jointensor.errors import ConfigError


def nearest(word: object, known: Iterable[str]) -> str:
    """A hint that names the closest known word and all of them."""
    known = sorted(known)
    close = difflib.get_close_matches(str(word), known, n=1)
    return (f"did you mean '{close[0]}'? " if close else "") + f"known are {', '.join(known) or 'none'}"


class Registry:
    """Classes of one kind, found by name."""

    def __init__(self, kind: str, group: str) -> None:
        self.kind = kind
        self.group = group
        self._classes: dict[str, type] = {}

    def register(self, name: str) -> Callable[[type], type]:
        """Class decorator that makes a part known by ``name``."""

        def add(part: type) -> type:
            if self._classes.get(name, part) is not part:
                raise ConfigError(f"there is already a {self.kind} called '{name}'")
            self._classes[name] = part
            return part

        return add

    def names(self) -> list[str]:
        """All known names, those of installed packages included."""
        return sorted({*self._classes, *(point.name for point in entry_points(group=self.group))})

    def find(self, name: str) -> type:
        """The class called ``name``."""
        if name not in self._classes:
            for point in entry_points(group=self.group, name=name):
                try:
                    self._classes[name] = point.load()
                except (ImportError, AttributeError, SyntaxError) as error:
                    raise ConfigError(f"the {self.kind} '{name}' of {point.value} cannot be loaded: {error}") from error
        if name not in self._classes:
            raise ConfigError(f"there is no {self.kind} '{name}'; {nearest(name, self.names())}")
        return self._classes[name]

    def name_of(self, part: type) -> str:
        """The name of a class; its import path where it was never registered."""
        names = [name for name, known in self._classes.items() if known is part]
        return names[0] if names else f"{part.__module__}:{part.__qualname__}"


def parse_spec(text: str) -> tuple[str, dict[str, Any]]:
    """Name and options of ``"NAME,key=value,…"``.

    >>> parse_spec("julia,gate=sigmoid,hidden=64")
    ('julia', {'gate': 'sigmoid', 'hidden': 64})
    """
    name, *pairs = (piece.strip() for piece in text.split(","))
    options = {}
    for pair in pairs:
        key, sign, value = pair.partition("=")
        if not sign:
            raise ConfigError(f"'{pair}' in '{text}' is not an option; write NAME,key=value,key=value")
        options[key.strip()] = parse_value(value.strip())
    return name, options


def check_options(part: Callable[..., Any], options: dict[str, Any], what: str) -> None:
    """Refuse options that ``part`` does not take, naming the nearest one it does."""
    takes = option_names(part)
    for key in options:
        if key not in takes:
            raise ConfigError(f"{what} has no option '{key}'; {nearest(key, takes)}")


def option_names(part: Callable[..., Any]) -> list[str]:
    """The options of a part: its parameters that are keyword-only or have a default."""
    parameters = inspect.signature(part).parameters.values()
    return [
        p.name
        for p in parameters
        if p.kind is p.KEYWORD_ONLY or (p.kind is p.POSITIONAL_OR_KEYWORD and p.default is not p.empty)
    ]


def parse_value(text: str) -> Any:
    """A value as it is typed: a number, true or false where it is one, else text."""
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text
