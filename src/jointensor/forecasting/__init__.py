"""Forecasts: values of all series at labels that come after the last one of an ordered mode."""

from jointensor.forecasting.evaluate import figures_of_rolling, roll
from jointensor.forecasting.forecaster import Forecaster, fit_forecaster
from jointensor.forecasting.panel import Panel
from jointensor.forecasting.timeline import Timeline, choose_modes, time_modes

__all__ = [
    "Forecaster",
    "Panel",
    "Timeline",
    "choose_modes",
    "figures_of_rolling",
    "fit_forecaster",
    "roll",
    "time_modes",
]
