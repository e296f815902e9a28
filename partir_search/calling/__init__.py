"""From a call, as people write it, to a call of a function of arrays that can be planned."""
