"""What a decode could do: the candidates with what each takes, and which one is chosen."""
