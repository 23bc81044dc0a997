"""What is timed: always as a ratio against a reference in the same run, the median of several repetitions."""
