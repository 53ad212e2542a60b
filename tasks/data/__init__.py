"""Data that several tasks share: generated, or read from the files of a real data set."""
