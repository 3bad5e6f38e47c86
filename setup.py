"""What is installed: one package, `dp_transforms`; the folders `pipelines` and `runners` are in it under its name.

All else is declared in pyproject.toml. Apache Beam's ``--setup_file`` takes this file as well.
"""

from setuptools import find_packages, setup

FOLDERS = {"dp_transforms": "dp_transforms", "dp_transforms.pipelines": "pipelines", "dp_transforms.runners": "runners"}

setup(
    packages=[
        name
        for package, folder in FOLDERS.items()
        for name in (package, *(f"{package}.{inner}" for inner in find_packages(folder)))
    ],
    package_dir=FOLDERS,
    package_data={
        "dp_transforms": ["py.typed"],
        "dp_transforms.pipelines.page": [
            "assets/*",
            "charts/*.json",
            *("library/*.min.js", "library/LICENSES.txt", "library/SHA256SUMS", "library/package.json"),
        ],
    },
)
