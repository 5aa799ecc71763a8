"""A cluster on one machine: real sshd, podman and Slurm on nodes that are made of Linux namespaces.

    def test_something(make_cluster):           # or make_slurm
        cluster = make_cluster(3)
        first, second, third = cluster.nodes
        first.ssh(["hostname"])                 # through sshd; `run` goes past it and works without a network
        with faults.cable_out(second):
            ...

A node may write to its own /tmp, /var/tmp, /run, /dev/shm and home, and to the cluster's folders `shared` and
`compiled`, of which the second has what trainers of any cluster have compiled in this session. Everything else is this
machine's, read-only: its programs, this Python and the project.
"""
