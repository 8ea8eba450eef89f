"""`python -m mrfrec`."""

from mrfrec.cli import main

main()
