"""Run the command line: `python -m svc` is `svc`."""

import sys

from svc.cli import main

sys.exit(main())
