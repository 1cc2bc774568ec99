"""Every message between processes, by channel: msgspec structs, as MessagePack (`workers.shared.bus`), not pickles."""

from bisect import bisect_left

import msgspec

from workers.shared.cascade.figures import ModelFigures
from workers.shared.emulation import Emulation
from workers.shared.frames import Frame, Natural, TreeFrame
from workers.shared.live.messages import Passage, Report, Trace, Watch
from workers.shared.progress import Loading

# --- sampling ---


class Sampling(msgspec.Struct, frozen=True, omit_defaults=True):
    """How to turn logits into a token. The server validates; the last stage obeys, and drafters follow."""

    seed: int  # of the counter-based noise; the server draws one where the client gives none
    temperature: float = 1.0  # 0 is greedy
    top_p: float = 1.0
    top_k: int = 0  # 0 keeps all
    min_p: float = 0.0
    presence_penalty: float = 0.0  # over the output only
    frequency_penalty: float = 0.0  # over the output only
    repetition_penalty: float = 1.0  # over prompt and output
    logit_bias: dict[int, float] = {}
    min_tokens: int = 0  # end tokens are masked before this many tokens of output
    end_tokens: tuple[int, ...] = ()  # what `min_tokens` masks
    logprobs: int | None = None  # None: none; k: of the token and of the k most likely
    prompt_logprobs: int | None = None  # the same for the tokens of the prompt; all of it is then computed anew
    grammar: str | None = None  # what the output must match, in llguidance's notation; the server has compiled it


class TokenLogprobs(msgspec.Struct, frozen=True, array_like=True):
    """Natural-log probabilities from the raw logits of one position, before any parameter reshapes them."""

    logprob: float
    top: list[tuple[int, float]]  # (token, logprob), most likely first


# --- control channel: rank 0 -> every stage ---


class Open(msgspec.Struct, frozen=True, array_like=True, tag="open"):
    """A request takes over a sequence slot; all its frames carry `epoch` or a newer one."""

    sequence: Natural
    epoch: Natural
    prompt_tokens: Natural
    sampling: Sampling
    reused: Natural = 0  # positions that are held already, for its prompt begins with them
    source: Natural | None = None  # the slot to copy them from; None: they are in this one

    @property
    def holder(self) -> int:
        """The slot that holds the reused positions."""
        return self.sequence if self.source is None else self.source


class Rollback(msgspec.Struct, frozen=True, array_like=True, tag="rollback"):
    """The request has ended: frames of the sequence older than `epoch` are dead. So says a frame of a newer epoch.

    Of its keys and values those of the first `kept` positions stay, for prompts that begin alike.
    """

    sequence: Natural
    epoch: Natural
    kept: Natural = 0


class Compile(msgspec.Struct, frozen=True, array_like=True, tag="compile"):
    """A request will have this grammar: the last stage compiles it beside its loop, and says when it is ready."""

    number: Natural
    grammar: str


class Ping(msgspec.Struct, frozen=True, array_like=True, tag="ping"):
    """Answered by the stage's own loop between two frames, so an answer means that the loop turns."""

    number: Natural


class Observe(msgspec.Struct, frozen=True, array_like=True, tag="observe"):
    """From now on, stages tap the hidden states with these indices: k is the output of decoder layer k - 1."""

    anchors: tuple[int, ...]


class Shutdown(msgspec.Struct, frozen=True, array_like=True, tag="shutdown"):
    """Finish and leave."""


ToStage = Frame | TreeFrame | Open | Rollback | Compile | Ping | Observe | Report | Shutdown

# --- results channel: every stage -> rank 0 ---


class Ready(msgspec.Struct, frozen=True, array_like=True, tag="ready"):
    """A stage has loaded its shard."""

    stage: Natural
    layers: int
    weight_bytes: int
    kv_bytes: int
    seconds: float
    fingerprint: dict[str, str] = {}  # see workers.shared.fingerprint


class Compiled(msgspec.Struct, frozen=True, array_like=True, tag="compiled"):
    """The last stage has done what `Compile` asked for; a grammar that is wrong fails with its first sample."""

    stage: Natural
    number: Natural


class Tap(msgspec.Struct, frozen=True, array_like=True, tag="tap"):
    """Hidden states of one computed frame, in frame order of a stage; the last stage's go with its samples."""

    stage: Natural
    sequence: Natural
    epoch: Natural
    position: Natural  # of the frame's first token
    dtype: str  # a torch dtype's name
    data: bytes  # [tokens, anchors that this stage owns, hidden]
    frame: Natural = 0  # its announcement number


