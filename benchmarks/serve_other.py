"""The server that ``serve_load.py`` compares with ours: ``python benchmarks/serve_other.py RUN PORT``."""

import base64
import sys
from typing import Any

import litserve

import opabinia
from opabinia.data.decoding.images import decode_bytes


class Api(litserve.LitAPI):
    """The steps of our server: decoding, transforms, model and readable result."""

    def setup(self, device: str) -> None:
        """Load the run."""
        self.predictor = opabinia.load(sys.argv[1])

    def decode_request(self, request) -> Any:  # type: ignore[no-untyped-def]  # a type would be that of a parameter
        """Return the transformed sample."""
        content = base64.b64decode(request["image"])
        return self.predictor.sample(decode_bytes(content, "image", self.predictor.channels))

    def predict(self, sample: Any) -> Any:
        """Return the readable prediction."""
        return self.predictor.batch([sample])[0].readable

    def encode_response(self, readable: Any) -> Any:
        """Return it as it is."""
        return readable


if __name__ == "__main__":
    server = litserve.LitServer(Api(), accelerator="cpu")
    server.run(
        host="127.0.0.1", port=int(sys.argv[2]), generate_client_file=False, log_level="error", num_api_servers=1
    )
