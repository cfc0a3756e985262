"""`corral up`, `head`, `join` and their opposites: what is checked and written, then started."""
