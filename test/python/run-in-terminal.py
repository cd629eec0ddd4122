"""A program in a pseudo-terminal of a given width, for tests of what people see.

Usage: run-in-terminal.py COLUMNS PROGRAM [ARG...]. What the program writes goes to standard output;
standard input is what is typed, so that \\x03 is Ctrl-C. Ends with the program's exit code.
"""

import fcntl
import os
import pty
import select
import struct
import sys
import termios

columns, program = int(sys.argv[1]), sys.argv[2:]
pid, terminal = pty.fork()
if pid == 0:
    fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    os.execvp(program[0], program)
sources = [terminal, 0]
while terminal in sources:
    for ready in select.select(sources, [], [])[0]:
        try:
            text = os.read(ready, 65536)
        except OSError:  # Linux says so when the program has gone.
            text = b""
        if not text:
            sources.remove(ready)
        elif ready == terminal:
            os.write(1, text)
        else:
            os.write(terminal, text)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
