"""How a shell is started so that init learns the end and the status of each command.

Before each prompt the shell writes ``$?`` into a FIFO and waits for init's answer to that very report: the answer to a
prompt that was interrupted may still be there. Init has then read all output of the command and nothing else. The
command's text is a file that the shell sources. Nothing depends on text on the terminal. ``docs/shells.md`` says what
is the same in every shell and what is not.

Read next: :mod:`waypoint.shell.selection`, which finds the shell that a base has.
"""

import dataclasses
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = ["ASH", "BASH", "BASH_ATTENDED", "DASH", "SESSION_ENV", "UNATTENDED_ENV", "ZSH", "ShellProfile"]

# Keeps programs from waiting for a person.
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
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/.waypoint/bin",
    "HOME": "/root",
    "USER": "root",
    "LOGNAME": "root",
    "TERM": "xterm-256color",
    "LANG": "C.UTF-8",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ShellProfile:
    """One kind of shell.

    In the texts ``%DIR%`` stands for the terminal's directory of control files and ``%PROGRAM%`` for the words
    that start the shell. ``env`` are the variables that the shell itself needs, whatever variables the user wants;
    ``posix_env`` those that it needs in addition if the user's put it into its POSIX mode.
    """

    name: str
    program: tuple[str, ...]
    arguments: tuple[str, ...]
    rc: str
    run_line: str
    env: Mapping[str, str] = field(default_factory=dict)
    posix_env: Mapping[str, str] = field(default_factory=dict)

    @property
    def argv(self) -> tuple[str, ...]:
        return (*self.program, *self.arguments)

    @property
    def path(self) -> str:
        """The value of the variable SHELL. A program that is many commands (``busybox``) is not a shell by itself."""
        return self.program[0] if len(self.program) == 1 else "/bin/sh"

    def at(self, *program: str) -> "ShellProfile":
        """The same kind of shell, started with these words."""
        return dataclasses.replace(self, program=program)

    def attended(self) -> "ShellProfile":
        """The same shell for a person, where there is such a profile: bash."""
        return BASH_ATTENDED.at(*self.program) if self.name == BASH.name else self

    def for_terminal(self, terminal: str) -> "ShellProfile":
        words = {"%DIR%": f"/.waypoint/{terminal}", "%PROGRAM%": shlex.join(self.program)}
        return dataclasses.replace(
            self,
            arguments=tuple(_filled(argument, words) for argument in self.arguments),
            rc=_filled(self.rc, words),
            run_line=_filled(self.run_line, words),
            env={name: _filled(value, words) for name, value in self.env.items()},
            posix_env={name: _filled(value, words) for name, value in self.posix_env.items()},
        )

    def variables(self, wanted: Mapping[str, str]) -> dict[str, str]:
        """The environment of the shell, if the user wants these variables."""
        posix_env = self.posix_env if "POSIXLY_CORRECT" in wanted else {}
        return {**SESSION_ENV, "SHELL": self.path, **wanted, **self.env, **posix_env}


def _filled(text: str, words: Mapping[str, str]) -> str:
    for mark, word in words.items():
        text = text.replace(mark, word)
    return text


