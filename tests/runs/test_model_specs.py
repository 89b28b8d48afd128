"""Models by name: what a name stands for, how many numbers it learns, and what is said of a wrong one."""

import re
from dataclasses import fields

import pytest
import torch
from torch import nn

from jointensor.errors import ConfigError
from jointensor.models.nonlinear import Nonlinear, nonlinear_parts
from jointensor.runs.model_specs import ModelSpec, parse_model, parse_models
from jointensor.training.recipe import Recipe

SHAPE = (5, 4, 3)
LABELS = sum(SHAPE)  # of all modes together: a factor matrix of K columns per mode has K of each
N = len(SHAPE)
FIELDS = [field.name for field in fields(Recipe)]


class Own(nn.Module):
    """A network of a user's own, a plain torch module."""

    def __init__(self, n_modes, width, *, power=1.0):
        super().__init__()
        self.layer = nn.Linear(n_modes * width, 1)
        self.power = power

    def forward(self, rows):
        return self.power * self.layer(rows.flatten(1)).squeeze(-1)


class Fifteen(Nonlinear):
    """A network of a user's own that says how wide it likes to be."""

    total_rank = 15

    def forward(self, rows):
        return rows.sum(dim=(1, 2))


@pytest.fixture
def registry(monkeypatch):
    """The registry as it is, back as it was afterwards."""
    monkeypatch.setattr(nonlinear_parts, "_classes", dict(nonlinear_parts._classes))
    return nonlinear_parts


def refusal(text, shape=None):
    """What is said when a model is refused, by its name alone or for a tensor of a shape."""
    attempt = parse_model if shape is None else lambda name: parse_model(name).make(shape)
    with pytest.raises(ConfigError) as caught:
        attempt(text)
    return str(caught.value)


def parameters(text, shape=SHAPE):
    return parse_model(text).make(shape).n_parameters()


def layer(inside, outside):
    """Numbers of a dense layer."""
    return inside * outside + outside


def costco(k, c=None):
    c = c or k
    over_modes, over_components = layer(N, c), layer(c * k, c)
    return over_modes + over_components + layer(c, c) + layer(c, 1)


def avocado(k):
    return layer(N * k, N**2 * k) + layer(N**2 * k, k) + layer(k, 1)


def julia(k):
    return layer(N * k, k**2) + layer(k**2, k) + k + layer(k, 1)  # a gate of k numbers


