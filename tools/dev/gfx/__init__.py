"""AMD machine code, executed without a GPU: a wave emulator and Triton's driver for it."""
