"""A small Hub on loopback: the endpoints that huggingface_hub uses to make, fill and read a repository of a model.

Written from what the client sends and expects (huggingface_hub 2.4) and from the published descriptions of the Hub's
API and of Git LFS. Files are kept in a folder by their digest; a commit replaces a repository's list of files in one
step. It can be told to answer with errors, to drop connections and to wait.
"""

import asyncio
import base64
import contextlib
import hashlib
import json
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import uvicorn
import yaml
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import FileResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

WRITE, READ = "hf_loopback_write", "hf_loopback_read"
OWNER = "someone"
LFS_ENDINGS = (".safetensors", ".bin", ".h5")


@dataclass(frozen=True)
class StoredFile:
    """A file of a commit: Git's SHA-1 of a small one, SHA-256 of one in LFS."""

    oid: str
    size: int
    lfs: bool


@dataclass(frozen=True)
class Commit:
    oid: str
    message: str
    files: dict[str, StoredFile]


@dataclass
class Repository:
    repo_id: str
    private: bool
    commits: list[Commit] = field(default_factory=list)

    @property
    def head(self) -> Commit:
        return self.commits[-1]

    def find(self, revision: str) -> Commit | None:
        if revision == "main":
            return self.head
        return next((commit for commit in self.commits if commit.oid == revision), None)


@dataclass
class Fault:
    """What to do instead of answering: to a request whose method and path begin so, so many times."""

    method: str
    path: str
    action: str
    times: int


class Refused(Exception):
    """An answer that is an error, as the Hub words it."""

    def __init__(self, status: int, message: str, code: str = "", commit: str = "") -> None:
        headers = {"X-Error-Message": message}
        headers |= {"X-Error-Code": code} if code else {}
        headers |= {"X-Repo-Commit": commit} if commit else {}
        self.response = JSONResponse({"error": message}, status, headers)


