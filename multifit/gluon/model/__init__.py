"""The net that is trained, and its trainers."""
