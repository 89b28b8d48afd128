"""Parts by name: registered, installed, misspelt."""

import sys

import pytest

from jointensor.errors import ConfigError
from jointensor.registry import Registry, check_options, nearest, parse_spec


@pytest.fixture
def shapes():
    registry = Registry("shape", "jointensor_tests.shapes")

    @registry.register("circle")
    class Circle:
        pass

    @registry.register("square")
    class Square:
        pass

    return registry


@pytest.fixture
def _installed(tmp_path, monkeypatch):
    """A package on the path that brings a shape of its own."""
    (tmp_path / "hexagons.py").write_text("class Hexagon:\n    sides = 6\n", encoding="utf-8")
    info = tmp_path / "hexagons-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: hexagons\nVersion: 1.0\n", encoding="utf-8")
    (info / "entry_points.txt").write_text("[jointensor_tests.shapes]\nhexagon = hexagons:Hexagon\n", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    yield
    sys.modules.pop("hexagons", None)


def test_registered_parts_are_found_by_name(shapes):
    assert shapes.names() == ["circle", "square"]
    assert shapes.find("circle").__name__ == "Circle"
    assert shapes.name_of(shapes.find("square")) == "square"


@pytest.mark.usefixtures("_installed")
def test_parts_of_installed_packages_are_found_by_name(shapes):
    assert shapes.names() == ["circle", "hexagon", "square"]
    assert "hexagons" not in sys.modules
    found = shapes.find("hexagon")
    assert found.sides == 6
    assert shapes.find("hexagon") is found
    assert shapes.name_of(found) == "hexagon"


def test_an_unknown_name_is_refused_with_the_nearest_one(shapes):
    with pytest.raises(
        ConfigError, match="there is no shape 'cirle'; did you mean 'circle'\\? known are circle, square"
    ):
        shapes.find("cirle")
    with pytest.raises(ConfigError) as caught:
        shapes.find("zzz")
    assert str(caught.value) == "there is no shape 'zzz'; known are circle, square"


def test_a_name_is_given_once(shapes):
    circle = shapes.find("circle")
    assert shapes.register("circle")(circle) is circle
    with pytest.raises(ConfigError, match="there is already a shape called 'circle'"):
        shapes.register("circle")(int)
    assert shapes.find("circle") is circle


def test_a_class_that_was_never_registered_is_named_by_its_path(shapes):
    assert shapes.name_of(Registry) == "jointensor.registry:Registry"


@pytest.mark.parametrize(
    ("text", "name", "options"),
    [
        ("julia", "julia", {}),
        (" julia , hidden = 64 ", "julia", {"hidden": 64}),
        (
            "f,a=1.5,b=true,c=False,d=None,e=-2,f=x",
            "f",
            {"a": 1.5, "b": True, "c": False, "d": None, "e": -2, "f": "x"},
        ),
        ("f,path=a=b", "f", {"path": "a=b"}),
        ("f,empty=", "f", {"empty": ""}),
    ],
)
def test_specs_are_a_name_and_literals(text, name, options):
    assert parse_spec(text) == (name, options)
    assert [type(value) for value in parse_spec(text)[1].values()] == [type(value) for value in options.values()]


def test_a_spec_does_not_run_code(tmp_path):
    target = tmp_path / "made"
    text = f"f,a=__import__('pathlib').Path('{target}').touch()"
    assert parse_spec(text)[1]["a"].startswith("__import__")
    assert not target.exists()


@pytest.mark.parametrize("text", ["julia,gate", "julia,", "julia,,a=1"])
def test_options_without_a_value_are_refused(text):
    with pytest.raises(ConfigError, match="is not an option; write NAME,key=value"):
        parse_spec(text)


def test_options_that_a_part_does_not_take_are_refused_with_the_nearest_one():
    def part(size, *, colour="red", weight=1):
        return size, colour, weight

    check_options(part, {"colour": "blue", "weight": 2}, "part 'p'")
    with pytest.raises(ConfigError, match="part 'p' has no option 'color'; did you mean 'colour'"):
        check_options(part, {"color": "blue"}, "part 'p'")
    with pytest.raises(ConfigError, match="no option 'size'"):
        check_options(part, {"size": 3}, "part 'p'")


def test_hints_name_the_closest_word_and_all_of_them():
    assert nearest("bais", ["mean", "bias"]) == "did you mean 'bias'? known are bias, mean"
    assert nearest("xyz", []) == "known are none"
    assert nearest(3, ["relu"]) == "known are relu"
