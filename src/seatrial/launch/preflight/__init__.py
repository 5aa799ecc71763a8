"""Can these hosts run it: what a run needs, what the hosts answer, and what follows from both."""
