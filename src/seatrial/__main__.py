"""`python -m seatrial`: the command line, for where no script is installed."""

from seatrial.cli import main

main()
