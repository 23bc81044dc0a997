"""The commands that the page on the command line prints run as printed."""

import re
import shlex
from pathlib import Path

from safetensors.torch import load_file

PAGE = Path(__file__).resolve().parents[2] / "docs" / "command-line.md"


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)


def test_the_commands_run_as_printed(here):
    exec(compile(blocks("python")[0], PAGE.name, "exec"), {"__name__": "example"})
    commands = [line for block in blocks("bash") for line in block.replace("\\\n", " ").splitlines()]
    assert len(commands) >= 3
    for command in commands:
        program, *arguments = shlex.split(command)
        assert program == "coset"
        code, _, err = here(*arguments)
        assert (code, err) == (0, ""), command
        if arguments[0] in ("barrier", "compare"):
            assert all(Path(f"{arguments[-1]}.{kind}").stat().st_size for kind in ("png", "svg", "json", "csv"))
        else:
            assert load_file(arguments[-1])
