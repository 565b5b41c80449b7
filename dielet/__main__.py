"""`python -m dielet`, where the `dielet` command is not on the path."""

from dielet.cli.main import main

if __name__ == "__main__":
    raise SystemExit(main())
