"""Pieces of an answer as messages."""

from __future__ import annotations

from generator_service.engine import Candidate, Piece
from tensorway.v1 import common_pb2, generator_pb2

_REASONS = {
    "stop": generator_pb2.FINISH_REASON_STOP,
    "length": generator_pb2.FINISH_REASON_LENGTH,
}


def response(
    piece: Piece, request_id: str, usage: common_pb2.Usage
) -> generator_pb2.GenerateResponse:
    """One message; the last one also says what the request cost."""
    message = generator_pb2.GenerateResponse(
        request_id=request_id,
        token_ids=piece.token_ids,
        text=piece.text,
        logprobs=[_logprobs(place) for place in piece.logprobs],
    )
    if piece.finish_reason is not None:
        message.finish_reason = _REASONS[piece.finish_reason]
        message.stop_reason = piece.stop_reason
        message.usage.CopyFrom(usage)
    return message


def _logprobs(place: list[Candidate]) -> generator_pb2.TokenLogprobs:
    candidates = [generator_pb2.TokenLogprob(**one._asdict()) for one in place]
    return generator_pb2.TokenLogprobs(candidates=candidates)