class Hub:
    """The server's state, its handlers, and the means to disturb it.

    Args:
        root: An empty folder for the files.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.url = ""
        self.repositories: dict[str, Repository] = {}
        self.requests: list[str] = []
        self.bytes_uploaded = 0
        self.faults: list[Fault] = []
        self.upload_waits = False
        self.upload_began = threading.Event()

    # What tests use

    def disturb(self, method: str, path: str, action: str, times: int = 1) -> None:
        """Makes requests fail: `"500"` answers so, `"drop"` ends the connection amid the answer and `"lose"` does
        so after the work is done."""
        self.faults.append(Fault(method, path, action, times))

    def content(self, repo_id: str, name: str) -> bytes:
        """A file of the latest commit."""
        return self.path_of(self.repositories[repo_id].head.files[name].oid).read_bytes()

    def commit_as_person(self, repo_id: str, name: str, content: bytes) -> None:
        """Commits a file as somebody does on the web page."""
        repository = self.repositories[repo_id]
        self.add_commit(repository, f"Edit {name}", {**repository.head.files, name: self.store(content)})

    def make(self, repo_id: str, private: bool = False) -> Repository:
        """A repository with the commit that the Hub begins every repository with."""
        repository = Repository(repo_id, private)
        attributes = "".join(f"*{ending} filter=lfs diff=lfs merge=lfs -text\n" for ending in LFS_ENDINGS)
        self.add_commit(repository, "initial commit", {".gitattributes": self.store(attributes.encode())})
        self.repositories[repo_id] = repository
        return repository

    # Storage

    def path_of(self, oid: str) -> Path:
        return self.root / oid

    def store(self, content: bytes) -> StoredFile:
        oid = hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
        self.path_of(oid).write_bytes(content)
        return StoredFile(oid, len(content), lfs=False)

    def add_commit(self, repository: Repository, message: str, files: dict[str, StoredFile]) -> Commit:
        seed = f"{repository.repo_id} {len(repository.commits)} {message} {sorted(files.items())}"
        commit = Commit(hashlib.sha1(seed.encode()).hexdigest(), message, files)
        repository.commits.append(commit)
        return commit

    # Who may do what

    def role(self, request: Request) -> str | None:
        token = request.headers.get("authorization", "").removeprefix("Bearer ")
        if token not in ("", WRITE, READ):
            raise Refused(401, "Invalid credentials in Authorization header")
        return {"": None, WRITE: "write", READ: "read"}[token]

    def require_write(self, request: Request, owner: str) -> None:
        role = self.role(request)
        if role is None:
            raise Refused(401, "Invalid username or password.")
        if role != "write" or owner != OWNER:
            raise Refused(403, f'You don\'t have the rights to create a model under the namespace "{owner}"')

    def repository(self, request: Request, write: bool = False) -> Repository:
        owner, name = request.path_params["owner"], request.path_params["name"]
        repository = self.repositories.get(f"{owner}/{name}")
        role = self.role(request)
        if repository is None or (repository.private and role is None):
            raise Refused(401 if role is None else 404, "Repository not found", "RepoNotFound")
        if write:
            self.require_write(request, owner)
        return repository

    def commit_of(self, request: Request, write: bool = False) -> tuple[Repository, Commit]:
        repository = self.repository(request, write)
        revision = request.path_params.get("revision", "main")
        commit = repository.find(revision)
        if commit is None:
            raise Refused(404, f"Invalid rev id: {revision}", "RevisionNotFound")
        return repository, commit

    # Endpoints: making and writing

    async def whoami(self, request: Request) -> Response:
        role = self.role(request)
        if role is None:
            raise Refused(401, "Invalid username or password.")
        token = {"type": "access_token", "accessToken": {"role": role}}
        return JSONResponse({"type": "user", "name": OWNER, "orgs": [], "auth": token})

    async def create(self, request: Request) -> Response:
        wanted = await request.json()
        owner = wanted.get("organization") or OWNER
        self.require_write(request, owner)
        repo_id = f"{owner}/{wanted['name']}"
        known = repo_id in self.repositories
        if not known:
            self.make(repo_id, wanted.get("visibility") == "private")
        answer = {"url": f"{self.url}/{repo_id}", "name": repo_id}
        if known:
            answer["error"] = "You already created this model repo"
        return JSONResponse(answer, 409 if known else 200)

    async def validate_yaml(self, request: Request) -> Response:
        text = (await request.json())["content"]
        _, mark, rest = text.partition("---\n")
        errors: list[dict[str, str]] = []
        try:
            metadata = yaml.safe_load(rest.partition("\n---")[0]) if mark else {}
            if not isinstance(metadata, dict):
                errors.append({"message": "The metadata must be a mapping"})
            elif not isinstance(metadata.get("license", ""), (str, list)):
                errors.append({"message": '"license" must be a string'})
        except yaml.YAMLError as error:
            errors.append({"message": str(error)})
        return JSONResponse({"errors": errors, "warnings": []}, 400 if errors else 200)

    async def preupload(self, request: Request) -> Response:
        _, commit = self.commit_of(request, write=True)
        files = []
        for file in (await request.json())["files"]:
            known = commit.files.get(file["path"])
            mode = "lfs" if file["path"].endswith(LFS_ENDINGS) or file["size"] > 10_000_000 else "regular"
            files.append({"path": file["path"], "uploadMode": mode, "shouldIgnore": False})
            files[-1] |= {"oid": known.oid} if known else {}
        return JSONResponse({"files": files})

    async def lfs_batch(self, request: Request) -> Response:
        self.repository(request, write=True)
        objects = []
        for wanted in (await request.json())["objects"]:
            answer: dict[str, Any] = {"oid": wanted["oid"], "size": wanted["size"]}
            if not self.path_of(wanted["oid"]).exists():
                upload, verify = f"{self.url}/lfs/upload/{wanted['oid']}", f"{self.url}/lfs/verify"
                answer["actions"] = {"upload": {"href": upload}, "verify": {"href": verify}}
            objects.append(answer)
        return JSONResponse({"transfer": "basic", "objects": objects}, media_type="application/vnd.git-lfs+json")

    async def lfs_upload(self, request: Request) -> Response:
        content = bytearray()
        try:
            async for part in request.stream():
                content += part
                self.upload_began.set()
                while self.upload_waits:
                    await asyncio.sleep(0.01)
        except ClientDisconnect:
            return Response(status_code=400)
        oid = request.path_params["oid"]
        if hashlib.sha256(content).hexdigest() != oid:
            return Response(status_code=400)
        self.bytes_uploaded += len(content)
        self.path_of(oid).write_bytes(content)
        return Response()

    async def lfs_verify(self, request: Request) -> Response:
        self.require_write(request, OWNER)
        wanted = await request.json()
        path = self.path_of(wanted["oid"])
        return Response(status_code=200 if path.exists() and path.stat().st_size == wanted["size"] else 404)

    async def commit(self, request: Request) -> Response:
        repository, head = self.commit_of(request, write=True)
        header: dict[str, str] = {}
        files = dict(head.files)
        for line in (await request.body()).splitlines():
            entry = json.loads(line)
            key, value = entry["key"], entry["value"]
            if key == "header":
                header = value
            elif key == "file":
                files[value["path"]] = self.store(base64.b64decode(value["content"]))
            elif key == "lfsFile":
                path = self.path_of(value["oid"])
                if not path.exists() or path.stat().st_size != value["size"]:
                    raise Refused(400, f"The object of {value['path']} was never uploaded")
                files[value["path"]] = StoredFile(value["oid"], value["size"], lfs=True)
            elif key == "deletedFile":
                if files.pop(value["path"], None) is None:
                    raise Refused(404, "A file with this name doesn't exist", "EntryNotFound")
            else:
                raise Refused(400, f"Unknown operation {key}")
        if not header.get("summary"):
            raise Refused(400, "A commit needs a summary")
        if header.get("parentCommit", head.oid) != repository.head.oid:
            raise Refused(412, "A commit has happened since. Please refresh and try again.")
        commit = self.add_commit(repository, header["summary"], files)
        url = f"{self.url}/{repository.repo_id}/commit/{commit.oid}"
        return JSONResponse({"success": True, "commitOid": commit.oid, "commitUrl": url, "hookOutput": ""})

    # Endpoints: reading

    async def info(self, request: Request) -> Response:
        repository, commit = self.commit_of(request)
        siblings = [{"rfilename": name} for name in sorted(commit.files)]
        answer = {"_id": "0" * 24, "id": repository.repo_id, "modelId": repository.repo_id, "sha": commit.oid}
        return JSONResponse(answer | {"private": repository.private, "tags": [], "siblings": siblings})

    def entry(self, name: str, file: StoredFile) -> dict[str, Any]:
        answer: dict[str, Any] = {"type": "file", "path": name, "oid": file.oid, "size": file.size}
        return answer | ({"lfs": {"oid": file.oid, "size": file.size, "pointerSize": 130}} if file.lfs else {})

    async def tree(self, request: Request) -> Response:
        _, commit = self.commit_of(request)
        folder = request.path_params.get("path", "").strip("/")
        inside = f"{folder}/" if folder else ""
        found = [self.entry(name, file) for name, file in sorted(commit.files.items()) if name.startswith(inside)]
        if folder and not found:
            raise Refused(404, f"{folder} does not exist on this revision", "EntryNotFound", commit.oid)
        return JSONResponse(found)

    async def paths_info(self, request: Request) -> Response:
        _, commit = self.commit_of(request)
        paths = parse_qs((await request.body()).decode())["paths"]
        return JSONResponse([self.entry(name, commit.files[name]) for name in paths if name in commit.files])

    async def resolve(self, request: Request) -> Response:
        _, commit = self.commit_of(request)
        file = commit.files.get(request.path_params["path"])
        if file is None:
            raise Refused(404, "Entry not found", "EntryNotFound", commit.oid)
        headers = {"ETag": f'"{file.oid}"', "X-Repo-Commit": commit.oid}
        if file.lfs:
            headers |= {"X-Linked-Etag": f'"{file.oid}"', "X-Linked-Size": str(file.size)}
        return FileResponse(self.path_of(file.oid), headers=headers)

    # The application

    def application(self) -> Starlette:
        model, repository = "/api/models/{owner}/{name}", "/{owner}/{name}"
        routes = [
            Route("/api/whoami-v2", self.whoami),
            Route("/api/repos/create", self.create, methods=["POST"]),
            Route("/api/validate-yaml", self.validate_yaml, methods=["POST"]),
            Route(f"{model}/preupload/{{revision}}", self.preupload, methods=["POST"]),
            Route(f"{model}/commit/{{revision}}", self.commit, methods=["POST"]),
            Route(f"{model}/revision/{{revision}}", self.info),
            Route(f"{model}/tree/{{revision}}", self.tree),
            Route(f"{model}/tree/{{revision}}/{{path:path}}", self.tree),
            Route(f"{model}/paths-info/{{revision}}", self.paths_info, methods=["POST"]),
            Route(model, self.info),
            Route("/lfs/upload/{oid}", self.lfs_upload, methods=["PUT"]),
            Route("/lfs/verify", self.lfs_verify, methods=["POST"]),
            Route(f"{repository}.git/info/lfs/objects/batch", self.lfs_batch, methods=["POST"]),
            Route(f"{repository}/resolve/{{revision}}/{{path:path}}", self.resolve),
        ]
        return Starlette(
            routes=routes,
            middleware=[Middleware(Disturbances, hub=self)],
            exception_handlers={Refused: answer_refused},
        )


async def answer_refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, Refused)
    return error.response


class Disturbances:
    """Records every request and carries out what the hub was told to do to it."""

    def __init__(self, app: ASGIApp, hub: Hub) -> None:
        self.app, self.hub = app, hub

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        method, path = scope["method"], scope["path"]
        self.hub.requests.append(f"{method} {path}")
        fault = next((f for f in self.hub.faults if f.times and f.method == method and path.startswith(f.path)), None)
        if fault is None:
            return await self.app(scope, receive, send)
        fault.times -= 1
        if fault.action.isdigit():
            await Request(scope, receive).body()
            return await PlainTextResponse("Something went wrong", int(fault.action))(scope, receive, send)
        if fault.action == "lose":

            async def nowhere(message: Any) -> None:
                pass

            await self.app(scope, receive, nowhere)
        else:
            await receive()
        # An answer that promises more than it holds makes the server close the connection.
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"100")]})
        await send({"type": "http.response.body", "body": b"{", "more_body": True})


@contextlib.contextmanager
def running_hub(root: Path) -> Iterator[Hub]:
    """A hub that listens on a free port of 127.0.0.1 while the block runs."""
    hub = Hub(root)
    # With the protocol named, asyncio switches off the delay of small packets: 40 ms an answer.
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.bind(("127.0.0.1", 0))
    # From here on connections wait instead of being refused while the server starts.
    listener.listen()
    hub.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    config = uvicorn.Config(hub.application(), log_level="critical", lifespan="off", timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        hub.upload_waits = False
        server.should_exit = True
        thread.join(timeout=10)
        listener.close()
