"""The model: rows of factor matrices in, one number per entry out."""

from jointensor.models.joint import JointModel

__all__ = ["JointModel"]
