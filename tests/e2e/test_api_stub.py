"""What the API answers, through the official client."""

import os
import re
import threading
from pathlib import Path
from typing import Any

import httpx
import msgspec
import openai
import pytest

from tests.e2e.stub_api import MODEL, REPLY, Api, ask, events, wait_until
from tests.small_model import EOS
from tests.stub_engine import INFO
from workers.shared.messages import Generate


def test_chat(api: Api) -> None:
    answer = api.client().chat.completions.create(**ask())
    assert answer.choices[0].message.content == REPLY
    assert answer.choices[0].message.role == "assistant"
    assert answer.choices[0].finish_reason == "stop"
    prompt = "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n"
    request = api.engine.generates[0]
    assert request.prompt == api.tokenizer.encode(prompt, add_special_tokens=False).ids
    assert request.stop_tokens == (EOS,)
    assert request.max_tokens == INFO.max_model_len - len(request.prompt)
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == len(request.prompt)
    assert answer.usage.completion_tokens == len(api.tokenizer.encode(REPLY, add_special_tokens=False).ids) + 1
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


@pytest.mark.parametrize("batch", [1, 3, 1000])
@pytest.mark.parametrize("stop", [None, "jumps", [" over", "🙂 j"]])
def test_a_stream_says_what_the_whole_response_says(api: Api, batch: int, stop: Any) -> None:
    api.engine.batch = batch
    fields = ask(stop=stop, logprobs=True, top_logprobs=2, extra_body={"return_token_ids": True})
    whole = api.client().chat.completions.create(**fields)
    stream = api.client().chat.completions.create(**fields, stream=True, stream_options={"include_usage": True})
    text = ""
    logprobs: list[Any] = []
    ids: list[int] = []
    finishes: list[str] = []
    usages: list[Any] = []
    for chunk in stream:
        if not chunk.choices:
            usages.append(chunk.usage)
            continue
        assert "usage" in chunk.model_fields_set
        assert chunk.usage is None
        choice = chunk.choices[0]
        text += choice.delta.content or ""
        ids += getattr(choice, "token_ids", None) or []
        logprobs += choice.logprobs.content if choice.logprobs and choice.logprobs.content else []
        finishes += [choice.finish_reason] if choice.finish_reason else []
    assert text == whole.choices[0].message.content
    assert finishes == [whole.choices[0].finish_reason] == ["stop"]
    assert usages == [whole.usage]
    assert whole.choices[0].logprobs is not None
    assert logprobs == whole.choices[0].logprobs.content
    assert ids == whole.choices[0].token_ids
    assert len(ids) == len(logprobs) == whole.usage.completion_tokens
    assert text == REPLY[: min((REPLY.index(s) for s in ([stop] if isinstance(stop, str) else stop or [])), default=99)]


def test_a_stop_string_ends_the_sequence_in_the_engine(api: Api) -> None:
    api.reply("one two three ", end=False)
    answer = api.client().chat.completions.create(**ask(stop=["three"]))
    assert answer.choices[0].message.content == "one two "
    api.engine.wait(lambda: api.engine.aborts == [api.engine.generates[0].id])


def test_length(api: Api) -> None:
    answer = api.client().chat.completions.create(**ask(max_completion_tokens=3))
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 3


def test_completions(api: Api) -> None:
    answer = api.client().completions.create(model=MODEL, prompt=["a b", "c"], max_tokens=100, n=2, logprobs=2, seed=5)
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    assert {choice.text for choice in answer.choices} == {REPLY}
    assert [request.sampling.seed for request in api.engine.generates] == [5, 6, 5, 6]
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.tokens is not None
    assert logprobs.text_offset is not None
    assert logprobs.tokens[-1] == "<|im_end|>"
    assert logprobs.text_offset[0] == 0
    assert logprobs.text_offset[-1] == len(REPLY)
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == sum(len(request.prompt) for request in api.engine.generates[::2])


def test_completion_prompts_parse_control_tokens_and_take_ids(api: Api) -> None:
    api.client().completions.create(model=MODEL, prompt="<|im_start|>", max_tokens=1)
    api.client().completions.create(model=MODEL, prompt=[5, 6, 7], max_tokens=1)
    assert [request.prompt for request in api.engine.generates] == [[1], [5, 6, 7]]


