"""Checks of the hosts before a run: what the run needs, what the hosts answer, and what follows."""
