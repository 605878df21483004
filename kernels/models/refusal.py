"""Why a model cannot be unified, or a call cannot be served."""


class Refusal(ValueError):
    """What was asked for would not keep the bits, or is not supported. The message names cause and next step."""
