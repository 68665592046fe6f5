"""Who gets which partition: pure functions behind one small interface (assignor.py)."""
