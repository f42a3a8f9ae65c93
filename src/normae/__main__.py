"""`python -m normae` is the command line."""

from normae.cli import main

main()
