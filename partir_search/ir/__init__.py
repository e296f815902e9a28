"""Values, ops and regions; partitions of them; printing, checking and running both."""
