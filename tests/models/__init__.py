"""The protocols as models that are explored whole, beside the tests of the code itself."""
