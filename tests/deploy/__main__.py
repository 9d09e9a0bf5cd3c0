"""Runs the files in `deploy/` without a container engine: `python -m tests.deploy [CHECK…]`, or `make deploy-check`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tests.deploy.checks import CheckFailed, say
from tests.deploy.clean_root import check_clean_root
from tests.deploy.helm import check_helm
from tests.deploy.proxies import check_proxies
from tests.deploy.schemas import check_manifests
from tests.deploy.server import check_server

ROOT = Path(__file__).resolve().parents[2]
CHECKS = ("kubernetes", "helm", "proxies", "root", "server")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checks", nargs="*", help=f"{', '.join(CHECKS)} (default: all)")
    parser.add_argument("--dist", type=Path, default=ROOT / "dist", help="folder with the distribution (default dist/)")
    options = parser.parse_args()
    if unknown := set(options.checks) - set(CHECKS):
        parser.error(f"unknown check: {', '.join(sorted(unknown))}")
    failed = False
    for name in options.checks or CHECKS:
        say(f"{name}:")
        try:
            if name == "kubernetes":
                check_manifests()
            elif name == "helm":
                check_helm()
            elif name == "proxies":
                check_proxies()
            elif name == "server":
                check_server(options.dist.resolve())
            else:
                check_clean_root(options.dist.resolve())
        except CheckFailed as error:
            sys.stderr.write(f"{name}: {error}\n")
            failed = True
    say("failed" if failed else "passed")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
