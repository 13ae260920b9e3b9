"""How good suggestions are: searches of known functions, beside other searchers."""
