"""A copy of a project for one worker, which goes back to what it was after each mutant."""

import os
import shutil
import subprocess
from pathlib import Path
from stat import S_ISDIR

type _Stamp = tuple[int, int]


class Workspace:
    """The files of a project in a folder of their own, so that no page and no command can touch the originals.

    `root` stands for the project's root and `scratch` for the folder of temporary files.
    """

    def __init__(self, project: Path, folder: Path) -> None:
        self._project, self._folder = project, folder / "space"
        self.root, self.scratch = self._folder / "project", self._folder / "tmp"
        for name in _files(project):
            target = self.root / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(project / name, target)
        self.scratch.mkdir(parents=True)
        self._originals = self._stamps = self._scan()
        self._others: dict[str, bytes] = {}

    def keep(self) -> None:
        """Take what is there now for what `restore` brings back."""
        self._stamps = self._scan()
        changed = (name for name, stamp in self._stamps.items() if stamp and self._originals.get(name) != stamp)
        self._others = {name: (self._folder / name).read_bytes() for name in changed if (self._folder / name).is_file()}

    def restore(self) -> None:
        """Remove what has appeared since `keep`, and bring back what has changed or gone, its time of change included."""
        now = self._scan()
        # Folders last, the deepest first, when nothing is left in them.
        for name in sorted(now.keys() - self._stamps.keys(), reverse=True):
            path = self._folder / name
            path.rmdir() if now[name] is None else path.unlink()
        for name, stamp in sorted(self._stamps.items()):
            path = self._folder / name
            if name in now and now[name] == stamp:
                continue
            if stamp is None:
                path.mkdir()
                continue
            if name in self._others:
                path.write_bytes(self._others[name])
            else:
                shutil.copy2(self._project / path.relative_to(self.root), path)
            # Whoever compares times must not take the file for a new one.
            os.utime(path, ns=(stamp[0], stamp[0]))

    def _scan(self) -> dict[str, _Stamp | None]:
        """Return each file's time of change in nanoseconds and its size, and None for a folder."""
        found: dict[str, _Stamp | None] = {}
        for folder, folders, names in os.walk(self._folder):
            for name in [*folders, *names]:
                path = os.path.join(folder, name)
                stat = os.lstat(path)
                known = (stat.st_mtime_ns, stat.st_size) if not S_ISDIR(stat.st_mode) else None
                found[os.path.relpath(path, self._folder)] = known
        return found


def _files(project: Path) -> list[Path]:
    """List the project's files: what git does not ignore, or without git all but hidden folders and caches."""
    git = ["git", "-C", str(project), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(git, capture_output=True, text=True, check=False) if shutil.which("git") else None
    if listed is not None and listed.returncode == 0:
        names = [Path(name) for name in listed.stdout.split("\0") if name]
    else:
        names = [path.relative_to(project) for path in sorted(project.rglob("*"))]
        names = [name for name in names if not any(part[0] == "." or part == "__pycache__" for part in name.parts)]
    return [name for name in names if (project / name).is_file()]
