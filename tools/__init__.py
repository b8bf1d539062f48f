"""What a source checkout is built, set up and measured with; nothing of it is installed."""
