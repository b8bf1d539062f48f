"""What a log says went wrong: `hy3d-rocm diagnose`. Its rules are data (rules/*.toml)."""
