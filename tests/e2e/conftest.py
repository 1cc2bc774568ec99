"""One API server over a stub engine a test module."""

from collections.abc import Iterator

import pytest

from tests.e2e.stub_api import REPLY, Api, health, launch, wait_until
from tests.stub_engine import INFO


@pytest.fixture(scope="module")
def stub_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    folder = tmp_path_factory.mktemp("api")
    api = launch(folder)
    yield api
    api.process.terminate()
    assert api.process.wait(10) == 0
    api.engine.stop()


@pytest.fixture
def api(stub_server: Api) -> Api:
    engine = stub_server.engine
    engine.batch, engine.pause_after, engine.fail_after, engine.silent, engine.info = 1, None, None, False, INFO
    stub_server.reply(REPLY)
    wait_until(lambda: health(stub_server.url) == 200 and stub_server.metric("echelon:open_sequences") == 0)
    engine.generates.clear()
    engine.aborts.clear()
    return stub_server
