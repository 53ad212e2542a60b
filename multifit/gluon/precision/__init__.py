"""Lower precisions, such as bfloat16: which operators use them, and how a graph is rewritten."""
