"""A cluster on one machine: real sshd, podman and Slurm on nodes that are made of Linux namespaces."""
