"""A request of a replay, and what has become of it so far."""

from __future__ import annotations

from collections.abc import Sequence

from physim.replay.segment import Segment
from physim.service.phases import decode_steps


class Request:
    """A request and what becomes of it.

    Attributes:
        number: Its place in the order in which requests were made.
        arrival_s: When the client sends it, seconds.
        input_tokens: Prompt tokens.
        output_tokens: Tokens it generates.
        stage: Stage of the load that it belongs to.
        path: Segments of its prompt that others may share, from the front.
        prefix_tokens: Tokens of its prompt that are found in the prefix cache whenever it starts,
            shared with no other request.
        conversation: The conversation that it belongs to, if any.
        cached_tokens: Prompt tokens found in the prefix cache when it first ran.
        scheduled_s: When it first ran; None if it never did. So with the next two.
        first_token_s: When its first token was ready,
        first_output_s: and how long it then took to be out.
        beside_s: Time of the step beside the one that was under way when it came; 0 if none was.
        finished_s: When its last token was ready,
        last_output_s: and how long it then took to be out.
        dropped_s: When the client gave up.
        preemptions: How often it lost its KV blocks and had to start over.
        stopped_s: When it last did, or left for another server, seconds.
        handed_tokens: Tokens whose keys and values came with it from another server.
        loaded_tokens: Of its ``cached_tokens``, those that came up from the host's memory.
        fetched_tokens: Of these, those that had come there from the disk.
    """

    # Beside these the replay's own notes: `target` tokens must be computed before the next is
    # generated, `computed` and `generated` are; `held` segments have `shared` of its blocks,
    # `fixed` ones do not grow with it, it had `ahead` for tokens yet to be computed when it lost
    # its place, room is kept for `kept`; what the disk alone has was `fetched`; it was the
    # `started`-th to start, and, had it always decoded, `began` at that count of steps of its
    # batch.
    __slots__ = (
        "ahead",
        "arrival_s",
        "began",
        "beside_s",
        "cached_tokens",
        "computed",
        "conversation",
        "dropped_s",
        "fetched",
        "fetched_tokens",
        "finished_s",
        "first_output_s",
        "first_token_s",
        "fixed",
        "generated",
        "handed_tokens",
        "held",
        "input_tokens",
        "kept",
        "last_output_s",
        "loaded_tokens",
        "number",
        "output_tokens",
        "path",
        "preemptions",
        "prefix_tokens",
        "scheduled_s",
        "shared",
        "stage",
        "started",
        "stopped_s",
        "target",
    )

    def __init__(
        self,
        number: int,
        arrival_s: float,
        input_tokens: int,
        output_tokens: int,
        stage: int = 0,
        path: Sequence[Segment] = (),
        conversation: int | None = None,
        prefix_tokens: int = 0,
    ) -> None:
        self.number = number
        self.arrival_s = arrival_s
        self.input_tokens = self.target = input_tokens
        self.output_tokens = output_tokens
        self.stage = stage
        # Of the same segments the same tuple, for there may be millions of requests.
        self.path = tuple(path)
        self.conversation = conversation
        self.prefix_tokens = prefix_tokens
        self.cached_tokens = self.computed = self.generated = self.shared = self.began = (
            self.started
        ) = 0
        self.preemptions = self.fixed = self.kept = self.handed_tokens = self.ahead = 0
        self.loaded_tokens = self.fetched_tokens = 0
        self.fetched = False
        self.stopped_s = 0.0
        self.beside_s = self.first_output_s = self.last_output_s = 0.0
        self.held: tuple[Segment, ...] = ()
        self.scheduled_s: float | None = None
        self.first_token_s: float | None = None
        self.finished_s: float | None = None
        self.dropped_s: float | None = None

    @property
    def decode_steps(self) -> int:
        """Steps in which it decodes."""
        return decode_steps(self.output_tokens)

    @property
    def kv_tokens(self) -> int:
        """Tokens that it comes to hold in the KV cache."""
        return self.input_tokens + self.decode_steps

    @property
    def is_complete(self) -> bool:
        """Whether it has all its tokens."""
        return self.generated == self.output_tokens

    def leave(self, hands_token: bool) -> None:
        """It leaves the server that has computed its prompt, to go on at another.

        Its client hears of nothing until that one has it.

        Args:
            hands_token: Whether the token that the prompt gave goes with it; else the last token of
                the prompt is computed again, and gives it.
        """
        self.first_token_s = None
        self.generated = 1 if hands_token else 0
        self.target = self.input_tokens + self.generated
        self.handed_tokens = self.target - 1
        self.held, self.path = (), ()
        self.shared = self.kept = self.ahead = 0
