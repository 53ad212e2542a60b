"""What several processes need of MXNet: sums of its arrays over the ranks."""
