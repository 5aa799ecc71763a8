"""Completion in shells: `offers` knows the values, `shells` the way from a shell's words to them and back."""
