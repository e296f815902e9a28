"""Branches of `jax.lax.platform_dependent`, of which a compiler keeps the target platform's."""

from __future__ import annotations

from collections.abc import Sequence


def runs_of_branches(platforms: Sequence[Sequence[str] | None], platform: str) -> tuple[int, ...]:
    """Runs of each branch per run of the op: 1 for the platform's branch, 0 for all further ones.

    Args:
      platforms: names of each branch's platforms; None for the default branch.
      platform: jax's name of the target platform, such as "tpu" or "cuda". Every branch counts if
        the name is "", or no branch is the platform's.
    """
    named = [i for i, names in enumerate(platforms) if names is not None and platform in names]
    default = [i for i, names in enumerate(platforms) if names is None and platform]
    if not named and not default:
        return (1,) * len(platforms)
    (kept, *_) = named or default
    return tuple(int(i == kept) for i in range(len(platforms)))
