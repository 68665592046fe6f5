"""Pictures of the README as rendered, and of the docs' home: `make screenshots`.

Chromium (Debian's package) draws them without a window. The README is rendered in a page as wide as a
repository's front page.
"""

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from tests.tree import ROOT

ASSETS: Final = ROOT / "docs" / "assets"
SITE: Final = ROOT / "site" / "index.html"
STYLE: Final = """
body { max-width: 880px; margin: 32px auto; padding: 0 32px; color: #1f2328; line-height: 1.5;
  font: 16px -apple-system, 'Segoe UI', 'Noto Sans', Helvetica, Arial, sans-serif }
h1, h2 { border-bottom: 1px solid #d1d9e0; padding-bottom: 6px }
img { max-width: 100% } a { color: #0969da; text-decoration: none }
table { border-collapse: collapse } td, th { border: 1px solid #d1d9e0; padding: 6px 13px }
pre { background: #f6f8fa; padding: 16px; border-radius: 6px; overflow: auto }
code { font: 13px ui-monospace, 'DejaVu Sans Mono', monospace }
"""


def rendered_readme() -> str:
    extensions = ["-x", "tables", "-x", "fenced_code", "-x", "sane_lists"]
    command = [sys.executable, "-m", "markdown", *extensions, str(ROOT / "README.md")]
    body = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return f'<meta charset="utf-8"><base href="{ROOT.as_uri()}/"><style>{STYLE}</style>{body}'


def draw(page: str, picture: Path, width: int, height: int) -> None:
    command = [
        *("chromium", "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"),
        "--force-prefers-reduced-motion",  # the recording is complete at once
        *(f"--window-size={width},{height}", f"--screenshot={picture}", page),
    ]
    subprocess.run(command, check=True, capture_output=True, timeout=120)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        readme = Path(directory) / "readme.html"
        readme.write_text(rendered_readme(), encoding="utf-8")
        draw(readme.as_uri(), ASSETS / "readme.png", 960, 2900)
    draw(SITE.as_uri(), ASSETS / "home.png", 1280, 1150)
