"""Decoded frames into files; a decode into them can be killed and go on."""
