"""Gives every series the label `model_name`, as vLLM does."""

from collections.abc import Iterable

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

MODEL_NAME = "model_name"


class Labelled(Collector):
    """What another collector has, with one more label."""

    def __init__(self, inner: Collector, model_name: str) -> None:
        self._inner = inner
        self._model_name = model_name

    def collect(self) -> Iterable[Metric]:
        """The metrics of the other collector."""
        for metric in self._inner.collect():
            labelled = Metric(metric.name, metric.documentation, metric.type, metric.unit)
            labelled.samples = [
                sample._replace(labels={MODEL_NAME: self._model_name, **sample.labels}) for sample in metric.samples
            ]
            yield labelled
