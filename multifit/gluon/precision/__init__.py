"""bfloat16: which precisions there are, which operators use them, and how a graph is rewritten for one."""