def test_completion_stream_equals_whole(api: Api) -> None:
    body = {"model": MODEL, "prompt": "x", "max_tokens": 100, "logprobs": 1}
    whole = api.post(body, "/v1/completions").json()
    chunks = events(api.post(body | {"stream": True}, "/v1/completions"))
    assert "usage" not in chunks[0]
    choices = [chunk["choices"][0] for chunk in chunks]
    assert "".join(choice["text"] for choice in choices) == whole["choices"][0]["text"]
    for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
        streamed = [item for choice in choices if choice["logprobs"] for item in choice["logprobs"][name]]
        assert streamed == whole["choices"][0]["logprobs"][name]
    assert [choice["finish_reason"] for choice in choices if choice["finish_reason"]] == ["stop"]


def test_usage_in_every_chunk(api: Api) -> None:
    asked = {"stream": True, "stream_options": {"include_usage": True, "continuous_usage_stats": True}}
    for path, body in (("/v1/completions", {"model": MODEL, "prompt": "x"}), ("/v1/chat/completions", ask())):
        usages = [chunk["usage"] for chunk in events(api.post(body | asked, path))]
        counts = [usage["completion_tokens"] for usage in usages]
        assert counts == sorted(counts)
        assert counts[-1] == counts[-2] > counts[0]
        assert {usage["prompt_tokens"] for usage in usages} == {len(api.engine.generates[-1].prompt)}


def test_choices_without_a_seed_all_differ(api: Api) -> None:
    api.client().chat.completions.create(**ask(n=3))
    assert len({request.sampling.seed for request in api.engine.generates}) == 3


def test_models_and_version(api: Api) -> None:
    models = api.client().models.list().data
    assert [(model.id, model.created) for model in models] == [(MODEL, 1700000000)]
    assert api.client().models.retrieve(MODEL).id == MODEL
    with pytest.raises(openai.NotFoundError):
        api.client().models.retrieve("other")
    assert httpx.get(f"{api.url}/version").json()["version"]


def test_rehearsals_say_so(api: Api) -> None:
    api.engine.info = msgspec.structs.replace(INFO, rehearsal=True)
    wait_until(lambda: httpx.get(f"{api.url}/health").json()["rehearsal"] is True)
    response = api.post(ask())
    assert response.headers["x-echelon-rehearsal"] == "true"
    assert response.json()["echelon"]["rehearsal"] is True
    streamed = api.post(ask(stream=True))
    assert streamed.headers["x-echelon-rehearsal"] == "true"
    assert all(chunk["echelon"]["rehearsal"] for chunk in events(streamed))
    api.engine.info = INFO
    wait_until(lambda: httpx.get(f"{api.url}/health").json()["rehearsal"] is False)
    assert "echelon" not in api.post(ask()).json()


def test_sampling_parameters_arrive(api: Api) -> None:
    extra = {
        "top_k": 7,
        "min_p": 0.1,
        "repetition_penalty": 1.5,
        "min_tokens": 2,
        "stop_token_ids": [9],
        "ignore_eos": True,
    }
    api.client().chat.completions.create(
        **ask(temperature=0, top_p=0.5, presence_penalty=1, frequency_penalty=-1, logit_bias={"5": -100}, seed=-1),
        extra_body=extra,
    )
    request: Generate = api.engine.generates[0]
    sampling = request.sampling
    assert request.stop_tokens == sampling.end_tokens == (9,)
    assert (sampling.seed, sampling.temperature, sampling.top_p, sampling.top_k) == (2**64 - 1, 0.0, 0.5, 7)
    assert (sampling.min_p, sampling.repetition_penalty, sampling.min_tokens) == (0.1, 1.5, 2)
    assert (sampling.presence_penalty, sampling.frequency_penalty) == (1.0, -1.0)
    assert (sampling.logit_bias, sampling.logprobs) == ({5: -100.0}, None)


