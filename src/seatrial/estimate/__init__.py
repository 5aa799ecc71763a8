"""Estimates before anything runs: FLOPs, memory and step time; and published speeds to compare with."""
