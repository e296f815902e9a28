"""Simulated steps as traces, and measured traces beside the simulation."""

from partir_search.plan.profiles.comparison import ScopeSeconds, TraceComparison, compare_trace
from partir_search.plan.profiles.trace_events import trace_events

__all__ = ["ScopeSeconds", "TraceComparison", "compare_trace", "trace_events"]
