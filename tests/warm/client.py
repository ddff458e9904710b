"""python -S -I client.py SOCKET TOOL ARGUMENT…: the tool, run by `server.py` in place of this
process."""

import os
import socket
import sys

_, path, tool, *arguments = sys.argv
fields = [
    tool,
    os.getcwd(),
    str(len(arguments)),
    *arguments,
    *(f"{name}={value}" for name, value in os.environ.items()),
]
request = "\0".join(fields).encode(errors="surrogateescape")
with socket.socket(socket.AF_UNIX) as server:
    server.connect(path)
    socket.send_fds(server, [len(request).to_bytes(8, "big")], [0, 1, 2])
    server.sendall(request)
    answer = server.recv(1)
sys.exit(answer[0] if answer else 70)  # no answer: the run was killed
