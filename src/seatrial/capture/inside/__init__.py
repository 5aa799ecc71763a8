"""Programs that run in the sandbox; standard library only."""
