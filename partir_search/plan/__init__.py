"""Plans, and the queries that they answer."""
