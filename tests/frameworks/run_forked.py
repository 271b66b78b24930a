"""`python run_forked.py FOLDER PROGRAM PROCESSES ...`: real processes that share one import of torch, as torchrun sets
them up.
"""

from __future__ import annotations

import os
import runpy
import socket
import sys
import traceback


def main() -> int:
    folder, program, count, *words = sys.argv[1:]
    sys.path.insert(0, folder)
    import torch
    import torch.distributed.tensor  # the parent's import is every child's

    torch.set_num_threads(1)
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = str(free.getsockname()[1])
    os.environ |= {"WORLD_SIZE": count, "LOCAL_WORLD_SIZE": count, "MASTER_ADDR": "localhost", "MASTER_PORT": port}
    children = [_child(rank, f"{folder}/{program}", words) for rank in range(int(count))]
    return max(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children)


def _child(rank: int, program: str, words: list[str]) -> int:
    child = os.fork()
    if child:
        return child
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank)}
    sys.argv, code = [program, *words], 0
    try:
        runpy.run_path(program, run_name="__main__")
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:  # noqa: BLE001 - whatever ends a process is told by its exit code
        traceback.print_exc()
        code = 2
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    sys.exit(main())
