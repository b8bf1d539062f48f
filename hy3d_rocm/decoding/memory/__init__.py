"""Memory of a decode: how much it may take, and what calls take inside (asked, or run on shapes)."""
