"""Shell completion: the scripts for bash, zsh and fish, and the candidates they ask for.

The scripts know nothing of the grammar; they ask ``waypoint __complete WORDS…``, which reads it from the parser
and names of sessions, branches and checkpoints from the catalogue; :mod:`waypoint.cli.older` says what may follow in
older command lines. Nothing is changed, mounted or repaired for that, and a catalogue that may not be read gives no
candidates.
"""

import argparse
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from waypoint.cli.answer import Answer
from waypoint.cli.known import catalogue_to_read, typed_state_dir
from waypoint.cli.older import OLDER_OPERANDS
from waypoint.cli.parser import grammar
from waypoint.config import WAYPOINT
from waypoint.errors import WaypointError
from waypoint.session.commands.branch_address import BranchAddress
from waypoint.shell.client import ShellClient
from waypoint.store.base_choice import HOST
from waypoint.store.catalogue import Catalogue
from waypoint.store.image_names import short_name

__all__ = ["complete", "completion", "print_candidates"]

SCRIPTS = {
    "bash": """\
_waypoint() {
    local word glue=
    local -a words=()
    # A colon is a word of its own to readline, but SESSION:BRANCH is one word here.
    for word in "${COMP_WORDS[@]:1:COMP_CWORD}"; do
        if [[ $word == : && ${#words[@]} -gt 0 ]]; then
            words[-1]+=:
            glue=yes
        elif [[ -n $glue ]]; then
            words[-1]+=$word
            glue=
        else
            words+=("$word")
        fi
    done
    COMPREPLY=()
    while IFS= read -r word; do COMPREPLY+=("$word"); done < <(
        "${COMP_WORDS[0]}" __complete "${words[@]}" 2>/dev/null
    )
    local before="${words[-1]%"${words[-1]##*:}"}"
    if [[ -n $before && $COMP_WORDBREAKS == *:* ]]; then COMPREPLY=("${COMPREPLY[@]#"$before"}"); fi
    if [[ ${COMPREPLY[0]-} == */ ]]; then compopt -o nospace; fi
}
complete -o default -F _waypoint waypoint checkpoint-lite
""",
    "zsh": """\
#compdef waypoint checkpoint-lite
_waypoint() {
    local -a found
    found=("${(@f)$("${words[1]}" __complete "${(@)words[2,CURRENT]}" 2>/dev/null)}")
    compadd -Q -- ${found:#} || _files
}
compdef _waypoint waypoint checkpoint-lite
""",
    "fish": """\
function __waypoint_complete
    set -l words (commandline -opc) (commandline -ct)
    $words[1] __complete $words[2..-1] 2>/dev/null
end
complete -c waypoint -f -a '(__waypoint_complete)'
complete -c checkpoint-lite -f -a '(__waypoint_complete)'
""",
}


def completion(_state_dir: Path, options: argparse.Namespace) -> Answer:
    script = SCRIPTS[options.shell]
    return Answer(text=script.rstrip("\n"), quiet=script.rstrip("\n"), document={"script": script})


def print_candidates(words: Sequence[str], *, program: str = WAYPOINT) -> int:
    """Called by the scripts, with all words up to the cursor."""
    with suppress(WaypointError, OSError):  # if the state cannot be read: a shell wants words, not an error
        for word in complete(words, program):
            print(word)
    return 0


def complete(words: Sequence[str], program: str = WAYPOINT) -> list[str]:
    """Completions of the last of ``words``. Options only if it begins like one: they would bury the names."""
    *before, unfinished = words or [""]
    return sorted(
        {
            word
            for word in (*_candidates(before, program), *_older_candidates(before, program))
            if word.startswith(unfinished) and word.startswith("-") == unfinished.startswith("-")
        }
    )


