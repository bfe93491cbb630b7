"""The memory backend keeps the contract as far as its tiny shell goes."""

from collections.abc import Iterator

import pytest

from contract.environment import EnvironmentContract
from statefork import EnvironmentManager, create_env_manager


@pytest.fixture(scope="class")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EnvironmentManager]:
    with create_env_manager("memory", state_dir=tmp_path_factory.mktemp("state")) as manager:
        yield manager


class TestMemory(EnvironmentContract):
    # It starts no programs: no command can time out, and there is no printf and no wc.
    test_commands_return_their_exit_code_and_output = None  # type: ignore[assignment]
    test_a_command_that_times_out_is_ended_and_the_environment_still_works = None  # type: ignore[assignment]
    test_files_are_copied_in_and_out = None  # type: ignore[assignment]
