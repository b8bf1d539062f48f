"""Memory of a decode: how much it may take, and what calls take inside (asked, or on shapes)."""
