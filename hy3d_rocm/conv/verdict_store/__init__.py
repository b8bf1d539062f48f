"""Verdicts on each tier and shape of this machine's convolutions, in one SQLite file.

The process's own store is `hy3d_rocm.conv.verdict_store.store.store()`. docs/knowledge.md.
"""
