"""`python -m examples.render` in a checkout: the same as `hy3d-rocm render` there."""

import sys

from examples.render.command import main

if __name__ == "__main__":
    sys.exit(main())
