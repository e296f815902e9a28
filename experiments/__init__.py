"""Runnable experiments: `python -m experiments.NAME`. They use public names and models only."""