class Sample(msgspec.Struct, frozen=True, array_like=True, tag="sample"):
    """A live frame has left the last stage: every token that is determined by it.

    One token where the frame ends a prompt. Of output and drafts, a token after the frame's row that holds the newest
    verified token, and after each of its rows that holds what was sampled before it, in turn. None where the frame
    wanted no sample, or where all its drafts stand behind one that was wrong.
    """

    sequence: Natural
    epoch: Natural
    position: Natural  # of the first of `tokens`; without any, the position after the frame
    tokens: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprobs, ...] = ()  # as many as tokens, if the request asked for them
    error: str | None = None  # why no token could be sampled after these; ends the request, not the engine
    probabilities: tuple[float, ...] = ()  # of the tokens, where they are not greedy
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()  # if asked for: of the frame's tokens, but the prompt's first
    tap: Tap | None = None  # of the last stage, if it was asked for any

    @property
    def end(self) -> int:
        """Position after the last token."""
        return self.position + len(self.tokens)


class StageTimings(msgspec.Struct):
    """Cumulative counters of one stage since it started; times in nanoseconds."""

    frames: int = 0  # computed
    skipped: int = 0  # dead, forwarded without computing
    tokens: int = 0  # in computed frames
    idle_ns: int = 0  # no announced frame to work on
    receive_ns: int = 0  # waiting for the tensor of an announced frame
    forward_ns: int = 0  # layers (and embedding)
    sample_ns: int = 0  # final norm, LM head, sampler (last stage)
    emulate_ns: int = 0  # asleep, to reach the emulated stage time
    send_ns: int = 0  # handing the tensor, or the sample, to the next in line

    @property
    def busy_ns(self) -> int:
        """Time spent on frames, emulated time included."""
        return self.forward_ns + self.sample_ns + self.emulate_ns + self.send_ns

    @property
    def total_ns(self) -> int:
        """Time since start, as far as recorded."""
        return self.busy_ns + self.idle_ns + self.receive_ns


class Pong(msgspec.Struct, frozen=True, array_like=True, tag="pong"):
    """Answer to `Ping`."""

    number: Natural
    stage: Natural
    timings: StageTimings


class Failure(msgspec.Struct, frozen=True, array_like=True, tag="failure"):
    """A stage cannot go on; it leaves after sending this."""

    stage: Natural
    error: str
    permanent: bool = False  # a restart would not mend it


FromStage = Ready | Loading | Compiled | Sample | Tap | Pong | Passage | Failure

# --- request bus: server -> rank 0 ---


class Generate(msgspec.Struct, frozen=True, tag="generate"):
    """One sequence to generate, or to go on with."""

    id: str
    prompt: list[int]  # at least one token
    max_tokens: int  # at least one; prompt and max_tokens fit the context together
    sampling: Sampling
    stop_tokens: tuple[int, ...] = ()  # generation ends after any of these; it is reported, not hidden
    generated: tuple[int, ...] = ()  # output that an engine which was lost has given; fewer than max_tokens
    priority: int = 0  # of requests that wait, those with the lowest number start first


class Abort(msgspec.Struct, frozen=True, tag="abort"):
    """The client has gone, or a stop string was found; unknown ids are ignored."""

    id: str


class Probe(msgspec.Struct, frozen=True, tag="probe"):
    """Asks for a `Status` that has been through the engine loop and every stage."""

    number: Natural


ToEngine = Generate | Abort | Probe | Watch

# --- request bus: rank 0 -> server ---


DEPTHS = (1, 2, 3, 4, 6, 8, 12, 16)  # of drafts, those that had to be right before it included; the last: or more
HIT_RANKS = (1, 2, 4, 8, 16)  # widths for which it is counted whether the right token was among the candidates


class SpeculationCounts(msgspec.Struct):
    """Cumulative; drafted == accepted + rejected + discarded once a request has ended.

    Of several drafts at one position, one is accepted or, where all were wrong, rejected; the others are discarded.
    """

    drafted: int = 0
    levels: int = 0  # times that a position got drafts: with one a position, as many as were drafted
    accepted: int = 0
    rejected: int = 0
    discarded: int = 0
    sent: int = 0  # drafts in frames
    moved: int = 0  # accepted drafts that were not the likeliest at their position: their rows had to be moved
    cycles: int = 0  # of stage time: 1 a frame, n for one that found the pipeline empty (docs/design.md, "Words")
    ranked: int = 0  # verified drafts
    hits: list[int] = msgspec.field(default_factory=lambda: [0] * len(HIT_RANKS))  # by HIT_RANKS
    bounded: int = 0  # verified drafts with known probabilities, which only sampling has
    bound: float = 0.0  # sum over these of an estimate of sum min(p, q), the best acceptance there could be
    judged_at: list[int] = msgspec.field(default_factory=lambda: [0] * len(DEPTHS))  # drafts that deep, by DEPTHS
    accepted_at: list[int] = msgspec.field(default_factory=lambda: [0] * len(DEPTHS))  # of these

    def judge(self, depth: int, *, right: bool) -> None:
        """A draft made as the `depth`-th after the newest verified token, from 1, was right, or not."""
        place = bisect_left(DEPTHS, min(depth, DEPTHS[-1]))
        self.judged_at[place] += 1
        self.accepted_at[place] += right

    def rank(self, place: int | None) -> None:
        """The verified token was candidate number `place`, from 0, or none of them."""
        self.ranked += 1
        for index, width in enumerate(HIT_RANKS):
            self.hits[index] += place is not None and place < width

    def compare(self, probability: float, drafted: float) -> None:
        """A verified token had `probability` in the target's distribution, and `drafted` in the drafter's.

        The mean of min(1, q(x)/p(x)) over tokens x of p is sum min(p, q).
        """
        self.bounded += 1
        self.bound += min(1.0, drafted / probability)

    def add(self, other: "SpeculationCounts") -> None:
        """Adds `other` to this."""
        for name in self.__struct_fields__:
            mine, others = getattr(self, name), getattr(other, name)
            if isinstance(mine, list):
                mine[:] = [count + more for count, more in zip(mine, others, strict=True)]
            else:
                setattr(self, name, mine + others)


