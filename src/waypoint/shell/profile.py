"""How a shell is started so that init learns the end and the status of each command.

Before each prompt the shell reports ``$?`` into a FIFO and waits for init's word; init has then read all
output of the command and nothing else. The command's text is a file that the shell sources. Nothing
depends on text on the terminal.
"""

from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["BASH", "SESSION_ENV", "UNATTENDED_ENV", "ShellProfile"]

# Programs that would wait for a person are told not to.
UNATTENDED_ENV: Mapping[str, str] = {
    "PAGER": "cat",
    "GIT_PAGER": "cat",
    "SYSTEMD_PAGER": "cat",
    "EDITOR": "true",
    "VISUAL": "true",
    "GIT_EDITOR": "true",
    "GIT_SEQUENCE_EDITOR": "true",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_ASKPASS": "true",
    "GIT_SSH_COMMAND": "ssh -o BatchMode=yes",
    "DEBIAN_FRONTEND": "noninteractive",
    "NEEDRESTART_MODE": "l",
    "OPAMYES": "1",
    "OPAMCONFIRMLEVEL": "unsafe-yes",
    "PYTHONUNBUFFERED": "1",
    "PIP_NO_INPUT": "1",
    "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    "PIP_PROGRESS_BAR": "off",
}

SESSION_ENV: Mapping[str, str] = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "HOME": "/root",
    "USER": "root",
    "LOGNAME": "root",
    "SHELL": "/bin/bash",
    "TERM": "xterm-256color",
    "LANG": "C.UTF-8",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ShellProfile:
    """One kind of shell. ``%DIR%`` in the texts stands for the terminal's directory of control files."""

    argv: tuple[str, ...]
    rc: str
    run_line: str

    def for_terminal(self, terminal: str) -> "ShellProfile":
        where = f"/.waypoint/{terminal}"
        return ShellProfile(
            argv=tuple(part.replace("%DIR%", where) for part in self.argv),
            rc=self.rc.replace("%DIR%", where),
            run_line=self.run_line.replace("%DIR%", where),
        )


# __waypoint_end runs after each command: prompt tools (starship, direnv, …) may have replaced
# PROMPT_COMMAND, and without our part in it the command would never be seen to end.
BASH = ShellProfile(
    argv=("/bin/bash", "--noprofile", "--rcfile", "%DIR%/rc", "--noediting", "-i"),
    rc="""\
__waypoint_prompt() {
    builtin printf '%s\\n' "$?" >%DIR%/status
    builtin read -r _ <%DIR%/go
}
__waypoint_end() {
    builtin local __waypoint_status="$?"
    case ${PROMPT_COMMAND[*]-} in
        *__waypoint_prompt*) ;;
        *) PROMPT_COMMAND=(__waypoint_prompt "${PROMPT_COMMAND[@]}") ;;
    esac
    builtin return "$__waypoint_status"
}
PROMPT_COMMAND=__waypoint_prompt
PS1= PS2= HISTCONTROL=ignoreboth
unset HISTFILE
set +H
""",
    run_line=" . %DIR%/cmd; __waypoint_end\n",
)
