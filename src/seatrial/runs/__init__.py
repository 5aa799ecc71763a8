"""Run directories: which files stand where, how they are written safely, whether a run goes on, its telemetry."""
