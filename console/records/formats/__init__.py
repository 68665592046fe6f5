"""How records and offsets look in text: for people, for programs, and read back from it."""
