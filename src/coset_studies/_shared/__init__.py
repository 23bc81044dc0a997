"""What studies of several papers share."""