def test_metrics_parse_with_a_naive_reader_and_count(api: Api) -> None:
    before = api.metric('echelon:request_success_total{finished_reason="stop"}')
    tokens = api.metric("echelon:generation_tokens_total")
    answer = api.client().chat.completions.create(**ask())
    assert answer.usage is not None
    assert api.metric('echelon:request_success_total{finished_reason="stop"}') == before + 1
    assert api.metric("echelon:generation_tokens_total") == tokens + answer.usage.completion_tokens
    wait_until(lambda: api.metric("echelon:cycle_seconds") == 0.2)
    assert api.metric('echelon:stage_busy_ratio{stage="1"}') == 0.5
    assert api.metric("echelon:fixed_cost_seconds") == pytest.approx(0.1)
    text = httpx.get(f"{api.url}/metrics").text
    for line in text.splitlines():
        assert line.startswith("#") or re.fullmatch(r"[a-z_0-9:]+(\{[^{}]*\})? [-+0-9.eInf]+", line), line
    assert "_created" not in text
    assert all(f'model_name="{MODEL}"' in line for line in text.splitlines() if not line.startswith("#"))


def test_each_phase_of_a_request_is_measured(api: Api) -> None:
    names = [f"echelon:request_{phase}" for phase in ("queue_time_seconds", "prefill_time_seconds", "queue_position")]
    before = [api.metric(f"{name}_sum") for name in names]
    decoded = api.metric("echelon:request_decode_time_seconds_count")
    api.client().chat.completions.create(**ask())
    after = [api.metric(f"{name}_sum") for name in names]
    assert [now - then for now, then in zip(after, before, strict=True)] == pytest.approx([4, 2, 3])
    assert api.metric("echelon:request_decode_time_seconds_count") == decoded + 1
    assert api.metric("echelon:request_inference_time_seconds_sum") >= 2
    assert any("queue=4.000 prefill=2.000" in line for line in lines(api, "request="))


def test_priority_is_for_servers_that_go_by_it(api: Api) -> None:
    assert api.post(ask(priority=0)).status_code == 200
    refused = api.post(ask(priority=-1))
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == "priority"
    assert "--scheduling-policy" in refused.json()["error"]["message"]


def test_an_idle_server_sleeps(api: Api) -> None:
    def cpu() -> float:
        fields = Path(f"/proc/{api.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    start = cpu()
    threading.Event().wait(2.0)
    assert cpu() - start < 0.1


def lines(api: Api, *words: str) -> list[str]:
    return [line for line in api.log.read_text().splitlines() if all(word in line for word in words)]


def test_a_request_goes_by_its_id(api: Api) -> None:
    client = api.client()
    answer = client.chat.completions.with_raw_response.create(**ask(), extra_headers={"X-Request-Id": "mine-1"})
    assert answer.headers["x-request-id"] == "mine-1"
    (line,) = lines(api, "request=mine-1 ")
    usage = answer.parse().usage
    assert usage is not None
    for word in (f"prompt={usage.prompt_tokens}", f"completion={usage.completion_tokens}", "finish=stop"):
        assert f" {word}" in line
    assert re.search(r" first_token=\d\.\d+ seconds=\d\.\d+ ", line)
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(**ask(temperature=3), extra_headers={"X-Request-Id": "mine-2"})
    assert caught.value.request_id == "mine-2"
    (line,) = lines(api, "request=mine-2 ")
    assert "/v1/chat/completions status=400 code=invalid_value param=temperature" in line
    for unwritable in ("two words", "x" * 200):
        made = httpx.get(f"{api.url}/health", headers={"X-Request-Id": unwritable}).headers["x-request-id"]
        assert re.fullmatch(r"[0-9a-f]{32}", made)


def test_the_log_says_why_a_stream_ended(api: Api) -> None:
    api.engine.pause_after = 2
    with httpx.stream(
        "POST", f"{api.url}/v1/chat/completions", json=ask(stream=True), headers={"X-Request-Id": "left"}
    ) as stream:
        next(stream.iter_lines())
    wait_until(lambda: bool(lines(api, "request=left ", "finish=abort")))
    api.engine.pause_after, api.engine.fail_after = None, 2
    response = httpx.post(f"{api.url}/v1/chat/completions", json=ask(stream=True), headers={"X-Request-Id": "failed"})
    assert response.headers["x-request-id"] == "failed"
    wait_until(lambda: bool(lines(api, "request=failed ", "completion=2", "finish=error", "stage 1 died")))
