"""Why rolling back the database is not enough: a shop whose state is also in a file and in the memory of its server.

An agent tries something that goes wrong. First only the database is restored, then the whole environment.
Run as root: ``python examples/database_rollback.py [METHOD]`` (default: waypoint).
"""

import sys
from pathlib import Path

from statefork import create_env_manager
from statefork.benchmark.workloads import make_workload


def main() -> None:
    method = sys.argv[1] if len(sys.argv) > 1 else "waypoint"
    options = {"dockerfile_dir": str(Path.cwd()), "build": False} if method == "waypoint" else {}
    shop = make_workload("db")
    with create_env_manager(f"{method}_build", strict=True, **options) as env:
        shop.begin(env.core)
        print(f"two books in the cart:              {shop.state(env.core)}", end="")
        env.exec_command(f"cp {shop.home}/shop.db {shop.home}/backup.db")
        ready = env.core.snapshot().snapshot_id

        env.exec_command(shop.step(89))
        print(f"the agent's idea, which was bad:    {shop.state(env.core)}", end="")

        env.exec_command(f"cp {shop.home}/backup.db {shop.home}/shop.db")
        print(f"only the database rolled back:      {shop.state(env.core)}", end="")

        env.restore(ready)
        print(f"the whole environment restored:     {shop.state(env.core)}", end="")


if __name__ == "__main__":
    main()
