"""The table of what a fit from disk refuses: every row refuses what it names, and nothing else does."""

import re
from pathlib import Path

import pytest

from jointensor.errors import ConfigError
from jointensor.models.blocks import KINDS
from jointensor.training.from_disk import REFUSALS, Request, check_from_disk, refused_options
from jointensor.training.recipe import make_recipe

DEFAULT = make_recipe("default")
DOCS = Path(__file__).parents[2] / "docs" / "howto" / "large.md"

GIVEN = {
    "search": ("--rank auto", Request("", DEFAULT, searches=True)),
    "split": ("--split time:day", Request("cp:2", DEFAULT, split="time:day")),
    "block": ("block 'tucker'", Request("mean+tucker:2", DEFAULT)),
    "gibbs": ("linear_solver=gibbs", Request("cp:2", make_recipe("default", linear_solver="gibbs"))),
    "huber": ("loss=huber", Request("cp:2", make_recipe("default", loss="huber"))),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_a_refusal_names_the_option_the_reason_and_the_alternative(name):
    option, request = GIVEN[name]
    reason, instead = REFUSALS[name]
    with pytest.raises(ConfigError, match=f"^{re.escape(option)} needs all entries in memory: ") as error:
        check_from_disk(request)
    assert reason in str(error.value)
    assert f"; {instead}, or fit without --memory" in str(error.value)
    assert refused_options(request) == {name: option}


def test_all_refusals_are_documented():
    text = DOCS.read_text(encoding="utf-8")
    for option, _ in GIVEN.values():
        word = option.split("'")[1] if option.startswith("block") else option.partition(":")[0]
        assert f"`{word}" in text, word


def test_blocks_may_name_modes_and_those_that_do_not_stream_are_refused():
    forms = {"tables": "tables", "local": "local:day", "implicit": "fm:2+implicit:user/movie", "tucker": "tucker:2"}
    assert set(forms) == {name for name, kind in KINDS.items() if not kind.streamable}
    for name, spec in forms.items():
        with pytest.raises(ConfigError, match=f"^block '{name}' needs all entries in memory"):
            check_from_disk(Request(f"cp:2+{spec}", DEFAULT))


@pytest.mark.parametrize(
    "request_",
    [
        Request("mean+bias+cp:2+pairs:2+fm:2+smooth:day+cyclic:hour", DEFAULT),
        Request("", make_recipe("paper", loss="huber")),
        Request("cp:2", DEFAULT, split="first:100"),
    ],
)
def test_everything_else_is_accepted(request_):
    check_from_disk(request_)
