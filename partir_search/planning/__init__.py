"""From a call to a plan: tracing, tactics, searches."""
