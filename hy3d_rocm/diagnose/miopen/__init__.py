"""MIOpen's own files: where they are, what is in them, backup, restore, clear. Imports no torch."""
