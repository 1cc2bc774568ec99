"""The board of the pipeline."""

from tests.boards.panels import ACCEPTANCE, ENGINE_UP, PER_CYCLE, Panel, Row, gauge, rate, stat

_STAGE = "stage {{stage}}"
_BUSY = 'phase=~"forward|sample|emulate|send"'
_COMPUTED = 'outcome="computed"'


def _per_stage(phase: str) -> list[tuple[str, str]]:
    return [(f"sum by (stage) ({rate('stage_seconds_total', f'phase={phase}')})", _STAGE)]


PIPELINE = [
    Row(
        "Now",
        [
            ENGINE_UP,
            stat("Tokens per cycle", PER_CYCLE, text="1 is what each cycle could yield with all drafts right"),
            stat("Drafts accepted", ACCEPTANCE, "percentunit"),
            stat("Full cycle", gauge("cycle_seconds"), "s", "When the pipeline was last full"),
            Panel(
                "Configuration",
                [(gauge("engine_info"), "{{stages}} stages of {{split}} layers, {{drafter}}")],
                kind="stat",
                height=4,
            ),
        ],
    ),
    Row(
        "Stages",
        [
            Panel(
                "Busy",
                [(f"sum by (stage) ({rate('stage_seconds_total', _BUSY)})", _STAGE)],
                "percentunit",
                "Share of the time spent on frames",
            ),
            Panel("Idle", _per_stage('"idle"'), "percentunit", "No frame to work on"),
            Panel("Waiting for hidden states", _per_stage('"receive"'), "percentunit"),
            Panel(
                "Time of a frame",
                [
                    (
                        f"sum by (stage) ({rate('stage_seconds_total', _BUSY)}) / "
                        f"sum by (stage) ({rate('stage_frames_total', _COMPUTED)})",
                        _STAGE,
                    )
                ],
                "s",
            ),
            Panel(
                "Frames a second",
                [(f"sum by (stage, outcome) ({rate('stage_frames_total')})", "stage {{stage}}, {{outcome}}")],
            ),
            Panel("Tokens a second", [(f"sum by (stage) ({rate('stage_tokens_total')})", _STAGE)]),
        ],
    ),
    Row(
        "Cycle",
        [
            Panel(
                "Full cycle and its fixed cost",
                [(gauge("cycle_seconds"), "cycle"), (gauge("fixed_cost_seconds"), "beyond the slowest stage")],
                "s",
            ),
            Panel(
                "Rank 0, a cycle",
                [
                    (f"{rate('commit_seconds_total')} / {rate('speculation_cycles_total')}", "samples"),
                    (f"{rate('announce_seconds_total')} / {rate('speculation_cycles_total')}", "announcements"),
                    (f"{rate('draft_seconds_total')} / {rate('speculation_cycles_total')}", "drafts"),
                ],
                "s",
            ),
            Panel(
                "Frames in flight",
                [(f"sum by (kind) ({gauge('credits_in_use')})", "{{kind}}")],
                text="With verified tokens, drafts, or pieces of prompts",
                stacked=True,
            ),
        ],
    ),
    Row(
        "Drafts",
        [
            Panel("Accepted", [(ACCEPTANCE, "of those judged")], "percentunit"),
            Panel(
                "Accepted, by depth",
                [
                    (
                        f"sum by (depth) ({rate('speculation_accepted_by_depth_total')}) / "
                        f"sum by (depth) ({rate('speculation_judged_by_depth_total')})",
                        "draft {{depth}}",
                    )
                ],
                "percentunit",
                "Of drafts made as the first, second... after the newest verified token; its own ancestors being right",
            ),
            Panel("Tokens per cycle", [(PER_CYCLE, "")]),
            Panel(
                "Drafts a second",
                [(rate(f"speculation_{end}_total"), end) for end in ("accepted", "rejected", "discarded")],
                stacked=True,
            ),
            Panel(
                "Right token among the first candidates",
                [
                    (
                        f"sum by (candidates) ({rate('speculation_hits_total')}) / on () group_left () "
                        f"sum({rate('speculation_ranked_total')})",
                        "of {{candidates}}",
                    )
                ],
                "percentunit",
                "hit@W",
            ),
            Panel(
                "Discarded work",
                [(f"{rate('speculation_discarded_total')} / {rate('speculation_drafted_total')}", "")],
                "percentunit",
                "Drafts that were never judged",
            ),
            Panel("Time of a draft", [(f"{rate('draft_seconds_total')} / {rate('drafts_total')}", "")], "s"),
            Panel("What drafts", [(gauge("speculation_choice"), "{{drafter}}")], text="1: in use"),
            Panel(
                "What each choice should do",
                [(gauge("speculation_predicted_tokens_per_second"), "{{drafter}}")],
                text="Tokens a second",
            ),
            Panel(
                "Changes, trials and failures a second",
                [
                    (rate("speculation_switches_total"), "changes"),
                    (rate("speculation_probes_total"), "trials"),
                    (rate("drafter_failures_total"), "failures"),
                ],
            ),
        ],
    ),
    Row(
        "Memory and messages",
        [
            Panel("KV positions", [(f"sum by (use) ({gauge('kv_cache_positions')})", "{{use}}")], stacked=True),
            Panel("Messages that could not be read, a second", [(rate("dropped_messages_total"), "")]),
            Panel(
                "Engines begun anew",
                [("sum(resets(" + gauge("stage_seconds_total", 'phase="idle", stage="0"') + "[$__range]))", "")],
                text="In the time shown",
            ),
        ],
    ),
    Row(
        "Devices (NVIDIA; of the API server's host)",
        [
            Panel("Computing", [(gauge("device_utilization_ratio"), "{{device}} {{device_name}}")], "percentunit"),
            Panel("Memory in use", [(gauge("device_memory_used_bytes"), "{{device}} {{device_name}}")], "bytes"),
            Panel("Power", [(gauge("device_power_watts"), "{{device}} {{device_name}}")], "watt"),
            Panel("Temperature", [(gauge("device_temperature_celsius"), "{{device}} {{device_name}}")], "celsius"),
            Panel(
                "Links", [(gauge("device_link_bytes_per_second"), "{{device}} {{direction}}")], "Bps", "PCIe", width=16
            ),
        ],
    ),
]
