"""Tools around a decode: capture its inputs, find its best settings, check what it made.

docs/decode_tools.md tells how to use them. Nothing here is imported by a decode except capture.py.
"""
