"""Say how long programs take on a described device, and what bounded every command."""

from dielet.simulator.api import simulate
from dielet.simulator.predict import Prediction, predict
from dielet.simulator.timing import Timing, simulate_program

__all__ = ["Prediction", "Timing", "predict", "simulate", "simulate_program"]
