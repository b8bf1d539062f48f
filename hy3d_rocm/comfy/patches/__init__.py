"""Corrections made in place to ComfyUI and to other node packs.

`engine` replaces and puts back, `upstream` knows whose code there is, `install` says when; the
others hold the patches, of which each can be switched off by its name, in HY3D_ROCM_PATCH and in
ComfyUI's settings. Nothing is imported here: the patches are needed only where upstream is loaded.
"""
