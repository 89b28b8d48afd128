"""COSTCO against its formulas, number by number, in both layouts of the image."""

import numpy as np
import pytest
import torch

from jointensor.errors import ConfigError
from jointensor.models.joint import JointModel
from jointensor.models.nonlinear import Costco
from tests.models.by_hand import assert_values, linear, n_parameters, random_part, random_rows, relu


def image_by_hand(entry, layout):
    n_modes, width = entry.shape
    if layout == "paper":
        return [[entry[n, r] for n in range(n_modes)] for r in range(width)]
    flat = [number for row in entry for number in row]
    return [flat[r * n_modes : (r + 1) * n_modes] for r in range(width)]


def one_entry(weights, entry, layout="paper", output=relu):
    image = image_by_hand(entry, layout)
    n_modes, width = entry.shape
    over_modes, over_components = weights["over_modes.weight"], weights["over_components.weight"]
    channels = range(len(over_modes))
    looks = [
        [
            relu(sum(over_modes[c, 0, 0, n] * image[r][n] for n in range(n_modes)) + weights["over_modes.bias"][c])
            for r in range(width)
        ]
        for c in channels
    ]
    summary = [
        relu(
            sum(over_components[c, d, r, 0] * looks[d][r] for d in channels for r in range(width))
            + weights["over_components.bias"][c]
        )
        for c in channels
    ]
    hidden = relu(linear(weights, "dense", summary))
    return output(linear(weights, "head", hidden)[0])


@pytest.mark.parametrize("n_modes", [2, 3, 4, 5])
@pytest.mark.parametrize("layout", ["paper", "official"])
@pytest.mark.parametrize("channels", [0, 5])
def test_value_is_the_formula(n_modes, layout, channels):
    part = random_part(Costco, n_modes, 3, layout=layout, channels=channels, output="identity", seed=channels)
    assert_values(part, random_rows(12, n_modes, 3), one_entry, layout=layout, output=lambda x: x)


def test_the_output_is_cut_at_zero_unless_it_is_told_otherwise():
    rows = random_rows(40, 3, 4)
    part, free = random_part(Costco, 3, 4), random_part(Costco, 3, 4, output="identity")
    with torch.no_grad():  # half of the entries are cut
        for each in (part, free):
            each.head.bias.sub_(free(rows).median())
    assert_values(part, rows, one_entry)
    assert 0 < int((part(rows) == 0).sum()) < 40
    torch.testing.assert_close(part(rows), free(rows).clamp(min=0), rtol=0, atol=0)


def test_images_of_the_two_layouts():
    rows = torch.tensor([[[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]])  # three modes, two components
    assert Costco(3, 2).image(rows).tolist() == [[[1, 3, 5], [2, 4, 6]]]
    assert Costco(3, 2, layout="official").image(rows).tolist() == [[[1, 2, 3], [4, 5, 6]]]


def test_the_two_layouts_are_the_same_for_one_component_and_not_for_more():
    for width, same in ((1, True), (3, False)):
        paper = random_part(Costco, 4, width, channels=4, output="identity")
        official = random_part(Costco, 4, width, channels=4, output="identity", layout="official")
        rows = random_rows(9, 4, width)
        assert torch.allclose(paper(rows), official(rows), rtol=1e-12) is same


def test_permuting_components_with_their_filters_leaves_the_papers_layout_unchanged():
    part, rows = random_part(Costco, 3, 4, output="identity"), random_rows(9, 3, 4)
    before, order = part(rows), [2, 0, 3, 1]
    with torch.no_grad():
        part.over_components.weight.copy_(part.over_components.weight[:, :, order])
    torch.testing.assert_close(part(rows[:, :, order]), before, rtol=1e-12, atol=1e-12)
    assert not torch.allclose(part(rows), before)


@pytest.mark.parametrize(("n_modes", "width", "channels"), [(3, 20, 20), (4, 6, 2), (2, 1, 7)])
def test_number_of_parameters(n_modes, width, channels):
    expected = (
        (channels * n_modes + channels)
        + (channels * channels * width + channels)
        + (channels * channels + channels)
        + (channels + 1)
    )
    assert n_parameters(Costco(n_modes, width, channels=channels)) == expected
    assert n_parameters(Costco(n_modes, width, channels=channels, layout="official")) == expected


def test_number_of_parameters_is_what_the_authors_notebook_prints():
    model = JointModel((2321, 5596, 1600), (0, 20), nonlinear="costco,layout=official")
    assert model.n_parameters() == 198_881
    assert n_parameters(model.nonlinear.part) == (60 + 20) + (8_000 + 20) + (400 + 20) + (20 + 1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"layout": "officials"}, "costco: layout 'officials'; did you mean 'official'? known are official, paper"),
        ({"layout": 3}, "costco: layout '3'; known are official, paper"),
        ({"channels": -1}, "costco: channels is -1, it must be a whole number, not negative"),
        ({"channels": 2.5}, "costco: channels is 2.5, it must be a whole number, not negative"),
        ({"channels": True}, "costco: channels is True, it must be a whole number, not negative"),
    ],
)
def test_bad_options_are_refused_by_name(options, message):
    with pytest.raises(ConfigError) as caught:
        Costco(3, 4, **options)
    assert str(caught.value) == message


def test_an_unknown_activation_is_refused_with_the_nearest():
    with pytest.raises(ConfigError, match="activation 'rel': did you mean 'relu'"):
        Costco(3, 4, output="rel")


def test_an_unknown_option_is_refused_with_the_nearest():
    with pytest.raises(ConfigError) as caught:
        JointModel((3, 4), (0, 2), nonlinear="costco,channel=3")
    assert str(caught.value) == (
        "nonlinear part 'costco' has no option 'channel'; did you mean 'channels'? known are channels, layout, output"
    )


def test_image_of_a_batch_is_that_of_its_entries():
    rows = random_rows(4, 3, 5)
    for layout in ("paper", "official"):
        found = Costco(3, 5, layout=layout).image(rows).numpy()
        np.testing.assert_array_equal(found, [image_by_hand(entry, layout) for entry in rows.numpy()])
