"""What this process may ask of the kernel once it serves, whatever a bug in it is made to do.

A filter of system calls (seccomp(2)) refuses, for all threads and all that the process starts, what
Landlock does not govern: modes, owners, times and attributes of files, other processes, sockets of
other families, and the rarely used parts of the kernel. Refused calls fail with EPERM.
"""

from __future__ import annotations

import ctypes
import errno
import os
import socket
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum


@dataclass(frozen=True, slots=True)
class Processor:
    """What differs between processors: two numbers, and the column of `DENIED`."""

    audit: int
    seccomp: int
    column: int


#: By what uname(2) calls the machine. On any other machine there is no filter.
PROCESSORS: Mapping[str, Processor] = {
    "x86_64": Processor(audit=0xC000003E, seccomp=317, column=0),
    "aarch64": Processor(audit=0xC00000B7, seccomp=277, column=1),
}


def _numbered(*lines: str) -> dict[str, tuple[int | None, int | None]]:
    """Calls by their names, each with its numbers on x86_64 and on aarch64 (`-`: it has none)."""
    calls = (call.split() for line in lines for call in line.split(", "))
    return {
        name: (None if intel == "-" else int(intel), None if arm == "-" else int(arm))
        for name, intel, arm in calls
    }


#: Each refused call.
DENIED = _numbered(
    # Changes of files that Landlock does not govern.
    "chmod 90 -, fchmod 91 52, fchmodat 268 53, fchmodat2 452 452, chown 92 -, fchown 93 55",
    "lchown 94 -, fchownat 260 54, utime 132 -, utimes 235 -, futimesat 261 -",
    "utimensat 280 88, setxattr 188 5, lsetxattr 189 6, fsetxattr 190 7, removexattr 197 14",
    "lremovexattr 198 15, fremovexattr 199 16",
    # New programs, also those that are no file.
    "execve 59 221, execveat 322 281, memfd_create 319 279",
    # The memory and descriptors of other processes.
    "ptrace 101 117, process_vm_readv 310 270, process_vm_writev 311 271",
    "process_madvise 440 440, pidfd_getfd 438 438, kcmp 312 272",
    # What only administrators need, and where faults of the kernel were found most.
    "mount 165 40, umount2 166 39, move_mount 429 429, open_tree 428 428, fsopen 430 430",
    "fsconfig 431 431, fsmount 432 432, fspick 433 433, mount_setattr 442 442",
    "pivot_root 155 41, chroot 161 51, unshare 272 97, setns 308 268, bpf 321 280",
    "userfaultfd 323 282, perf_event_open 298 241, io_uring_setup 425 425",
    "io_uring_enter 426 426, io_uring_register 427 427, add_key 248 217, request_key 249 218",
    "keyctl 250 219, init_module 175 105, finit_module 313 273, delete_module 176 106",
    "kexec_load 246 104, kexec_file_load 320 294, reboot 169 142, swapon 167 224",
    "swapoff 168 225, acct 163 89, quotactl 179 60, quotactl_fd 443 443, settimeofday 164 170",
    "clock_settime 227 112, sethostname 170 161, setdomainname 171 162, syslog 103 116",
    "vhangup 153 58, personality 135 92, open_by_handle_at 304 265, fanotify_init 300 262",
    "iopl 172 -, ioperm 173 -, modify_ldt 154 -, uselib 134 -",
)
#: Calls that are judged by their arguments.
JUDGED = _numbered(
    "sendmsg 46 211, sendto 44 206, sendmmsg 307 269, ioctl 16 29, clone 56 220",
    "socket 41 198",
)


class _Kernel(IntEnum):
    """Numbers of the kernel's interface."""

    #: Its flags lie in memory, where a filter cannot look. The C library then takes clone(2).
    CLONE3 = 435
    #: mseal(2), which the C library tries. Later calls are yet unknown here, such as setxattrat(2).
    LAST_KNOWN = 462
    #: Connects and sends at once. Some kernels do not ask Landlock then.
    MSG_FASTOPEN = 0x20000000
    #: CLONE_NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET and NEWNS.
    NEW_NAMESPACES = 0x7E020000
    SOCKET_TYPE = 0xF
    #: prctl(2) and seccomp(2).
    SET_NO_NEW_PRIVILEGES = 38
    SET_FILTER = 1
    ALL_THREADS = 1


class _Do(IntEnum):
    """Instructions of a filter (linux/bpf_common.h)."""

    LOAD = 0x20
    AND = 0x54
    IF_EQUAL = 0x15
    IF_GREATER = 0x25
    IF_ANY_BIT = 0x45
    RETURN = 0x06


class _Verdict(IntEnum):
    """What a filter returns: SECCOMP_RET_ALLOW, or SECCOMP_RET_ERRNO with the error."""

    ALLOW = 0x7FFF0000
    REFUSE = 0x00050000 | errno.EPERM
    UNKNOWN = 0x00050000 | errno.ENOSYS


class _At(IntEnum):
    """Where `struct seccomp_data` has what a filter looks at."""

    NUMBER = 0
    AUDIT = 4
    ARGUMENTS = 16


#: One instruction: what it does, how many to skip if so and if not, and its number.
Instruction = tuple[int, int, int, int]


