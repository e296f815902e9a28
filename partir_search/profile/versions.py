"""Versions of jax and of the compiler that a profile was measured with."""

from __future__ import annotations

import importlib.metadata


def versions_here(compiler: str) -> tuple[str, str]:
    """Versions of jax, and of the compiler as ``jaxlib 0.10.2``.

    Args:
      compiler: package of the compiler: jaxlib, or libtpu.
    """
    return importlib.metadata.version("jax"), f"{compiler} {_version(compiler)}"


def check_versions(jax: str, xla: str, where: str, remedy: str) -> None:
    """Checks versions against those of this process; a compiler that is not installed is not
    checked.

    Args:
      where: name of the profile, for the message.
      remedy: end of the message.

    Raises:
      ValueError: the versions differ.
    """
    compiler, _, version = xla.partition(" ")
    known = _version(compiler)
    for name, then, now in (("jax", jax, _version("jax")), (compiler, version, known or version)):
        if then != now:
            raise ValueError(
                f"profile: {where} was measured with {name} {then}, and this is {name} {now}, whose"
                f" kernels may take other seconds; {remedy}"
            )


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""
