"""Makes a run small enough for this machine: a rehearsal, or only a smaller mesh. Pure."""
