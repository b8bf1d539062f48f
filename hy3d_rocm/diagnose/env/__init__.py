"""The machine around us: facts and variables. Imports neither torch nor numpy."""
