"""Whole groups in virtual time: the real code, every interleaving by chance, faults, checkers."""
