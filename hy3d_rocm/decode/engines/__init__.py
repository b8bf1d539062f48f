"""Who runs a VAE's layers: whole, layer by layer, in chunks of time, in tiles; and on what."""
