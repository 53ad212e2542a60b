"""MXNet's operators as functions of torch's tensors that mean the same, one file a family."""
