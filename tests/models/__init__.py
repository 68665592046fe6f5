"""The group protocol as a model that is explored whole, beside the tests of the code itself."""
