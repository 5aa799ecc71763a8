"""Seatrial: did this training run, on this cluster, do what it should?"""

__version__ = "0.2.0"
