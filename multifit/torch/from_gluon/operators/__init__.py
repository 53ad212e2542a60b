"""MXNet's operators as functions of torch tensors that compute the same; one file per family."""
