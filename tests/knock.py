"""Someone who has no key knocks at ports: another user, where this one may become another."""

import ast
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import distributed

KNOCK = """
import os, socket, ssl, sys
answers = []
for port in map(int, sys.argv[2:]):
    for way in ("plain", "http", "tls", "own key"):
        try:
            with socket.create_connection(("127.0.0.1", port), 2) as line:
                line.settimeout(0.5)
                if way in ("tls", "own key"):
                    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
                    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
                    if way == "own key":
                        context.load_cert_chain(sys.argv[1])
                    line = context.wrap_socket(line)
                line.sendall(b"GET / HTTP/1.0\\r\\n\\r\\n" if way == "http" else b"x" * 64)
                heard = line.recv(64)
        except OSError:
            heard = b""
        answers.append(heard)
print(os.getuid(), answers)
"""


def knock(ports: set[int], folder: Path) -> list[bytes]:
    """What each port answers to a plain greeting, to HTTP, to TLS without a key and with a foreign one."""
    key, foreign = folder / "own.pem", distributed.Security.temporary()
    key.write_text(foreign.tls_client_key + foreign.tls_client_cert)
    root = os.geteuid() == 0 and os.access("/usr/bin/python3", os.X_OK)
    for place in (key, *key.parents) if root else ():
        if str(place).startswith(tempfile.gettempdir() + "/"):
            place.chmod(0o755)
    line = ["/usr/bin/python3" if root else sys.executable, "-I", "-c", KNOCK, str(key), *map(str, sorted(ports))]
    done = subprocess.run(line, user=65534 if root else None, cwd="/", capture_output=True, text=True, check=True)
    user, answers = done.stdout.split(maxsplit=1)
    assert int(user) == (65534 if root else os.getuid())
    found: list[bytes] = ast.literal_eval(answers)
    assert len(found) == 4 * len(ports)
    return found
