"""Small things that several rooms share."""
