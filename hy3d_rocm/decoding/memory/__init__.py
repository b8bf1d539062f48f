"""What a decode may take, and what it will take (run on shapes)."""