# __waypoint_end runs after each command: prompt tools (starship, direnv, …) may have replaced
# PROMPT_COMMAND, and without our part in it we would never see the command end.
# An interrupt while bash reads the run line makes it forget what it has read and report 130; the rest is still in
# its buffer, and read before the next line. Whatever is left is a syntax error as a whole: nothing of it runs. But
# without its first blank the line is still whole, so it names its job (init fills in __waypoint_job; an older init
# does not, and voids nothing), and init's answers say up to which job all lines are void. A "-" instead of a status
# keeps either from being taken for the end of the next command. `case` is used because it leaves `$?` and PIPESTATUS
# as they are, ignores IFS and has no quotes that could be cut in two.
BASH = ShellProfile(
    name="bash",
    program=("/bin/bash",),
    arguments=("--noprofile", "--rcfile", "%DIR%/rc", "--noediting", "-i"),
    rc="""\
__waypoint_prompt() {
    builtin set -- "$?" "${__waypoint_ended-}" "${__waypoint_last-}"
    __waypoint_last=$1 __waypoint_ended= __waypoint_asked=$((${__waypoint_asked-0} + 1)) __waypoint_go=
    [[ $1:$2:$3 != 2::130 && $2 != 0 ]] || builtin set -- -
    builtin printf '#%s\\n%s\\n' "$__waypoint_asked" "$1" >%DIR%/status
    while IFS= builtin read -r __waypoint_go <%DIR%/go && [[ $__waypoint_go && $__waypoint_go != "$__waypoint_asked" ]]; do
        [[ $__waypoint_go != !* ]] || __waypoint_over=${__waypoint_go#!}
    done
    builtin export -n __waypoint_last __waypoint_ended __waypoint_asked __waypoint_go __waypoint_over
    PS1= PS2=
}
__waypoint_end() {
    builtin local __waypoint_status="$?"
    __waypoint_ended=$((${1-__waypoint_over + 1} > __waypoint_over))
    [[ $__waypoint_ended == 1 ]] || __waypoint_status=130
    case ${PROMPT_COMMAND[*]-} in
        *__waypoint_prompt*) ;;
        *) PROMPT_COMMAND=(__waypoint_prompt "${PROMPT_COMMAND[@]}") ;;
    esac
    builtin return "$__waypoint_status"
}
[[ ${ENV-} != %DIR%/rc ]] || unset ENV
unset PROMPT_COMMAND PS1 PS2 HISTFILE
PROMPT_COMMAND=__waypoint_prompt __waypoint_over=0 __waypoint_job=1
PS1= PS2= HISTCONTROL=ignoreboth
set +H
""",
    run_line=" { case $((__waypoint_job > __waypoint_over)) in 1) . %DIR%/cmd;; esac; __waypoint_end __waypoint_job; }\n",
    posix_env={"ENV": "%DIR%/rc"},
)

# For a person: a prompt and the line editor. A command of `exec` in it shows the line that runs it.
BASH_ATTENDED = dataclasses.replace(
    BASH,
    arguments=("--noprofile", "--rcfile", "%DIR%/rc", "-i"),
    rc=BASH.rc.replace("    PS1= PS2=\n", "").replace(
        "PS1= PS2= HISTCONTROL=ignoreboth\nset +H\n", "PS1='\\u@\\h:\\w\\$ ' HISTCONTROL=ignoreboth\n"
    ),
    run_line=" { . %DIR%/cmd; __waypoint_end; }\r",  # with Enter: its line editor drops an interrupted line whole
)

