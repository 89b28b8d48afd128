"""``python -m jointensor`` is the command line."""

from jointensor.cli import main

if __name__ == "__main__":
    main()
