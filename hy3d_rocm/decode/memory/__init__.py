"""What a decode may take, what it will take (run on shapes), and what it took."""
