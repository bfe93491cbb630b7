"""What programs print: recordings, harmful byte sequences, and a mixture of both for property tests."""

from hypothesis import strategies as st

from waypoint.shell.emulator import Emulator, Screen

# Recorded on a terminal of 10 rows and 40 columns.
BASH = (
    b"\x1b[?2004hbash-5.2# ls --color=always /tmp/vt/lsd\r\n\x1b[?2004l\r\x1b[0m\x1b[01;34mdir\x1b[0m  "
    b"\x1b[01;36mlink\x1b[0m  readme  \x1b[01;32mrun.sh\x1b[0m\r\n\x1b[?2004hbash-5.2# printf 'a\\rb\\n'\r\n"
    b"\x1b[?2004l\ra\rb\r\n\x1b[?2004hbash-5.2# "
)
VIM_STARTS = (
    b"\x1b[?1049h\x1b[22;0;0t\x1b[>4;2m\x1b[?1h\x1b=\x1b[?2004h\x1b[?1004h\x1b[1;10r\x1b[?12h\x1b[?12l\x1b[22;2t"
    b"\x1b[22;1t\x1b[27m\x1b[23m\x1b[29m\x1b[m\x1b[H\x1b[2J\x1b[?25l\x1b[10;1H"
    b'"/tmp/vt/hello.c" 4L, 39B\x1b[2;1H\xe2\x96\xbd\x1b[6n\x1b[2;1H  \x1b[3;1H\x1bPzz\x1b\\\x1b[0%m\x1b[6n'
    b"\x1b[3;1H           \x1b[1;1H\x1b[>c\x1b]10;?\x07\x1b]11;?\x07\x1b[1;1H\x1b[32mint\x1b[m main(\x1b[32mvoid"
    b"\x1b[m)\r\n{\x1b[2;2H\x1b[K\x1b[3;1H        \x1b[38;5;130mreturn\x1b[m \x1b[31m0\x1b[m; \x1b[34m/* ok */"
    b"\x1b[m\x1b[3;27H\x1b[K\x1b[4;1H}\r\n\x1b[94m~                                       \x1b[6;1H~            "
    b"                           \x1b[7;1H~                                       \x1b[8;1H~                    "
    b"                   \x1b[9;1H~                                       \x1b[m\x1b[10;23H1,1\x1b[11CAll"
    b"\x1b[1;1H\x1b[?25h\x1b[?4m"
)
VIM_INSERTS = (
    b"\x1b[?25l\x1b[10;1H\x1b[1m-- INSERT --\x1b[m\x1b[10;13H\x1b[K\x1b[10;23H2,1\x1b[11CAll\x1b[10;1H\x1b[K"
    b"\x1b[2;5H\rhello\x1b[10;1H\x1b[1m-- INSERT --\x1b[m\x1b[10C2,6\x1b[11CAll\x1b[2;6H\x1b[?25h"
)
VIM_ENDS = (
    b"\x1b[?25l\x1b[10;1H\x1b[K\x1b[10;23H2,5\x1b[11CAll\x1b[2;5H\x1b[?25h\x1b[?25l\x1b[10;23H\x1b[K\x1b[10;1H:q!\r"
    b"\x1b[?2004l\x1b[>4;m\x1b[23;2t\x1b[23;1t\x1b[10;1H\x1b[K\x1b[10;1H\x1b[?1004l\x1b[?2004l\x1b[?1l\x1b>"
    b"\x1b[?1049l\x1b[23;0;0t\x1b[?25h\x1b[>4;m"
)
LESS = (
    b"\x1b[?1049h\x1b[22;0;0t\x1b[?1h\x1b=\r# Network services, Internet style\r\n#\r\n"
    b"# Updated from https://www.iana.org/assi \x08gnments/service-names-port-numbers/servi "
    b"\x08ce-names-port-numbers.xhtml .\r\n#\r\n# New ports will be added on request if  "
    b"\x08they have been officially assigned\r\n# by IANA and used in the real-world or  "
    b"\x08\x1b[7m/etc/services\x1b[27m\x1b[K"
)
TOP = (
    b"top - 03:40:47 up  3:41,  0 user,  load\r\nTasks: 182 total,   4 running\r\n\r\n"
    b"  PID USER      PR  NI S  %CPU COMMAND\r\n19058 root      20   0 R  50.0 waypoint\r\n"
)

# Bytes on which libvterm itself reads or writes out of bounds, or loops for ever.
DEADLY = [
    b"\x1b[" + b";" * 5000 + b"m" + b"x" * 100,
    b"\x1b[" + b";\0" * 5000 + b"m",
    b"\x1b[1;2147483648;4294967296m",
    b"\r\xc2\x80\x1b[K",
    b"\r\xc2\x1b[m\x80\x1b[K",
    ("a" + "\u302a" * 60).encode(),
    "か\u3099\u3099".encode() * 60,
    "\u3099\u3099".encode() * 60,
    "日本".encode(),
    "🧪".encode(),
    b"\x1b[5b",
    "\u0301\x1b[5b".encode(),
    "\x1b[99C日\x1b[99b".encode(),
    b"\x1b#6\x1b[99Cx\x1b#3y",
    b"\x1b[?69h\x1b[5;2s\x1b[99@\x1b['~",
    b"\x1bN\xe2\x94\x80\x1bO\xe2",
    b"\x1b]0;" + b"t" * 100_000 + b"\x07",
    b"\x1b]0;" + b"t" * 100_000,
    b"\x1b[?1049l\x1b8x\x1b[J\x1b[1J",
]

anything = st.binary(max_size=60) | st.sampled_from(
    [
        *(BASH, VIM_STARTS, VIM_INSERTS, VIM_ENDS, LESS, *DEADLY[:-3]),
        *b"\x1b[2;4r \x1b7 \x1b8 \x1bM \x1bc \x1b[!p \x1b[4h \x1b[?6h \x1b[3J \x1b[99;99H \x1b[L \x1b[2@".split(),
        *(b"line\r\n" * 30, b"\n" * 40, b"x" * 200, "字".encode() * 50),
    ]
)


def after(data: bytes, rows: int = 10, columns: int = 40, *, scrollback: int = 0) -> Screen:
    with Emulator(rows, columns) as emulator:
        emulator.feed(data)
        return emulator.screen(scrollback)
