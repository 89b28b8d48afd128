"""Every number that decides what a report shows and how it is drawn."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ReportSettings:
    """Numbers of the page; sizes are in pixels, shares and ratios have no unit."""

    # --- what is computed
    max_error_entries: int = 2_000_000
    """Test entries whose errors are computed."""
    max_interval_entries: int = 200_000
    """Test entries whose intervals are computed."""
    max_sampled_density: float = 0.001
    """Share of observed cells up to which cells missing in a sample are taken to be missing."""
    levels: tuple[float, ...] = (0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
    """Levels of the intervals whose coverage is shown."""
    cell_level: float = 0.9
    """Level of the intervals of missing cells; the page names it in words."""

    # --- how much is shown
    histogram_bins: int = 30
    max_curve_points: int = 400
    """Points of a curve along a mode or over epochs: enough for the days of a year, one by one."""
    max_error_points: int = 60
    """Points of a curve of errors, each over several labels."""
    max_scatter_points: int = 600
    """Test entries that are drawn as points."""
    top_labels: int = 8
    """Labels that are named per mode."""
    min_label_entries: int = 5
    """Test entries of a label below which its error is not shown: it would be chance."""
    sampled_cells: int = 12
    """Missing cells that are shown with their predictions."""
    components_shown: int = 6
    """Components that are shown without a click; the others can be unfolded."""
    max_components: int = 24
    """Components in the report, the largest: a mixture may have hundreds, and a page with all of them is slow."""
    min_series_entries: int = 20
    """Values along time that a series needs to be drawn."""
    min_series_share: float = 0.1
    """The same as a share of the places in time."""
    well_observed_share: float = 0.5
    """Share of the values of the best observed series from which a series is well observed: its gaps are shown."""
    gappy_series: int = 2
    """Series that are shown because of their gaps."""
    max_series_points: int = 120
    """Places in time that are drawn of a series, of a long one a stretch: each has a few pixels then."""
    max_band_ratio: float = 1.0
    """How far intervals are drawn beyond the values, as a multiple of the range of these."""
    max_error_ratio: float = 5
    """Models whose error exceeds the least so many times are not drawn: they would hide the others."""

    # --- axes
    log_count_ratio: float = 50
    """An axis of counts is logarithmic if the largest exceeds the median so many times."""
    log_loss_ratio: float = 8
    """The axis of a learning curve is logarithmic if the largest loss exceeds the least so many times."""
    log_zero: float = 0.5
    """Where a count of zero is drawn on a logarithmic axis."""
    max_log_ticks: int = 6
    """Ticks along a logarithmic axis."""
    min_shown_level: float = 0.4
    """Where the axes of coverage begin: below the lowest level."""

    edge_share: float = 0.04
    """Room above and below the values of a series, as a share of their range."""

    # --- sizes
    plot_size: tuple[int, int] = (320, 200)
    """Of a plot in a row of three: about its size on the screen, so that text keeps its size."""
    wide_plot_size: tuple[int, int] = (400, 220)
    """Of a plot in a row of two."""
    component_height: int = 140
    """Height of the plots of components."""
    quarter_width: int = 240
    """Width of the plots of components in a row of four."""
    max_square: float = 8.0
    """Side of the squares of a mask."""
    margins: tuple[int, int, int, int] = (46, 12, 22, 34)
    """Left, right, top, bottom: room for the labels of the axes; to the left there is more where they need it."""
    letter_width: float = 7.2
    """Width of a letter, rounded up so that labels never overlap."""
    max_label_share: float = 0.45
    """Share of the width that labels may take beside their bars; longer labels are put above them."""
    max_axis_label: int = 16
    """Letters of a label on an axis."""


SETTINGS = ReportSettings()
