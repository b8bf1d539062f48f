"""Examples and the demo; a package, so that `python -m examples.demo` finds it in a checkout."""
