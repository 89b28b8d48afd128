"""Forecasts: values of all series at labels that come after the last one of an ordered mode."""

from jointensor.forecasting.evaluate import roll
from jointensor.forecasting.forecaster import Forecaster, fit_forecaster
from jointensor.forecasting.panel import Panel
from jointensor.forecasting.timeline import Timeline, choose_modes, time_modes

__all__ = ["Forecaster", "Panel", "Timeline", "choose_modes", "fit_forecaster", "roll", "time_modes"]
