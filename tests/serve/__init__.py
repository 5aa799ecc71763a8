"""Tests of the page over all runs."""
