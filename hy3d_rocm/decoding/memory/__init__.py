"""Memory of a decode: how much it may take, and what its calls take (asked, or run on shapes)."""
