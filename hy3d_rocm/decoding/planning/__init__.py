"""The candidate programs of a decode, what each takes, and which one is chosen."""
