"""What is checked on the first batch, before any update."""
