"""What users run around a decode: its best settings, what it would do, what its frames are worth.

docs/decode_tools.md tells how. No decode imports anything from here.
"""
