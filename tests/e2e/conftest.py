"""API servers over a stub engine that all modules share: started once a session, and as new to every test."""

from collections.abc import Iterator

import pytest

from tests.e2e.stub_api import NATIVE, REPLY, Api, health, launch, wait_until
from tests.stub_engine import INFO


@pytest.fixture(scope="session")
def stub_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    api = launch(tmp_path_factory.mktemp("api"))
    yield api
    api.end()


@pytest.fixture(scope="session")
def native_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    api = launch(tmp_path_factory.mktemp("native"), template=NATIVE)
    yield api
    api.end()


@pytest.fixture
def api(stub_server: Api) -> Api:
    return as_new(stub_server)


@pytest.fixture
def native(native_server: Api) -> Api:
    """A model that knows tools and marks its reasoning."""
    return as_new(native_server)


def as_new(api: Api) -> Api:
    """The engine with its first settings, once nothing is left of earlier tests."""
    engine = api.engine
    engine.batch, engine.pause_after, engine.fail_after, engine.silent, engine.info = 1, None, None, False, INFO
    api.reply(REPLY)
    wait_until(lambda: health(api.url) == 200 and api.metric("echelon:open_sequences") == 0)
    engine.generates.clear()
    engine.aborts.clear()
    return api
