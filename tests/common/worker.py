"""A worker for tests of the supervisor: it notes in a folder that it has begun, and answers with its number.
`FOLDER/ends-N` holds the status with which worker N ends at once; while there is `FOLDER/sleeps-N`, N gets no
further."""

import asyncio
import os
import signal
import socket
import sys
import time
from pathlib import Path

from common.workers import worker_address


async def main() -> None:
    mine, folder = worker_address(), Path(sys.argv[1])
    assert mine is not None
    with (folder / f"begun-{mine.number}").open("a") as begun:
        begun.write(f"{time.monotonic()} {os.getpid()}\n")
    if (ends := folder / f"ends-{mine.number}").exists():
        sys.exit(int(ends.read_text()))
    while (folder / f"sleeps-{mine.number}").exists():
        await asyncio.sleep(0.02)

    async def answer(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"%d" % mine.number)
        await writer.drain()
        writer.close()

    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    async with await asyncio.start_server(answer, sock=socket.socket(fileno=mine.public)):
        mine.report_ready()
        await stop.wait()


if __name__ == "__main__":
    asyncio.run(main())