def mlp(k):
    return layer(N * k, N * k) + layer(N * k, N * k // 2) + layer(N * k // 2, 1)


def neptune(k):
    return k**N + 2 * (2 * k) + layer(1, 1)  # a core, two normalisations with scale and shift, the output


def neurtn(k):
    return layer(N * k, N**2 * k) + layer(N**2 * k, k) + layer(k, 1)


@pytest.mark.parametrize("name", ["mean", "bias", "tables", "interp"])
def test_baselines_are_taken_by_their_bare_name(name):
    assert parse_model(name) == ModelSpec(name, baseline=name)


@pytest.mark.parametrize(
    ("text", "rank", "linear", "nonlinear"),
    [
        ("cp:7", (7, 0), None, "julia"),
        ("cp", (20, 0), None, "julia"),
        ("tucker:7", (0, 0), "tucker:7", "julia"),
        ("tucker:7x2x3", (0, 0), "tucker:7x2x3", "julia"),
        ("tucker", (0, 0), "tucker:20", "julia"),
        ("costco:7", (0, 7), None, "costco"),
        ("costco", (0, 20), None, "costco"),
        ("avocado:7", (0, 7), None, "avocado"),
        ("avocado", (0, 20), None, "avocado"),
        ("neptune", (0, 20), None, "neptune"),
        ("mlp", (0, 20), None, "mlp"),
        ("neurtn:7", (0, 7), None, "neurtn"),
        ("neurtn", (0, 10), None, "neurtn"),
        ("julia:3/5", (3, 5), None, "julia"),
        ("julia", (4, 16), None, "julia"),
        ("julia:0/5", (0, 5), None, "julia"),
        ("julia:5/0", (5, 0), None, "julia"),
        ("julia-costco:3/5", (3, 5), None, "costco"),
        ("julia-costco", (4, 16), None, "costco"),
        ("julia-avocado", (4, 16), None, "avocado"),
        ("julia-neurtn:3/5", (3, 5), None, "neurtn"),
        ("julia-neurtn", (2, 8), None, "neurtn"),
    ],
)
def test_a_name_stands_for_a_rank_and_two_halves(text, rank, linear, nonlinear):
    assert parse_model(text) == ModelSpec(text, rank=rank, linear=linear, nonlinear=nonlinear)


def test_options_go_to_the_network_to_the_recipe_or_to_the_multilinear_half():
    text = "julia-costco:4/16,layout=official,rounds=5,start=raw,channels=3,linear=mean+cp:2"
    spec = parse_model(text)
    assert spec.text == text
    assert spec.nonlinear == "costco,layout=official,channels=3"
    assert spec.recipe_changes == {"rounds": 5, "start": "raw"}
    assert spec.linear == "mean+cp:2"
    model = spec.make(SHAPE)
    assert model.nonlinear.part.options == {"layout": "official", "channels": 3, "output": "relu"}
    assert list(model.multilinear.blocks) == ["mean", "cp"]
    assert model.n_parameters() == 1 + 2 * LABELS + 16 * LABELS + costco(16, 3)


@pytest.mark.parametrize("text", ["cp:2,lr_linear=0.1", "tucker:2,lr_linear=0.1", "mlp:2,lr_linear=0.1"])
def test_recipe_fields_are_options_of_every_trained_model(text):
    assert parse_model(text).recipe_changes == {"lr_linear": 0.1}


def test_a_models_own_recipe_comes_after_what_all_models_share():
    spec = parse_model("julia:2/3,rounds=5")
    assert spec.recipe("paper", rounds=2, batch_size=64) == Recipe(rounds=5, batch_size=64)
    assert parse_model("julia:2/3").recipe("paper", rounds=2) == Recipe(rounds=2)


def test_a_part_alone_may_have_a_multilinear_half_spelled_out():
    model = parse_model("avocado:2,linear=bias+tucker:2").make(SHAPE)
    assert model.n_parameters() == LABELS + (2 * LABELS + 2**N) + 2 * LABELS + avocado(2)


def test_a_registered_part_is_a_model_alone_and_inside_julia(registry):
    registry.register("own")(Own)
    assert parse_model("own:6").rank == (0, 6)
    assert parse_model("own").rank == (0, 20)
    assert parse_model("julia-own").rank == (4, 16)
    spec = parse_model("julia-own:2/6,power=2.5,rounds=3")
    assert (spec.rank, spec.nonlinear, spec.recipe_changes) == ((2, 6), "own,power=2.5", {"rounds": 3})
    model = spec.make(SHAPE)
    assert isinstance(model.nonlinear.part, Own)
    assert model.nonlinear.part.power == 2.5
    assert model.n_parameters() == (2 + 6) * LABELS + layer(N * 6, 1)
    assert refusal("julia-own,pover=2") == (
        f"'julia-own,pover=2': there is no option 'pover'; did you mean 'power'? "
        f"known are {', '.join(sorted(['power', 'linear', *FIELDS]))}"
    )


def test_a_registered_part_says_itself_how_wide_it_is_where_nothing_is_given(registry):
    registry.register("fifteen")(Fifteen)
    assert parse_model("fifteen").rank == (0, 15)
    assert parse_model("julia-fifteen").rank == (3, 12)


def test_a_registered_part_whose_name_only_begins_like_julia_is_a_part(registry):
    registry.register("juliana")(Own)
    assert parse_model("juliana:6").rank == (0, 6)
    assert parse_model("julia-juliana:2/6").rank == (2, 6)


def test_an_unknown_name_is_refused_with_the_nearest_one_and_all_of_them():
    begin = "there is no model 'cotsco'; did you mean 'costco'? known are "
    message = refusal("cotsco:20")
    assert message.startswith(begin)
    known = message.removeprefix(begin).split(", ")
    assert known == sorted(known)
    parts = {"avocado", "costco", "mlp", "neptune", "neurtn"}
    assert set(known) >= {"mean", "bias", "tables", "interp", "cp", "tucker", "julia", *parts} | {
        f"julia-{part}" for part in parts
    }
    assert "julia-julia" not in known
    assert refusal("julia-cotsco").startswith("there is no model 'julia-cotsco'; did you mean 'julia-costco'? ")
    assert refusal("julia-julia").startswith("there is no model 'julia-julia'; did you mean 'julia")
    assert refusal("").startswith("there is no model ''; known are ")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("julia:20", "'julia:20': a joint model needs R/F, two whole numbers such as julia:4/16"),
        ("julia-costco:20", "'julia-costco:20': a joint model needs R/F, two whole numbers such as julia:4/16"),
        ("julia:4/16/2", "'julia:4/16/2': a joint model needs R/F, two whole numbers such as julia:4/16"),
        ("julia:-4/16", "'julia:-4/16': a joint model needs R/F, two whole numbers such as julia:4/16"),
        ("julia:4/1.5", "'julia:4/1.5': a joint model needs R/F, two whole numbers such as julia:4/16"),
        ("julia:four/16", "'julia:four/16': a joint model needs R/F, two whole numbers such as julia:4/16"),
        ("julia:4/", "'julia:4/': a joint model needs R/F, two whole numbers such as julia:4/16"),
        (
            "costco:4/16",
            "'costco:4/16': costco alone has one width, such as costco:20; with R/F it is julia-costco:4/16",
        ),
        ("costco:0", "'costco:0': write the width as a whole number of at least 1, such as costco:20"),
        ("costco:-3", "'costco:-3': write the width as a whole number of at least 1, such as costco:20"),
        ("costco:wide", "'costco:wide': write the width as a whole number of at least 1, such as costco:20"),
        ("costco:2.5", "'costco:2.5': write the width as a whole number of at least 1, such as costco:20"),
        ("cp:0", "'cp:0': write the rank as a whole number of at least 1, such as cp:20"),
        ("cp:-1", "'cp:-1': write the rank as a whole number of at least 1, such as cp:20"),
        ("cp:two", "'cp:two': write the rank as a whole number of at least 1, such as cp:20"),
        ("cp:2x2", "'cp:2x2': write the rank as a whole number of at least 1, such as cp:20"),
        ("cp:4/16", "'cp:4/16': write the rank as a whole number of at least 1, such as cp:20"),
        (
            "tucker:0",
            "'tucker:0': write the rank as a whole number of at least 1, such as tucker:20 or tucker:20x5x20",
        ),
        (
            "tucker:2x0x2",
            "'tucker:2x0x2': write the rank as a whole number of at least 1, such as tucker:20 or tucker:20x5x20",
        ),
        (
            "tucker:4/16",
            "'tucker:4/16': write the rank as a whole number of at least 1, such as tucker:20 or tucker:20x5x20",
        ),
        ("mean:3", "'mean:3': mean is a baseline and takes neither size nor options; write mean"),
        ("bias,rounds=3", "'bias,rounds=3': bias is a baseline and takes neither size nor options; write bias"),
        ("tables:2/3", "'tables:2/3': tables is a baseline and takes neither size nor options; write tables"),
        ("cp:2,rounds", "'rounds' in 'cp:2,rounds' is not an option; write NAME,key=value,key=value"),
    ],
)
def test_a_wrong_size_is_refused_with_a_right_one(text, message):
    assert refusal(text) == message


