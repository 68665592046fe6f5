"""Whether the tests see it when a comparison, a condition, a sign or a constant is another one."""
