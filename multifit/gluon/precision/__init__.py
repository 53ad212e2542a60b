"""Lower precision within the net's graph."""