# No startup file of zsh can be relied on: /etc/zshenv, which is always read, may send it elsewhere by ZDOTDIR.
# So the shell first reads the rc as its input, in one piece, and then turns to the terminal.
# Without zle it has no echo of its own. But then an interrupt at the prompt gives no new prompt, and the next
# line is thrown away: so TRAPINT reports instead; while a command runs it changes nothing. The options keep
# zsh from asking a person, from marking where a line did not end, and from ending background jobs when it exits.
ZSH = ShellProfile(
    name="zsh",
    program=("/bin/zsh",),
    arguments=("-fc", "PS1= PS2= exec %PROGRAM% -fgi +Z +o promptsp <%DIR%/rc"),
    rc="""\
 {
__waypoint_report() {
    __waypoint_at=report
    builtin local REPLY
    builtin typeset -g +x __waypoint_asked=$((${__waypoint_asked-0} + 1))
    builtin print -r -- "#$__waypoint_asked"$'\\n'"$1" >|%DIR%/status
    while IFS= builtin read -r <%DIR%/go && [[ -n $REPLY && $REPLY != $__waypoint_asked ]]; do
        builtin :
    done
    __waypoint_at=prompt
}
__waypoint_prompt() {
    __waypoint_report "$?" 2>/dev/null
}
__waypoint_begin() {
    __waypoint_at=command
}
__waypoint_end() {
    {
        __waypoint_at=report
        builtin typeset -g +x __waypoint_interrupted=$TRY_BLOCK_INTERRUPT PS1= PS2= RPS1= RPS2=
        TRY_BLOCK_INTERRUPT=0
        builtin unsetopt zle promptsp
        builtin typeset -ga precmd_functions preexec_functions
        precmd_functions=(__waypoint_prompt "${precmd_functions[@]:#__waypoint_prompt}")
        preexec_functions=(__waypoint_begin "${preexec_functions[@]:#__waypoint_begin}")
    } 2>/dev/null
}
__waypoint_status() {
    builtin set -- "$?"
    [[ $__waypoint_interrupted = 0 ]] || builtin return 130
    builtin return "$1"
}
TRAPINT() {
    case $ZSH_EVAL_CONTEXT:$__waypoint_at in
        *file*|*:command) builtin return 130 ;;
        *:prompt) __waypoint_report 130 2>/dev/null ;;
    esac
    builtin return 0
}
unsetopt banghist bgnice checkjobs hup notify
setopt rmstarsilent
unset RPS1 RPS2
typeset +x PS1 PS2
precmd_functions=(__waypoint_prompt)
preexec_functions=(__waypoint_begin)
exec <&1
}
""",
    run_line=" { . %DIR%/cmd; } always { __waypoint_end; }; __waypoint_status\n",
)

# The prompt is the only hook, and a process of its own, whose pid distinguishes its report from others. While a command
# runs, PS1 has another value, which ends with the command however that ends: so the hook stays whatever is done to PS1,
# and no program inherits it. `command` keeps the shell alive after a syntax error; `&& :` lets a status other than 0
# pass under `set -e`. A shell that is too old for this (dash before 0.5.10, busybox before 1.30) exits at the test of
# both, not later while a user works in it.
_POSIX_RC = """\
unset ENV
PS1='$(kill -9 "$$")'
PS1= command eval 'unset PS1
)' 2>/dev/null
[ "$PS1" ] || exit
unset PS1
__waypoint_hide() {
    set -- "$?"
    unset PS1
    return "$1"
}
__waypoint_prompt() {
    set -- "$?"
    IFS=' ' command read -r __waypoint_me _ </proc/self/stat || __waypoint_me=
    command printf '#%s\\n%s\\n' "$__waypoint_me" "$1" >%DIR%/status
    %WAIT%
}
PS1='$({ __waypoint_prompt; } 2>/dev/null)' PS2=
"""
_POSIX_WAIT = """\
while IFS= command read -r __waypoint_go <%DIR%/go; do
        case $__waypoint_go in "" | "$__waypoint_me") break ;; esac
    done"""
_POSIX_RUN_LINE = " PS1= command eval '__waypoint_hide && :; command . %DIR%/cmd'\n"

DASH = ShellProfile(
    name="dash",
    program=("/bin/dash",),
    arguments=("-i",),
    rc=_POSIX_RC.replace("%WAIT%", _POSIX_WAIT),
    run_line=_POSIX_RUN_LINE,
    env={"ENV": "%DIR%/rc"},
)

# Most builds of busybox edit lines, with an echo of their own, when they read from standard input itself.
# After an interrupt `read` never returns in 1.38.0: so a new process reads.
ASH = ShellProfile(
    name="ash",
    program=("/bin/ash",),
    arguments=("-i", "/dev/stdin"),
    rc=_POSIX_RC.replace("%WAIT%", f"__waypoint_me=$__waypoint_me exec %PROGRAM% -c '{_POSIX_WAIT}'"),
    run_line=_POSIX_RUN_LINE,
    env={"ENV": "%DIR%/rc"},
)
