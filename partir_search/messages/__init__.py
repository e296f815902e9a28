"""Messages to users: errors with remedies, close matches of names, tables."""
