"""An application with its own encoder, which sees whether a picture is dark or bright.

>>> python -m examples.own_encoder MODEL_FOLDER 127.0.0.1:50060 picture.png
"""

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path

from safetensors import safe_open
from tokenizers import Tokenizer

from encoder_service.handoff import ExternalEncoderHandoff
from tensorway.encoder import VisionEncoderBackend
from tensorway.handoff.elements import Rows
from tensorway.images import Image
from tensorway.v1 import generator_pb2, handoff_pb2


class Brightness(VisionEncoderBackend):
    """Gives the rows that the model itself has for the words " dark" and " bright"."""

    def build(self, model_id: str) -> None:
        """Read the model's words; the placeholder is the first id that is none of them."""
        self.tokenizer = Tokenizer.from_file(f"{model_id}/tokenizer.json")
        with safe_open(f"{model_id}/model.safetensors", framework="np") as weights:
            self.embeddings = weights.get_tensor("model.embed_tokens.weight")
        self.image_token_id = len(self.embeddings)

    def forward_batch(self, items: Sequence[Image]) -> Sequence[Rows]:
        """One tensor for each image, [rows, hidden size]."""
        words = [" bright" if image.pixels.mean() > 127 else " dark" for image in items]
        return [self.embeddings[self.tokenizer.encode(word).ids] for word in words]


async def main(folder: str, generator: str, picture: bytes) -> None:
    """Ask the model `smollm2` about a picture."""
    backend = Brightness()
    handoff = ExternalEncoderHandoff(backend, generator)
    await handoff.load(folder)
    before = backend.tokenizer.encode("<|im_start|>user\nMy room is").ids
    question = ". Is it dark or bright? Answer with one word."
    end = "<|im_end|>\n<|im_start|>assistant\n"
    after = backend.tokenizer.encode(f"{question}{end}").ids
    request = generator_pb2.GenerateStart(
        prompt_token_ids=[*before, backend.image_token_id, *after],
        images=[handoff_pb2.ImageInput(data=picture)],
        sampling_params=generator_pb2.SamplingParams(temperature=0, max_tokens=32),
        return_text=True,
    )
    prepared = await handoff.prepare_request(request, target_model="smollm2")
    async for response in handoff.generate(prepared):
        print(response.text, end="", flush=True)
    await handoff.shutdown()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], Path(sys.argv[3]).read_bytes()))
