"""A process that trains groups of a zoo: ``python -m coset.zoo._worker FOLDER CHECKPOINT_SECONDS PARENT``."""

import sys
from pathlib import Path

from coset.errors import InputError
from coset.zoo._work import work

if __name__ == "__main__":
    try:
        work(Path(sys.argv[1]), float(sys.argv[2]), parent=int(sys.argv[3]))
    except InputError as error:
        print(f"coset: {error}", file=sys.stderr)
        sys.exit(2)
