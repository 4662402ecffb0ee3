"""Models whose states are all explored, and tests that hold the code to them."""
