"""NORM through libnorm's C interface: `send FILE BITS_S NODE,NODE...` or `receive OUT NODE`."""

from __future__ import annotations

import ctypes
import sys
import tempfile

GROUP, PORT, INTERFACE = b"239.77.1.1", 6003, b"eth0"
POINTER, U32, U16, U8 = ctypes.c_void_p, ctypes.c_uint32, ctypes.c_uint16, ctypes.c_uint8
TX_WATERMARK_COMPLETED, RX_OBJECT_COMPLETED = 4, 20
ACK_SUCCESS, ANY_NODE = 3, 0xFFFFFFFF
#: name -> (result, argument types)
SIGNATURES = {
    "NormCreateInstance": (POINTER, [ctypes.c_bool]),
    "NormCreateSession": (POINTER, [POINTER, ctypes.c_char_p, U16, U32]),
    "NormSetMulticastInterface": (ctypes.c_bool, [POINTER, ctypes.c_char_p]),
    "NormSetCacheDirectory": (ctypes.c_bool, [POINTER, ctypes.c_char_p]),
    "NormStartReceiver": (ctypes.c_bool, [POINTER, U32]),
    "NormSetRxSocketBuffer": (ctypes.c_bool, [POINTER, ctypes.c_uint]),
    "NormSetTxSocketBuffer": (ctypes.c_bool, [POINTER, ctypes.c_uint]),
    "NormFileRename": (ctypes.c_bool, [POINTER, ctypes.c_char_p]),
    "NormGetNextEvent": (ctypes.c_bool, [POINTER, POINTER, ctypes.c_bool]),
    "NormSetTxRate": (None, [POINTER, ctypes.c_double]),
    "NormSetGroupSize": (None, [POINTER, ctypes.c_uint]),
    "NormSetGrttEstimate": (None, [POINTER, ctypes.c_double]),
    "NormSetGrttMax": (None, [POINTER, ctypes.c_double]),
    "NormAddAckingNode": (ctypes.c_bool, [POINTER, U32]),
    "NormStartSender": (ctypes.c_bool, [POINTER, U16, U32, U16, U16, U16, U8]),
    "NormSetAutoParity": (None, [POINTER, ctypes.c_ubyte]),
    "NormFileEnqueue": (POINTER, [POINTER, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_uint]),
    "NormSetWatermark": (ctypes.c_bool, [POINTER, POINTER, ctypes.c_bool]),
    "NormGetAckingStatus": (ctypes.c_int, [POINTER, U32]),
}


class NormEvent(ctypes.Structure):
    """What NormGetNextEvent fills in."""

    _fields_ = (
        ("type", ctypes.c_int),
        ("session", POINTER),
        ("sender", POINTER),
        ("object", POINTER),
    )


def load() -> ctypes.CDLL:
    """The library with its signatures."""
    library = ctypes.CDLL("libnorm.so.1")
    for name, (result, arguments) in SIGNATURES.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


def receive(out: str, node: int) -> None:
    """Rename each object that is whole to `out`."""
    norm = load()
    instance = norm.NormCreateInstance(False)
    norm.NormSetCacheDirectory(instance, (tempfile.mkdtemp(dir=".") + "/").encode())
    session = norm.NormCreateSession(instance, GROUP, PORT, node)
    norm.NormSetMulticastInterface(session, INTERFACE)
    norm.NormStartReceiver(session, 16 << 20)
    norm.NormSetRxSocketBuffer(session, 4 << 20)
    event = NormEvent()
    while norm.NormGetNextEvent(instance, ctypes.byref(event), True):
        if event.type == RX_OBJECT_COMPLETED:
            norm.NormFileRename(event.object, out.encode())


def send(file: str, bits_s: float, nodes: list[int]) -> None:
    """Send once; ends when every node has acknowledged."""
    norm = load()
    instance = norm.NormCreateInstance(False)
    session = norm.NormCreateSession(instance, GROUP, PORT, 1)
    norm.NormSetMulticastInterface(session, INTERFACE)
    norm.NormSetTxRate(session, bits_s)
    norm.NormSetGroupSize(session, max(10, len(nodes)))
    norm.NormSetGrttEstimate(session, 0.02)
    norm.NormSetGrttMax(session, 0.08)
    for node in nodes:
        norm.NormAddAckingNode(session, node)
    norm.NormStartSender(session, 1, 64 << 20, 1400, 64, 16, 0)
    norm.NormSetTxSocketBuffer(session, 1 << 20)
    norm.NormSetAutoParity(session, 8)
    item = norm.NormFileEnqueue(session, file.encode(), b"obj", 3)
    norm.NormSetWatermark(session, item, False)
    event = NormEvent()
    while norm.NormGetNextEvent(instance, ctypes.byref(event), True):
        if event.type == TX_WATERMARK_COMPLETED:
            if norm.NormGetAckingStatus(session, ANY_NODE) == ACK_SUCCESS:
                return
            norm.NormSetWatermark(session, item, False)


if __name__ == "__main__":
    if sys.argv[1] == "send":
        send(sys.argv[2], float(sys.argv[3]), [int(node) for node in sys.argv[4].split(",")])
    else:
        receive(sys.argv[2], int(sys.argv[3]))
