"""`python -m tidegate`."""

from tidegate import main

main()