def test_an_option_that_neither_network_nor_recipe_has_is_refused_with_the_nearest_one():
    known = ", ".join(sorted(["layout", "channels", "output", "linear", *FIELDS]))
    for text in ("costco:4,layuot=paper", "julia-costco:4/16,layuot=paper"):
        assert refusal(text) == f"'{text}': there is no option 'layuot'; did you mean 'layout'? known are {known}"
    text, known = "cp:4,roudns=3", ", ".join(sorted(FIELDS))
    assert refusal(text) == f"'{text}': there is no option 'roudns'; did you mean 'rounds'? known are {known}"
    assert refusal("costco:4,width=3").startswith("'costco:4,width=3': there is no option 'width'; ")
    assert refusal("cp:4,linear=bias").startswith("'cp:4,linear=bias': there is no option 'linear'; ")
    assert refusal("cp:4,layout=paper").startswith("'cp:4,layout=paper': there is no option 'layout'; ")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("costco:4,batch_size=-1", "recipe: batch_size is -1, it must not be negative"),
        ("costco:4,epochs_per_turn=0", "recipe: epochs_per_turn is 0, it must be at least 1"),
        ("julia:2/3,rounds=-1", "recipe: rounds is -1, it must not be negative"),
        ("cp:2,lr_linear=fast", "recipe: lr_linear is 'fast', it must be a number"),
        ("tucker:2,restarts=0.5", "recipe: restarts is 0.5, it must be a whole number"),
        ("cp:2,start=date", "recipe: start 'date'; did you mean 'data'? known are data, raw"),
        (
            "cp:2,loss=sqared",
            "there is no loss 'sqared'; did you mean 'squared'? known are absolute, huber, kl, squared",
        ),
    ],
)
def test_a_value_that_a_recipe_does_not_take_is_refused_with_the_model_it_was_given_for(text, reason):
    assert refusal(text) == f"'{text}': {reason}"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("costco:4,layout=offical", "costco: layout 'offical'; did you mean 'official'? known are official, paper"),
        ("julia,gate=sigmod", "julia: gate 'sigmod'; did you mean 'sigmoid'? known are free, sigmoid"),
        ("julia-costco,channels=-1", "costco: channels is -1, it must be a whole number, not negative"),
        ("tucker:2x2", "tucker:2x2 has 2 ranks, the tensor 3 modes; give one rank, or one per mode"),
        ("tucker:2x2x4", "tucker: rank 4 of mode 3 is more than its 3 labels"),
        (
            "neurtn:100,interaction=outer",
            "neurtn of width 100 makes 1,000,000 products of 3 modes, more than 200,000; "
            "give at most width 58, or interaction=none",
        ),
    ],
)
def test_a_model_that_cannot_be_made_is_refused_by_the_name_it_was_typed_with(text, reason):
    assert refusal(text, SHAPE) == f"model '{text}': {reason}"


