"""What can be said before anything runs: FLOPs, memory, step time, and the published speeds to compare with."""
