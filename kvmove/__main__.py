"""`python -m kvmove`: the command line without its script."""

from kvmove.cli import main

if __name__ == "__main__":
    main()
