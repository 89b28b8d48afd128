"""The page of promises names tests that are there."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "invariants.md"


def test_every_test_that_the_page_names_is_there():
    named = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", PAGE.read_text(encoding="utf-8"))
    assert len(named) > 40
    for file, test in named:
        assert (ROOT / file).exists(), file
        assert not test or f"def {test}(" in (ROOT / file).read_text(encoding="utf-8"), f"{file}::{test}"


def test_every_kind_of_case_that_the_page_names_is_in_the_soak():
    from tests.soak.run import KINDS

    named = [
        kind
        for group in re.findall(r"soak: ([\w, ]+) \|", PAGE.read_text(encoding="utf-8"))
        for kind in group.split(", ")
    ]
    assert named
    assert set(named) <= set(KINDS)
