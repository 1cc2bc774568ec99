"""What the doctor concludes, from made-up machines; and that this one can be looked at."""

from dataclasses import replace

import pytest

from server.doctor.facts import PACKAGES, Facts, Torch
from server.doctor.findings import Finding, advice, findings, shown
from server.metrics.nvml import Device

GIB = 1 << 30
CARD = Device(
    index=0, name="RTX 3090", uuid="GPU-0", memory_total=24 * GIB, memory_used=GIB, link=(1, 16), link_most=(4, 16)
)
HEALTHY = Facts(
    python=(3, 11),
    packages=dict.fromkeys(PACKAGES, "1.0"),
    torch=Torch(),
    driver="",
    devices=(),
    cores=8,
    load=0.1,
    memory=32 * GIB,
    memory_free=30 * GIB,
    cache="/cache",
    cache_free=100 * GIB,
    open_files=65536,
    port=8000,
)
CARDS = replace(
    HEALTHY,
    torch=Torch(cuda="13.0", devices=3),
    driver="590",
    devices=[CARD, CARD, CARD],
)


def about(facts: Facts, text: str) -> Finding:
    (found,) = [finding for finding in findings(facts) if text in finding.text]
    return found


def test_nothing_is_wrong_with_a_healthy_machine() -> None:
    for facts in (HEALTHY, CARDS):
        assert not [finding for finding in findings(facts) if finding.level == "problem"]
    assert any("--device cuda --stages 3" in line for line in advice(CARDS))
    assert any("--stages 4" in line for line in advice(HEALTHY))
    assert not any("cuda" in line for line in advice(HEALTHY))


@pytest.mark.parametrize(
    ("facts", "text", "level", "remedy"),
    [
        (replace(HEALTHY, python=(3, 10)), "Python 3.10", "problem", "3.11"),
        (
            replace(HEALTHY, packages={**HEALTHY.packages, "torch": None}),
            "torch not inst",
            "problem",
            "echelon[engine]",
        ),
        (replace(HEALTHY, packages={**HEALTHY.packages, "matplotlib": None}), "matplotlib", "note", "echelon[bench]"),
        (replace(HEALTHY, torch=Torch(trouble="no libcudart")), "no libcudart", "problem", "anew"),
        (replace(HEALTHY, memory_free=GIB), "1.0 GiB of 32.0 GiB", "problem", "--max-num-seqs"),
        (replace(HEALTHY, cache_free=None), "/cache", "problem", "ECHELON_CACHE"),
        (replace(HEALTHY, cache_free=1000), "/cache", "problem", "kept there"),
        (replace(HEALTHY, load=7.0), "busy", "note", "calibrated"),
        (replace(HEALTHY, port_trouble="taken"), "port 8000", "note", "--port"),
        (replace(CARDS, torch=Torch()), "built without CUDA, so", "problem", "for CUDA"),
        (replace(CARDS, torch=Torch(cuda="13.0")), "0 of 3", "problem", "CUDA_VISIBLE_DEVICES"),
        (replace(CARDS, torch=Torch(cuda="13.0", devices=2)), "2 of 3", "note", "CUDA_VISIBLE_DEVICES"),
        (replace(CARDS, torch=Torch("13.0", 3, [(0, 2)])), "0-2", "note", "through the host"),
    ],
)
def test_what_is_wrong_is_named_with_a_remedy(facts: Facts, text: str, level: str, remedy: str) -> None:
    found = about(facts, text)
    assert found.level == level
    assert remedy in found.remedy
    assert found.text in shown(findings(facts))
