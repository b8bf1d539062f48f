"""Tools around a decode: loading, planning, the best settings, the quality of its frames.

docs/decode_tools.md tells how. No decode imports anything from here.
"""
