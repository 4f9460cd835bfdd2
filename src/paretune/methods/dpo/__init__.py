"""Direct preference optimisation on the chosen and the rejected completion."""

from paretune.methods.dpo.method import METHOD
from paretune.methods.registry import register

register(METHOD)
