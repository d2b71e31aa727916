# choir from the clone that contains this file (Spack 1.0 or newer), as committed:
#   spack repo add .make/packaging/spack_repo/choir
#   spack install choir            # or: spack install choir +cuda
# With uncommitted changes: spack dev-build choir@main, in the root of the clone.
import pathlib

from spack_repo.builtin.build_systems.makefile import MakefilePackage

from spack.package import *


class Choir(MakefilePackage):
    """Trains and runs language models and speech language models on CPU and GPU clusters."""

    git = pathlib.Path(__file__).resolve().parents[6].as_uri()

    version("main", branch="main")

    variant("cuda", default=False, description="Kernels for NVIDIA GPUs, sm_80 and sm_90a")
    variant("march", default="native", values=str, description="Processor, as GCC's -march")
    variant("onednn", default=True, description="bf16 and fast fp32 products on CPUs")
    variant("audio", default=True, description="Speech: audio files, archives, SentencePiece")

    depends_on("cxx", type="build")
    depends_on("gmake", type="build")
    depends_on("pkgconfig", type="build")
    depends_on("git", type="build")

    depends_on("mpi@3:")
    depends_on("hdf5")
    depends_on("openblas threads=openmp")
    depends_on("nlohmann-json")
    depends_on("cli11")
    depends_on("fmt@9:11")
    depends_on("spdlog@1.10:")
    depends_on("hwloc")
    depends_on("onednn", when="+onednn")
    depends_on("libsndfile", when="+audio")  # Spack has no libsoxr: other sample rates are refused
    depends_on("libarchive", when="+audio")
    depends_on("sentencepiece", when="+audio")
    with when("+cuda"):
        depends_on("cuda@13:")
        depends_on("cudnn")
        depends_on("nccl")

    def settings(self):
        spec = self.spec
        words = [
            f"MPICXX={spec['mpi'].mpicxx}",
            f"HDF5={spec['hdf5'].prefix}",
            f"BLAS_DIR={spec['openblas'].prefix.lib}",
            f"MARCH={spec.variants['march'].value}",
        ]
        if spec.satisfies("+onednn"):
            words.append(f"ONEDNN={spec['onednn'].prefix}")
        if spec.satisfies("+cuda"):
            words.append(f"CUDA_HOME={spec['cuda'].prefix}")
            words.append(f"CUDNN_HOME={spec['cudnn'].prefix}")
            words.append(f"NCCL_HOME={spec['nccl'].prefix}")
        else:
            words.append("CUDA_HOME=none")
        return words

    def build(self, spec, prefix):
        make(*self.settings())

    def install(self, spec, prefix):
        make("install", f"PREFIX={prefix}", *self.settings())
