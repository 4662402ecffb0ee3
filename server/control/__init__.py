"""What operators have set up and what the server knows of itself, be anybody listening or not."""