def _candidates(before: Sequence[str], program: str) -> Iterator[str]:
    """All words that may follow ``before``."""
    if "--" in before:
        return
    parser, operands, wanted = _walk(before)
    if wanted is not None:
        yield from _values(wanted, operands, typed_state_dir(before, program))
        return
    subverbs = _subverbs(parser)
    if subverbs and not operands:  # after a word that is not a verb, no verb can follow
        yield from subverbs
    positionals = [
        action for action in parser._actions if not action.option_strings and not _is_verb_choice(action)
    ]
    if len(operands) < len(positionals):
        yield from _values(positionals[len(operands)], operands, typed_state_dir(before, program))
    elif positionals and positionals[-1].nargs in ("*", "+"):
        yield from _values(positionals[-1], operands, typed_state_dir(before, program))
    for action in parser._actions:
        yield from (name for name in action.option_strings if name.startswith("--"))


def _older_candidates(before: Sequence[str], program: str) -> Iterator[str]:
    """All words that may follow ``before`` in an older command line, where it differs from the current ones."""
    parser, operands, wanted = _walk(before)
    if wanted is not None or "--" in before:
        return
    if parser.prog == grammar().prog:  # no current verb was typed
        if not operands:
            yield from OLDER_OPERANDS
            return
        verb, *operands = operands
    else:
        verb = parser.prog.partition(" ")[2]
    kinds = OLDER_OPERANDS.get(verb, ())
    if len(operands) >= len(kinds):
        return
    state_dir = typed_state_dir(before, program)
    with catalogue_to_read(state_dir) as catalogue, suppress(WaypointError, OSError):
        if catalogue is not None:
            yield from _catalogue_names(catalogue, kinds[len(operands)], operands, state_dir)


def _walk(
    before: Sequence[str],
) -> tuple[argparse.ArgumentParser, list[str], argparse.Action | None]:
    """The parser of the verb that was typed, its operands so far, and the option that waits for its value."""
    parser, operands = grammar(), list[str]()
    wanted: argparse.Action | None = None
    for word in before:
        if wanted is not None:
            wanted = None
        elif word.startswith("-"):
            action = parser._option_string_actions.get(word)
            wanted = action if action is not None and action.nargs is None else None
        elif word in _subverbs(parser):
            parser, operands = _subverbs(parser)[word], []
        else:
            operands.append(word)
    return parser, operands, wanted


def _is_verb_choice(action: argparse.Action) -> bool:
    return isinstance(action, argparse._SubParsersAction)


def _subverbs(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            return dict(action.choices)
    return {}


def _values(action: argparse.Action, operands: Sequence[str], state_dir: str) -> Iterator[str]:
    """Candidates for one operand or one option's value, chosen by its metavar."""
    if action.choices is not None:
        yield from map(str, action.choices)
        return
    if not isinstance(action.metavar, str):
        return
    with catalogue_to_read(state_dir) as catalogue, suppress(WaypointError, OSError):
        if catalogue is not None:
            yield from _catalogue_names(catalogue, action.metavar, operands, state_dir)


def _catalogue_names(
    catalogue: Catalogue, metavar: str, operands: Sequence[str], state_dir: str
) -> Iterator[str]:
    if metavar in ("BASE", "host|DIR|BASE"):
        yield from (short_name(name) for base in catalogue.bases() for name in base.names)
        if metavar != "BASE":
            yield HOST
        return
    if metavar in ("SESSION", "SESSION[:BRANCH]", "SESSION:BRANCH", "SRC", "DST"):
        for session in catalogue.sessions():
            name = session.name or session.id
            yield name
            if metavar != "SESSION":
                yield from (f"{name}:{branch.name}" for branch in catalogue.branches(session.id))
        return
    if not operands:
        return
    reference, _, branch = operands[0].partition(":")
    session_id = catalogue.session_id(reference)
    if metavar in ("NAME", "NAME|BRANCH"):
        yield from (checkpoint.name for checkpoint in catalogue.checkpoints(session_id))
    if metavar == "FORK:/":
        yield from (f"{record.name}:/" for record in catalogue.branches(session_id))
    if metavar in ("NAME|BRANCH", "FORK"):
        yield from (record.name for record in catalogue.branches(session_id))
    address = BranchAddress(state_dir, catalogue, session_id, branch or "main")
    if metavar in ("T", "TERMINAL"):
        yield from (terminal.name for terminal in address.ask(ShellClient.terminals))
    if metavar == "JOB":
        yield from (str(job.job) for job in address.ask(ShellClient.jobs))
