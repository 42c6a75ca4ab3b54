"""The listening socket: its address, and its end without a lost connection."""

import ctypes
import socket
import struct
import sys

from edorec.errors import InputError

_ATTACH_FILTER = 26  # SO_ATTACH_FILTER of Linux
_DROP_ALL = struct.pack("=HBBI", 0x06, 0, 0, 0)  # classic BPF: keep 0 bytes of any packet


def listen(host: str, port: int) -> socket.socket:
    """A bound socket.

    Raises:
        InputError: if the address or the port cannot be had.
    """
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family)
    except OSError as error:
        raise InputError(
            f"cannot listen on {host}, port {port} ({error.strerror}); give another --host or "
            "--port"
        ) from error


def stop_new_connections(listener: socket.socket) -> None:
    """Lets no further client connect; those who have connected can still be accepted.

    Closing the socket resets connections that wait in its queue, and there is no call that ends the
    queue alone. A filter that drops what comes to the socket does it: a client's handshake stays
    without an answer until the socket is closed and is then refused, with nothing sent. Other
    systems than Linux have no such filter, and may reset a connection of the last instant.
    """
    if sys.platform != "linux":
        return
    instruction = ctypes.create_string_buffer(_DROP_ALL, len(_DROP_ALL))
    program = struct.pack("HP", 1, ctypes.addressof(instruction))
    listener.setsockopt(socket.SOL_SOCKET, _ATTACH_FILTER, program)
