"""Configurations of ROCm's Cluster Validation Suite: for JAX, for Megatron-LM, and those of 2026."""
