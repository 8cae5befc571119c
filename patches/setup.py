"""Puts alpa_stock_jax.pth beside the package, in wheels and in editable installs alike: it installs the import hook."""

import pathlib

import setuptools
from setuptools.command.build_py import build_py

HOOK = "alpa_stock_jax.pth"


class BuildWithHook(build_py):
    """Builds the package and copies the hook's .pth file to where it lands in site-packages."""

    def run(self):
        super().run()
        # An editable wheel leaves the package where it is, and holds what is to be installed beside it.
        target = self.distribution.get_command_obj("install").install_lib if self.editable_mode else self.build_lib
        self.copy_file(str(pathlib.Path(__file__).with_name(HOOK)), str(pathlib.Path(target) / HOOK))

    def get_outputs(self, *args, **kwargs):
        outputs = super().get_outputs(*args, **kwargs)
        return outputs if self.editable_mode else [*outputs, str(pathlib.Path(self.build_lib) / HOOK)]


setuptools.setup(cmdclass={"build_py": BuildWithHook})