def instructions(
    processor: Processor, kept: frozenset[str], unix_sockets: bool
) -> list[Instruction]:
    """The filter: refuses `DENIED` but `kept`, and sockets that nothing here needs."""
    program = [
        (_Do.LOAD, 0, 0, _At.AUDIT),
        *_unless(processor.audit, _Verdict.REFUSE),
        (_Do.LOAD, 0, 0, _At.NUMBER),
        (_Do.IF_GREATER, 0, 1, _Kernel.LAST_KNOWN),
        (_Do.RETURN, 0, 0, _Verdict.UNKNOWN),
        *_if(_Kernel.CLONE3, _Verdict.UNKNOWN),
    ]
    judged = {
        "sendmsg": _refuse_bits(2, _Kernel.MSG_FASTOPEN),
        "sendto": _refuse_bits(3, _Kernel.MSG_FASTOPEN),
        "sendmmsg": _refuse_bits(3, _Kernel.MSG_FASTOPEN),
        "ioctl": [
            _argument(1),
            # Attributes of a file that is open for reading (FS_IOC_SETFLAGS, FS_IOC_FSSETXATTR).
            *_if(0x40086602, _Verdict.REFUSE),
            *_if(0x401C5820, _Verdict.REFUSE),
            # Bytes typed at the terminal that the server was started from (TIOCSTI, TIOCLINUX).
            *_if(0x5412, _Verdict.REFUSE),
            *_if(0x541C, _Verdict.REFUSE),
        ],
        "clone": _refuse_bits(0, _Kernel.NEW_NAMESPACES),
        "socket": _judge_socket(unix_sockets),
    }
    for name, steps in judged.items():
        block = [*steps, (_Do.RETURN, 0, 0, _Verdict.ALLOW)]
        number = JUDGED[name][processor.column]
        assert number is not None, "all processors have these calls"
        program += [(_Do.IF_EQUAL, 0, len(block), number), *block]
    for name, numbers in DENIED.items():
        number = numbers[processor.column]
        if number is not None and name not in kept:
            program += _if(number, _Verdict.REFUSE)
    return [*program, (_Do.RETURN, 0, 0, _Verdict.ALLOW)]


def _if(value: int, verdict: int) -> list[Instruction]:
    return [(_Do.IF_EQUAL, 0, 1, value), (_Do.RETURN, 0, 0, verdict)]


def _unless(value: int, verdict: int) -> list[Instruction]:
    return [(_Do.IF_EQUAL, 1, 0, value), (_Do.RETURN, 0, 0, verdict)]


def _argument(place: int) -> Instruction:
    """Load the lower half of an argument: all that the kernel reads of an int."""
    return (_Do.LOAD, 0, 0, _At.ARGUMENTS + 8 * place)


def _refuse_bits(place: int, bits: int) -> list[Instruction]:
    return [_argument(place), (_Do.IF_ANY_BIT, 0, 1, bits), (_Do.RETURN, 0, 0, _Verdict.REFUSE)]


def _judge_socket(unix_sockets: bool) -> list[Instruction]:
    """TCP and UDP, questions about interfaces, and unix sockets where they are needed."""
    return [
        _argument(0),
        *(_if(socket.AF_UNIX, _Verdict.ALLOW) if unix_sockets else []),
        *_if(socket.AF_NETLINK, _Verdict.ALLOW),
        (_Do.IF_EQUAL, 2, 0, socket.AF_INET),
        *_unless(socket.AF_INET6, _Verdict.REFUSE),
        _argument(1),
        (_Do.AND, 0, 0, _Kernel.SOCKET_TYPE),
        (_Do.IF_GREATER, 0, 1, socket.SOCK_DGRAM),
        (_Do.RETURN, 0, 0, _Verdict.REFUSE),
        _argument(2),
        # Any, TCP or UDP. Landlock knows no other ports, such as those of MPTCP.
        *_if(0, _Verdict.ALLOW),
        *_if(socket.IPPROTO_TCP, _Verdict.ALLOW),
        *_if(socket.IPPROTO_UDP, _Verdict.ALLOW),
        (_Do.RETURN, 0, 0, _Verdict.REFUSE),
    ]


class _Filter(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("program", ctypes.c_char_p))


def close_system_calls(kept: frozenset[str], unix_sockets: bool) -> bool:
    """Give up all calls of `DENIED` but `kept`, for every thread and all that it starts.

    False where the kernel cannot do it, or the processor is not known here. A program of 32 bits
    has other numbers on the same machine.
    """
    processor = PROCESSORS.get(os.uname().machine)
    if processor is None or ctypes.sizeof(ctypes.c_void_p) != 8:
        return False
    program = instructions(processor, kept, unix_sockets)
    packed = b"".join(struct.pack("=HBBI", *one) for one in program)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_Kernel.SET_NO_NEW_PRIVILEGES, 1, 0, 0, 0) != 0:
        return False
    called = _Filter(len(program), packed)
    return bool(
        libc.syscall(
            processor.seccomp, _Kernel.SET_FILTER, _Kernel.ALL_THREADS, ctypes.byref(called)
        )
        == 0
    )