def test_nothing_to_fit_is_refused():
    assert refusal("julia:0/0", SHAPE).startswith("model 'julia:0/0': rank 0/0 leaves nothing to fit; ")
    assert parameters("julia:0/0,linear=cp:2") == 2 * LABELS


def test_an_unknown_block_is_refused_as_soon_as_it_is_read():
    expected = "'julia:2/3,linear=pc:2': there is no multilinear block 'pc'; known are bias, cp:R, cyclic:A, fm:K"
    with pytest.raises(ConfigError, match=re.escape(expected)):
        parse_model("julia:2/3,linear=pc:2")


def test_a_number_for_the_multilinear_half_is_refused_like_any_other_wrong_block():
    text = "julia:4/16,linear=5"
    with pytest.raises(ConfigError, match=re.escape(f"'{text}'")):
        parse_model(text).make(SHAPE)


def test_a_comparison_has_at_least_one_model_and_none_twice():
    with pytest.raises(ConfigError) as caught:
        parse_models([])
    assert str(caught.value) == "name at least one model, such as: mean bias cp:20 julia:4/16"
    with pytest.raises(ConfigError) as caught:
        parse_models(["mean", "cp:2", "julia:2/3", "cp:2"])
    assert str(caught.value) == "model 'cp:2' is named twice"
    assert [spec.text for spec in parse_models(["cp:2", "cp:3", "cp:2,rounds=1"])] == ["cp:2", "cp:3", "cp:2,rounds=1"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("cp:2", 2 * LABELS),
        ("tucker:2", 2 * LABELS + 2**3),
        ("tucker:2x3x1", (5 * 2 + 4 * 3 + 3 * 1) + 2 * 3 * 1),
        ("tucker:20", (5 * 5 + 4 * 4 + 3 * 3) + 5 * 4 * 3),  # no mode has more components than labels
        ("costco:4", 4 * LABELS + costco(4)),
        ("costco:4,channels=7", 4 * LABELS + costco(4, 7)),
        ("avocado:4", 4 * LABELS + avocado(4)),
        ("mlp:4", 4 * LABELS + mlp(4)),
        ("neptune:4", 4 * LABELS + neptune(4)),
        ("neurtn:4", 4 * LABELS + neurtn(4)),
        ("julia:0/4", 4 * LABELS + julia(4)),
        ("julia:2/4", (2 + 4) * LABELS + julia(4)),
        ("julia-costco:2/4", (2 + 4) * LABELS + costco(4)),
        ("julia-avocado:2/4", (2 + 4) * LABELS + avocado(4)),
        ("julia-mlp:2/4", (2 + 4) * LABELS + mlp(4)),
        ("julia-neptune:2/4", (2 + 4) * LABELS + neptune(4)),
        ("julia-neurtn:2/4", (2 + 4) * LABELS + neurtn(4)),
    ],
)
def test_parameters_are_those_counted_by_hand(text, expected):
    assert parameters(text) == expected


@pytest.mark.parametrize("part", ["avocado", "costco", "julia", "mlp", "neptune", "neurtn"])
def test_julia_of_the_same_total_rank_has_the_smaller_network(part):
    alone = parse_model("julia:0/20" if part == "julia" else f"{part}:20").make(SHAPE)
    joint = parse_model("julia:4/16" if part == "julia" else f"julia-{part}:4/16").make(SHAPE)
    network, smaller = (sum(p.numel() for p in model.nonlinear.part.parameters()) for model in (alone, joint))
    assert smaller < network
    assert joint.n_parameters() < alone.n_parameters()
    factors = [sum(t.shape[1] for t in model.linear_factors + model.nonlinear_factors) for model in (alone, joint)]
    assert factors == [20 * N, 20 * N]  # what is saved is saved in the network
    assert all(torch.isfinite(p).all() for p in joint.nonlinear.part.parameters())
