"""The board of those who use the server."""

from tests.boards.panels import ENGINE_UP, FOUR, Panel, Row, gauge, lengths, mean, quantiles, rate, stat

USERS = [
    Row(
        "Now",
        [
            ENGINE_UP,
            stat("First token, median", quantiles("time_to_first_token_seconds", 0.5)[0][0], "s"),
            stat("Between tokens, median", quantiles("inter_token_latency_seconds", 0.5)[0][0], "s"),
            stat("Tokens a second", f"sum({rate('generation_tokens_total')})"),
            stat("Running", f"sum({gauge('num_requests_running')})"),
            stat("Waiting", f"sum({gauge('num_requests_waiting')})"),
        ],
    ),
    Row(
        "Latency",
        [
            Panel(
                "Time to first token",
                quantiles("time_to_first_token_seconds", *FOUR),
                "s",
                "From the arrival of a request to its first token",
            ),
            Panel("Between tokens", quantiles("inter_token_latency_seconds", *FOUR), "s"),
            Panel(
                "Whole requests",
                quantiles("e2e_request_latency_seconds", *FOUR),
                "s",
                "From the arrival of a request to its last token",
            ),
        ],
    ),
    Row(
        "Where the time goes",
        [
            Panel("Queue", quantiles("request_queue_time_seconds", *FOUR), "s", "Until a choice had a slot"),
            Panel("Prefill", quantiles("request_prefill_time_seconds", *FOUR), "s", "From there to its first token"),
            Panel("Decode", quantiles("request_decode_time_seconds", *FOUR), "s", "From its first token to its last"),
            Panel(
                "Mean of each phase",
                [(mean(f"request_{phase}_time_seconds"), phase) for phase in ("queue", "prefill", "decode")],
                "s",
                stacked=True,
            ),
            Panel("Time of a token", quantiles("request_time_per_output_token_seconds", *FOUR), "s", "Mean, a choice"),
            Panel("Places in the queue", quantiles("request_queue_position", 0.5, 0.99), "short", "On arrival"),
        ],
    ),
    Row(
        "Load",
        [
            Panel(
                "Tokens a second",
                [
                    (f"sum({rate('generation_tokens_total')})", "generated"),
                    (f"sum({rate('prompt_tokens_total')})", "of prompts"),
                ],
            ),
            Panel(
                "Requests",
                [
                    (f"sum({gauge('num_requests_running')})", "running"),
                    (f"sum({gauge('num_requests_waiting')})", "waiting"),
                    (f"sum({gauge('open_sequences')})", "opened by the server"),
                ],
            ),
            Panel(
                "Ends and refusals a second",
                [
                    (f"sum by (finished_reason) ({rate('request_success_total')})", "{{finished_reason}}"),
                    (f"sum by (status) ({rate('request_refused_total')})", "HTTP {{status}}"),
                ],
            ),
            Panel("KV cache in use", [(gauge("kv_cache_usage_perc"), "")], "percentunit", "By running requests"),
            Panel(
                "Prompt tokens held already",
                [(f"{rate('prefix_cache_hits_total')} / {rate('prefix_cache_queries_total')}", "")],
                "percentunit",
                "Not computed again",
            ),
            Panel("Taken up again a second", [(rate("resumed_sequences_total"), "")], "short", "In another engine"),
        ],
    ),
    Row(
        "Lengths",
        [
            Panel("Prompt tokens", lengths("request_prompt_tokens"), kind="heatmap", width=12, height=8),
            Panel("Generated tokens", lengths("request_generation_tokens"), kind="heatmap", width=12, height=8),
        ],
    ),
]
