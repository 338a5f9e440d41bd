"""``python3 -m tidegate worker MODULE[:APP]``: a child of the worker with the handlers of a module."""

from __future__ import annotations

import argparse
import importlib
import logging
import os
import sys
from typing import List, Optional

from ._app import App, default_app
from ._serve import NotAChild, serve


def find_app(target: str) -> App:
    """The app that ``MODULE[:APP]`` names; without APP the default one, which the module has filled."""
    module_name, _, attribute = target.partition(":")
    module = importlib.import_module(module_name)
    if not attribute:
        return default_app
    app = getattr(module, attribute, None)
    if not isinstance(app, App):
        raise SystemExit(f"tidegate: {target!r} names no tidegate.App")
    return app


def main(arguments: Optional[List[str]] = None) -> int:
    parser = argparse.ArgumentParser(prog="python3 -m tidegate", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    worker = commands.add_parser("worker", help="serve a module's handlers; started by `tidegate worker`")
    worker.add_argument("module", metavar="MODULE[:APP]", help="what to import, and the name of its App if it has one")
    worker.add_argument("--log-level", default="INFO", choices=["DEBUG", "INFO", "WARNING", "ERROR"])
    given = parser.parse_args(arguments)
    sys.path.insert(0, os.getcwd())
    app = find_app(given.module)
    if len(app) == 0:
        raise SystemExit(f"tidegate: {given.module!r} has no handlers; register functions with @tidegate.task")
    try:
        serve(app, log_level=getattr(logging, given.log_level))
    except NotAChild as error:
        print(f"tidegate: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
