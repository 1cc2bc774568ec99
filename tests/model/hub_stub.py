"""The few routes of the Hugging Face hub that fetching a model uses, over local folders."""

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from urllib.parse import unquote, urlsplit

COMMIT = "c" * 40


@contextmanager
def hub(models: dict[str, Path]) -> Iterator[tuple[str, list[str]]]:
    """Serves each ORG/NAME from its folder; yields the endpoint and the list of "METHOD path" asked for so far."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self.do_GET()

        def do_GET(self) -> None:
            path = unquote(urlsplit(self.path).path)
            asked.append(f"{self.command} {path}")
            for name, folder in models.items():
                if path in (f"/api/models/{name}", *(f"/api/models/{name}/revision/{one}" for one in ("main", COMMIT))):
                    return self._model(name, folder)
                if path.startswith(f"/api/models/{name}/tree/"):
                    return self._tree(folder)
                for revision in ("main", COMMIT):
                    prefix = f"/{name}/resolve/{revision}/"
                    if path.startswith(prefix) and (folder / path.removeprefix(prefix)).is_file():
                        return self._file(folder / path.removeprefix(prefix))
            known = any(f"/{name}/" in path for name in models)
            code = "RevisionNotFound" if known else "RepoNotFound"
            return self._answer(404, b"{}", {"X-Error-Code": code, "X-Error-Message": "not found"})

        def _model(self, name: str, folder: Path) -> None:
            siblings = [{"rfilename": file} for file in _files(folder)]
            self._json({"id": name, "sha": COMMIT, "siblings": siblings})

        def _tree(self, folder: Path) -> None:
            entries = [
                {"type": "file", "path": file, "size": (folder / file).stat().st_size, "oid": "0" * 40}
                for file in _files(folder)
            ]
            self._json(entries)

        def _file(self, path: Path) -> None:
            body = path.read_bytes()
            etag = f'"{hashlib.sha256(body).hexdigest()}"'
            self._answer(200, body, {"ETag": etag, "X-Repo-Commit": COMMIT})

        def _json(self, content: object) -> None:
            self._answer(200, json.dumps(content).encode(), {"Content-Type": "application/json"})

        def _answer(self, status: int, body: bytes, headers: dict[str, str]) -> None:
            self.send_response(status)
            for key, value in {"Content-Length": str(len(body)), **headers}.items():
                self.send_header(key, value)
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Requests are recorded in `asked` instead."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", asked
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
