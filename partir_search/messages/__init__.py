"""Messages to users: errors with remedies, near names, tables."""
