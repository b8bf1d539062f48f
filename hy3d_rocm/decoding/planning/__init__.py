"""The ways to do a decode, what each takes, and which one is chosen."""
