"""Small things that several packages share."""
