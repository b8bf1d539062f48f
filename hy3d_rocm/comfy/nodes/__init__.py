"""The nodes: what they are called, what they ask for, and what they do."""
