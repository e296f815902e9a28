"""Ahead-of-time compilation: targets, compiled programs of plans, collectives in HLO text."""
