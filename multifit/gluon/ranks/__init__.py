"""MXNet's part of training with several processes: sums of its arrays over the ranks."""
