"""The known strategies: what people do by hand, as moves on any model's graph."""
