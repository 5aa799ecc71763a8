"""Runs plans: here, over SSH, under Slurm or on Kubernetes. Each is a target, which is a module of this package.

A new target is a module with the functions of `targets.Target`, and a row in `targets.TARGETS`:

- `site` returns the hosts, or stand-ins for hosts that are not known yet; None means this machine.
- `run` starts a plan and returns its `Ending`. It calls `launcher.launch` with a `begin` that starts
  `node/agent.py` with a job on each host and returns a `follow.Node` for each: its status, whether its agent has ended,
  and how to stop it. Where files of a host arrive late, or a host can fall silent, its Node overrides the defaults.
  Beside the Nodes, `begin` returns a `follow.Queue` where hosts are allotted and taken away, else None.
- `attach` does the same for a run that another process started, with `launcher.supervise`. It finds the run by a record
  that `run` left in `launch/` (`record.read_record`). A target whose runs end with their launcher raises InputError.
- `stop` asks a run to stop, from any process that has the run directory.
- `restarts`, `without` and `KNOWS_ITS_HOSTS` say what retries and preflight can rely on.

Options that only the new target has are rows of `targets._ONLY_FOR`. Launching, following, deadlines, endings and the
live display are the same for all targets, and so are the files of the run directory.
"""
