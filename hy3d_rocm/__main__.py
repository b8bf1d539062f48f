"""`python -m hy3d_rocm` is the command line."""

import sys

from hy3d_rocm.cli import main

sys.exit(main())
