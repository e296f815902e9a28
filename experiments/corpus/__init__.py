"""Corpus of generated train steps, compiled ahead of time: evidence for the simulator's traits.

`python -m experiments.corpus` compiles steps, and checks each trait on both halves of the corpus.
"""
