"""A browser that is driven by its own protocol (Chrome DevTools), without a driver's package."""
