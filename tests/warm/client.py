"""python -S -I client.py SOCKET TOOL ARGUMENT…: the tool, run by `server.py` in place of this
process.

Half of what it takes is to start Python: `socket` would be as much again, `_socket` is nothing."""

import _socket
import os
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
streams = b"".join(number.to_bytes(4, sys.byteorder) for number in (0, 1, 2))
server = _socket.socket(_socket.AF_UNIX)
server.connect(path)
server.sendmsg(
    [len(request).to_bytes(8, "big")], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, streams)]
)
server.sendall(request)
answer = server.recv(1)
sys.exit(answer[0] if answer else 70)  # no answer: the run was killed
