"""No request passes before its grammar is compiled, none twice, none is lost, and nothing is compiled for each anew."""

from hypothesis import given
from hypothesis import strategies as st

from speculation.decisions.grammar_gate import GrammarGate

steps = st.one_of(
    st.tuples(st.just("arrive"), st.sampled_from([None, "a", "b", "c"])),
    st.tuples(st.just("compile"), st.integers(0, 5)),
    st.tuples(st.just("leave"), st.integers(0, 5)),
)


@given(st.lists(steps, max_size=40))
def test_requests_pass_once_their_grammars_are_compiled(script: list[tuple[str, object]]) -> None:
    gate: GrammarGate[int] = GrammarGate()
    grammars: list[str | None] = []  # by request
    done: set[str | None] = {None}
    asked: dict[int, str] = {}
    waiting: list[int] = []
    for step, argument in script:
        if step == "arrive":
            assert argument is None or isinstance(argument, str)
            request = len(grammars)
            grammars.append(argument)
            passed, compile_ = gate.arrived(request, argument)
            assert passed == ([request] if argument in done else [])
            if not passed:
                waiting.append(request)
            assert (compile_ is None) == (argument in done or argument in asked.values())
            if compile_ is not None:
                asked[compile_.number] = compile_.grammar
        elif step == "compile":
            number = argument
            assert isinstance(number, int)
            grammar = asked.pop(number, None)
            passed = gate.compiled(number)
            assert passed == [request for request in waiting if grammar is not None and grammars[request] == grammar]
            waiting = [request for request in waiting if request not in passed]
            done |= set() if grammar is None else {grammar}
        else:
            assert isinstance(argument, int)
            assert gate.leave(argument) == (argument in waiting)
            waiting = [request for request in waiting if request != argument]
        assert sorted(gate.waiting) == waiting
