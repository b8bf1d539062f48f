"""What is wrong with this machine's set-up, worst first, each with its evidence and one remedy."""
