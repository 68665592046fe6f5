"""`folkmoot schema`: schemas as they are registered, judged, compared and moved."""
