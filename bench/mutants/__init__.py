"""Logs of runs that never happened, and what can happen to a run or to its log."""
