"""``python -m coset.cli``."""

from coset.cli import main

main()
