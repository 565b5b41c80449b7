"""Make the pictures of docs/analysis.md anew, of a modelled trace of Qwen3-1.7B on four chiplets.

    python -m tools.report_pictures

Needs Debian's package chromium.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from dielet.analysis.api import examine
from dielet.analysis.html import page_of
from dielet.profiler.modelled import write_modelled
from dielet.simulator import simulate

ROOT = Path(__file__).parents[1]
CONFIG = ROOT / "tests/simulator/configs/qwen3-1.7b.json"
PICTURES = ROOT / "docs/pictures"
WIDTH = 1300
# The name, the sections that are left in, whether it is dark, and the height.
VIEWS = (
    ("report-summary", ("summary", "timeline"), False, 1800),
    ("report-step", ("step", "roofline"), True, 1290),
)


def view(page: str, sections: tuple[str, ...], dark: bool) -> str:
    """The page with some sections only, and in the colours that are wanted."""
    kept = ", ".join(f"#{name}" for name in sections)
    style = f"<style>section:not({kept}) {{ display: none; }}</style>"
    script = f"<script>setTheme({str(dark).lower()}); redrawAll();</script>"
    return page.replace("</head>", f"{style}</head>").replace("</body>", f"{script}</body>")


def main() -> None:
    browser = shutil.which("chromium") or shutil.which("chromium-browser")
    if browser is None:
        sys.exit("report_pictures: there is no chromium; apt-get install chromium")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        answer = simulate(CONFIG, "rebel100", 20, 8, weights="bf16", max_seq_len=8192)
        executions = [*answer.executions()]
        trace = folder / "qwen3.pb"
        files = write_modelled(executions, answer.device, folder, model=answer.model).files
        files[0].rename(trace)
        page = page_of(examine(trace)).replace(str(folder) + "/", "")
        for picture, sections, dark, height in VIEWS:
            shown = folder / f"{picture}.html"
            shown.write_text(view(page, sections, dark), encoding="utf-8")
            target = PICTURES / f"{picture}.png"
            subprocess.run(
                [browser, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
                 f"--user-data-dir={folder / 'profile'}", "--virtual-time-budget=20000",
                 f"--window-size={WIDTH},{height}", f"--screenshot={target}", shown.as_uri()],
                check=True, capture_output=True,
            )  # fmt: skip
            print(target)


if __name__ == "__main__":
    main()
