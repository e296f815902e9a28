"""Plans and the queries on them."""
