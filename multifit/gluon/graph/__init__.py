"""Symbol in, symbol out: graphs are built, cut, bound, repaired and lowered."""
