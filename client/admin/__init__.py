"""`tidegate admin`: a running server asked and steered from the command line."""
