"""Fused kernels: kernels.py (device code), work.py (launches), backend.py, selfcheck.py."""
