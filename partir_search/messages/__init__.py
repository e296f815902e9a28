"""What people read: errors with remedies, near names, tables."""
