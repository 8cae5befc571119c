"""Installs alpa_dejavu; Alpa on stock jax is a package of its own, in patches/, whose wheel lies in this one's."""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from setuptools import find_packages, setup
from setuptools.command.build_py import build_py

HERE = Path(__file__).parent

# The planner, the playground and training: no upper bounds, so that they go into an environment of today.
NEEDS = [
    "jax>=0.4.30",
    "numpy>=1.26",
    "scipy>=1.12",
    "optax>=0.2.3",
    "scikit-learn>=1.4",
    "joblib>=1.3",
    "tqdm",
    "numba>=0.60",
    "highspy>=1.7",
    "protobuf>=5",
    "rich",
    "click>=8.2",
    "pydantic>=2.9",
    "msgspec>=0.19",
    "typing_extensions>=4.12",
    "jinja2>=3.1",
    "pyyaml>=6",
    'tomli>=2; python_version < "3.11"',
]

# What Alpa 0.2.3 and the patches run with, and no other versions, on Python 3.10 to 3.12. Alpa isn't named, since its
# metadata asks for jax==0.3.22 from a fork that is gone: `alpa-dejavu install-alpa` installs it with --no-deps.
RAY = "ray>=2.10,<2.61"
ALPA_NEEDS = [
    "jax==0.4.30",
    "jaxlib==0.4.30",
    "numpy<2",
    "scipy<1.16",
    "flax==0.8.5",
    "optax==0.2.3",
    "chex==0.1.86",
    RAY,
    "pulp",
    "setuptools<81",
    "alpa-stock-jax==0.2.0",
]


class BuildWithPatches(build_py):
    """Builds the package, and in wheels the wheel of patches/ inside it, which `alpa-dejavu install-alpa` installs."""

    def run(self):
        super().run()
        if self.editable_mode:
            return
        wheels = Path(self.build_lib) / "alpa_dejavu" / "wheels"
        wheels.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory() as folder:
            patches = Path(folder) / "patches"
            left_out = shutil.ignore_patterns("build", "*.egg-info", "__pycache__")
            shutil.copytree(HERE / "patches", patches, ignore=left_out)
            build = "import sys; from setuptools import build_meta; build_meta.build_wheel(sys.argv[1])"
            subprocess.run([sys.executable, "-c", build, str(wheels.resolve())], cwd=patches, check=True)


setup(
    cmdclass={"build_py": BuildWithPatches},
    name="alpa-dejavu",
    version="0.2.0",
    description="Plans parallel training for Alpa without compiling or profiling the candidates",
    long_description=(HERE / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    packages=find_packages(include=["alpa_dejavu", "alpa_dejavu.*"]),
    package_data={
        "alpa_dejavu": [
            "py.typed",
            "clusters/*.json",
            "clusters/sheets/*.json",
            "schemas/*.json",
            "costs/*.json",
            "costs/communication/*.json",
            "costs/kernels/*.json",
            "exports/*.csv",
            "exports/templates/*.txt",
            "report/*.css",
            "report/*.j2",
            "report/*.js",
        ]
    },
    python_requires=">=3.10",
    install_requires=NEEDS,
    entry_points={"console_scripts": ["alpa-dejavu = alpa_dejavu.__main__:main"]},
    extras_require={
        "alpa": ALPA_NEEDS,
        "cuda": [*ALPA_NEEDS, "jax[cuda12]==0.4.30"],
        "plots": ["plotly>=6"],
        "flax": ["flax>=0.8.5"],
        "ray": [RAY],
        "optuna": ["optuna>=5"],
        "umap": ["umap-learn>=0.5.7"],
        "benchmarks": ["matplotlib>=3.9", "pandas>=2.2"],
        "byzfl": ["byzfl>=0.0.11"],
        "exports": ["torch==2.13.0"],
        "torch": ["torch>=2.13"],
        "dev": [
            "pytest<9.2",  # pytest-xdist 3.8 can't keep a group of tests in one process with 9.2
            "pytest-timeout",
            "pytest-xdist",
            "hypothesis",
            "import-linter>=2.1",
            "jaxtyping>=0.3,<0.4",
            "ruff",
            "mypy",
            "pylint>=4",
            "types-protobuf",
            "types-tqdm",
            "mkdocs>=1.6,<2",
            "mkdocs-material",
        ],
    },
)
