"""The command `partir-search`: plans any importable step, with nothing allocated.

partir-search plan package.module:train_step --args=package.module:example_args \
        --mesh=data:8,model:8 --machine=tpu_v5p --donate=0 --out=plans/
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Sequence

from partir_search.commands.flags import joined_positions
from partir_search.commands.named_objects import UsageError, told
from partir_search.commands.parser import make_parser
from partir_search.commands.running import STOPPED, run

PIPE_CLOSED = 141  # 128 + SIGPIPE, as of a shell's command

__all__ = ["joined_positions", "main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command.

    Returns:
      0, 2 after a message on stderr for bad input, 3 for a plan that does not fit, 130 after
        ctrl-C, or 141 if the reader of stdout has closed.
    """
    args = make_parser().parse_args(joined_positions(sys.argv[1:] if argv is None else argv))
    sys.path.insert(0, os.getcwd())
    try:
        return run(args)
    except BrokenPipeError:  # the reader has closed: `| head`; Python flushes stdout at exit
        with contextlib.suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return PIPE_CLOSED
    except (UsageError, OSError, ValueError, TypeError, RuntimeError) as error:
        if args.debug:
            raise
        print(f"partir-search: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        if args.debug:
            raise
        print("partir-search: stopped", file=sys.stderr)
        return STOPPED
    except (ArithmeticError, AttributeError, LookupError) as error:
        text = told(error)
        if args.debug or not text.endswith(")"):  # no frame of the user's: a fault of this package
            raise
        print(f"partir-search: {args.step} failed: {text}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
