"""Write docs/commands.md from the entries of the command set."""

from pathlib import Path

from dielet.program.reference import reference

if __name__ == "__main__":
    (Path(__file__).parent.parent / "docs" / "commands.md").write_text(reference())
