"""The format of the checkpoint at a path: of a file by its content, of a folder by its files."""

import contextlib
import zipfile

from etils import epath

from vit_jax.checkpoint import orbax_directory, tensors
from vit_jax.untrusted import as_path, read_file, read_json

FILE = "params.npz"  # in a directory that `OfficialCheckpointer` saved
NPZ, ORBAX, RUN, SAFETENSORS = "npz", "orbax", "run", "safetensors"
_REFUSED = "Unpickling can run any code, so it is refused; save the weights as safetensors."


def recognise(path: epath.PathLike) -> tuple[str, epath.Path]:
    """The format, and the path to read: a workdir's newest step, an index's folder."""
    path = as_path(path)
    return _recognise_folder(path) if path.is_dir() else _recognise_file(path)


def _recognise_folder(path: epath.Path) -> tuple[str, epath.Path]:
    if (file := path / FILE).exists():
        return NPZ, file
    if step := orbax_directory.find_step(path):
        return RUN, step
    if orbax_directory.is_orbax(path):
        return ORBAX, path
    if tensors.find_files(path):
        return SAFETENSORS, path
    names = [child.name for child in path.iterdir()]
    if pickles := [name for name in names if name.endswith((".bin", ".pt", ".pth", ".pkl"))]:
        raise ValueError(f"{path} has its weights in pickles ({', '.join(pickles)}). {_REFUSED}")
    raise ValueError(
        f"{path} is a directory without a checkpoint in it. Give the workdir of a run, an "
        "official .npz file, the directory of one Orbax checkpoint, a Hugging Face or timm folder, "
        "or a .safetensors file."
    )


def _recognise_file(path: epath.Path) -> tuple[str, epath.Path]:
    start = read_file(path, 16)
    if start[:4] in (b"PK\x03\x04", b"PK\x05\x06"):
        _refuse_torch(path)
        return NPZ, path
    if int.from_bytes(start[:8], "little") < 1 << 32 and start[8:9] == b"{":
        return SAFETENSORS, path
    if path.name == tensors.INDEX or (start[:1] == b"{" and _is_index(path)):
        return SAFETENSORS, path.parent
    if start[:1] == b"\x80":
        raise ValueError(f"{path} is a pickle. {_REFUSED}")
    if start[:4] == b"\x89HDF":
        raise ValueError(f"{path} is HDF5 (Keras weights), which we do not read; use safetensors.")
    if start[:7] == b"version":
        raise ValueError(f"{path} is a Git LFS pointer, not the weights; run `git lfs pull` there.")
    return NPZ, path  # its reader says what is wrong with it


def _refuse_torch(path: epath.Path) -> None:
    """torch.save writes a zip too, with a pickle inside."""
    try:
        with path.open("rb") as raw, zipfile.ZipFile(raw) as file:
            names = file.namelist()
    except Exception:
        return  # damaged; the .npz reader says how
    if any(name.endswith("data.pkl") for name in names):
        raise ValueError(f"{path} is a torch checkpoint, which is a pickle. {_REFUSED}")


def _is_index(path: epath.Path) -> bool:
    with contextlib.suppress(ValueError):
        return "weight_map" in read_json(path)
    return False
