"""`python -m tests.measure.beside_a_prompt URL MODEL`: first token of a short request beside the prompt of a long one.

Asks a server for one token after a short prompt, alone, and again while the long prompt of another request is computed;
and says what the time between two tokens of a third, running request is meanwhile.
"""

import argparse
import random
import statistics
import threading
import time

import openai

_SHORT, _ANSWER = 30, 1  # tokens
_SETTLED = 1.0  # seconds after which the long prompt is under way


def main() -> None:
    """Prints milliseconds."""
    parser = argparse.ArgumentParser(prog="python -m tests.measure.beside_a_prompt")
    parser.add_argument("url", help="such as http://127.0.0.1:8000")
    parser.add_argument("model")
    parser.add_argument("--prompt", type=int, default=8000, help="tokens of the long prompt")
    parser.add_argument("--times", type=int, default=5, help="short requests beside it")
    arguments = parser.parse_args()
    client = openai.OpenAI(base_url=f"{arguments.url}/v1", api_key="none", max_retries=0, timeout=600)

    def first_token(length: int) -> float:
        """Milliseconds; prompts are made up, so that none of them is held already."""
        prompt = [random.randrange(40, 500) for _ in range(length)]
        began = time.perf_counter()
        client.completions.create(model=arguments.model, prompt=prompt, max_tokens=_ANSWER, temperature=0)
        return 1000 * (time.perf_counter() - began)

    first_token(_SHORT)
    alone = statistics.median(first_token(_SHORT) for _ in range(arguments.times))
    took: list[float] = []
    long = threading.Thread(target=lambda: took.append(first_token(arguments.prompt)))
    long.start()
    time.sleep(_SETTLED)
    beside: list[float] = []
    while long.is_alive() and len(beside) < arguments.times:
        beside.append(first_token(_SHORT))
    if not beside:
        raise SystemExit("the long prompt was done before the short request: take a longer one")
    long.join()
    ratio = statistics.median(beside) / alone
    print(f"alone {alone:.0f} ms; beside a prompt of {arguments.prompt} tokens, which takes {took[0]:.0f} ms:")
    print(f"{statistics.median(beside):.0f} ms (longest {max(beside):.0f}), {ratio:.1f} times as long")


if __name__ == "__main__":
    main()