class Beginning(msgspec.Struct, frozen=True, array_like=True):
    """How a request came to its first token; times in nanoseconds."""

    cached: int = 0  # prompt positions that were not computed again
    ahead: int = 0  # requests that would start before it when it arrived
    queue_ns: int = 0  # from its arrival in the engine until it had a slot
    prefill_ns: int = 0  # from there to its first token


class Tokens(msgspec.Struct, frozen=True, omit_defaults=True, tag="tokens"):
    """Verified tokens, in order. The last message of a request, and no other, has a `finish`."""

    id: str
    tokens: list[int]
    logprobs: list[TokenLogprobs] = []  # as many as tokens, if the request asked for them
    finish: str | None = None  # "stop" (the last token is a stop token), "length" or "abort"
    counts: SpeculationCounts | None = None  # with `finish`
    beginning: Beginning | None = None  # with the first token
    prompt_logprobs: list[TokenLogprobs] = []  # with the first token, if asked for: of the prompt's, but its first


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    """The request has ended without a result."""

    id: str
    error: str


class EngineInfo(msgspec.Struct, frozen=True):
    """What the engine serves; fixed for its life."""

    stages: int
    split: tuple[int, ...]  # layers a stage
    drafter: str
    delta: int
    max_model_len: int
    vocab_size: int
    rehearsal: bool  # the sampler takes drafts by chance: the text means nothing
    emulated: Emulation = Emulation()
    num_speculative_tokens: int = 0  # drafts a frame; 0: one token a frame, and frames in every stage
    max_num_seqs: int = 1  # requests that run at a time
    tokens_per_frame: int | str = 1  # of frames in every stage; "auto": chosen for each request
    tree_width: int | str = 1  # most drafts for one position, likewise
    fingerprint: dict[str, str] = {}  # see workers.shared.fingerprint


class RankTimings(msgspec.Struct):
    """Cumulative times of the speculation rank, nanoseconds."""

    decode_ns: int = 0  # between the first and the last verified token of each request
    commit_ns: int = 0  # handling samples, announcements not counted
    announce_ns: int = 0  # handing control messages to the channels of all stages


class EngineStats(msgspec.Struct):
    """Cumulative figures of the engine since it started."""

    counts: SpeculationCounts = msgspec.field(default_factory=SpeculationCounts)
    full_cycles: int = 0  # cycles timed with the pipeline full
    full_cycle_ns: int = 0
    drafts: int = 0  # asked of the drafter
    draft_ns: int = 0  # time it took over them
    drafter_failures: int = 0  # each has silenced a drafter, at least until the next request
    prefix_cache_queries: int = 0  # prompt tokens that might have been held already
    prefix_cache_hits: int = 0  # those that were, and were not computed again
    rank: RankTimings = msgspec.field(default_factory=RankTimings)


class ControllerStatus(msgspec.Struct, frozen=True):
    """What drafts, and why."""

    choice: str  # the drafter in use, or the last that was
    predicted: dict[str, float]  # tokens a second of every choice
    switches: int = 0  # from one choice to another
    probes: int = 0  # of choices that were not thought to be the best
    calibrated: bool = True  # whether the predictions rest on this machine's times


class KvUse(msgspec.Struct, frozen=True):
    """Positions of keys and values, of all slots together."""

    total: int = 0
    running: int = 0  # written for requests that run
    kept: int = 0  # held in idle slots for prompts that begin alike


class Status(msgspec.Struct, frozen=True, tag="status"):
    """How the engine is, as of a ping answered by every stage."""

    number: Natural  # of the Probe
    info: EngineInfo
    running: int  # requests in the pipeline
    waiting: int  # requests queued behind them
    stats: EngineStats
    controller: ControllerStatus
    stages: list[StageTimings]
    dropped: int = 0  # messages that rank 0 could not read
    credits: dict[str, int] = {}  # frames in flight, by kind: certain, draft, prompt
    kv: KvUse = KvUse()
    models: list[ModelFigures] = []  # that draft in processes of their own, the smallest first
    calibrating: bool = False  # requests wait until it is known what the drafters gain here


class KeepAlive(msgspec.Struct, frozen=True, tag="keep_alive"):
    """Says nothing. That it cannot be delivered tells rank 0 that the client has gone."""


FromEngine = Tokens | Failed | Status | KeepAlive | Trace
