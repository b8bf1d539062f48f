"""Decoded frames written to files; a decode that writes them can be killed and resumed."""
