"""Named model endpoints: `model("PROVIDER/NAME")`, `model("local/smollm2")`, any OpenAI-compatible server."""

from fanfold.calls import Reply
from fanfold.models.model import Model
from fanfold.models.naming import model
from fanfold.models.pricing import Price
from fanfold.models.requests import image

__all__ = ["Model", "Price", "Reply", "image", "model"]
