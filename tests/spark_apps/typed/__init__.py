"""Values with schemas as columns."""
