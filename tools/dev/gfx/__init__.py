"""AMD machine code executed on the CPU: what the tests run Triton's kernels on without an AMD GPU.

    program = machine.Program.load(code_object, "gfx1100")
    counts = program.run(grid, threads, kernarg, memory)

A code object is read (code_object.py), its instructions are decoded by tinygrad's tables of AMD's
encodings (decode.py) and made into steps (lower.py), which wave.c executes. What the plain
arithmetic instructions do is generated as C from AMD's own pseudo-code (opcodes.py, pcode.py,
translate.py). tests/gfx compares all of it with second sources.
Nothing of this is in the wheel. docs/amd_truth.md says what it shows and what it does not.
"""
