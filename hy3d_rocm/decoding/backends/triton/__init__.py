"""Fused kernels: kernels.py (device code), work.py (launches in integers), backend.py."""
