"""A policy as files that other software runs: one plain model, and the head in a form that vLLM's pooling engine takes.

`paretune.policy.export.merged` writes models, `sensor` writes heads, `write` puts a folder together.
"""

from paretune.policy.export.sensor import affine_layers, why_no_sensor
from paretune.policy.export.write import PROVENANCE, TARGETS, Exported, check_export, export_policy, policy_print

__all__ = [
    "PROVENANCE",
    "TARGETS",
    "Exported",
    "affine_layers",
    "check_export",
    "export_policy",
    "policy_print",
    "why_no_sensor",
]
