"""What operators have set up, and what the server measures of itself."""
