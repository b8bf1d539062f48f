"""What can be known of this machine without torch, and, from a child process, with it.

A fact that can't be read is None, "" or has an "error": nothing here raises for what it finds.
"""
