"""Package metadata, read from settings.ini so that it stands in one place."""
from configparser import ConfigParser
from pathlib import Path

from setuptools import setup

here = Path(__file__).parent
config = ConfigParser(delimiters=["="], interpolation=None)
config.read(here / "settings.ini", encoding="utf-8")
cfg = config["DEFAULT"]

setup(
    name=cfg["lib_name"],
    version=cfg["version"],
    description=cfg["description"],
    long_description=(here / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    author=cfg["author"],
    license=cfg["license"],
    keywords=cfg["keywords"],
    python_requires=f">={cfg['min_python']}",
    packages=["ltf_nb"],
    package_data={"ltf_nb": ["data/*"]},
    install_requires=cfg["requirements"].split(),
    extras_require={extra: cfg[f"{extra}_requirements"].split() for extra in ("rl", "figures", "docs", "dev")},
)
