# Spack package of Sailor. Not yet tried with Spack (packaging/README.md); tests/docs/packaging_test.py compares its
# dependencies and variants with CMake's.
from spack_repo.builtin.build_systems.cmake import CMakePackage

from spack.package import *


class Sailor(CMakePackage):
    """Plans, checks and runs distributed training on heterogeneous Slurm clusters."""

    license("MIT")

    version("0.1.0")

    # Each is a CMake option SAILOR_<NAME>, ON or OFF.
    variant("mpi", default=True, description="sailor-train, sailor-check, and measuring with sailor-profile")
    variant("slurm", default=True, description="sailor-plan --partition, and the SPANK plugin")
    variant("yaml", default=True, description="topology.yaml of Slurm 25.05 and later")
    variant("metis", default=True, description="the published planner FlashFlex")
    variant("sqlite", default=True, description="sailor-profile import of exports of nsys")
    variant("cuda", default=False, description="compute on NVIDIA's GPUs")
    variant("nccl", default=False, description="plans for more than one GPU", when="+cuda")
    variant("cudnn", default=False, description="attention on tensor cores", when="+cuda")
    variant("tests", default=False, description="build the tests")

    depends_on("c", type="build")
    depends_on("cxx", type="build")
    depends_on("cmake@3.25:", type="build")
    depends_on("ninja", type="build")
    depends_on("fmt")
    depends_on("spdlog")
    depends_on("nlohmann-json@3.9:")
    depends_on("tl-expected")
    depends_on("tomlplusplus")
    depends_on("boost@1.70: +program_options")
    depends_on("hdf5@1.10: ~mpi")
    depends_on("blas")
    depends_on("openblas")  # its cblas.h
    depends_on("clp")
    depends_on("coinutils")
    depends_on("icu4c")
    depends_on("xxhash")
    depends_on("zlib-api")
    depends_on("mpi", when="+mpi")
    depends_on("slurm", when="+slurm")
    depends_on("libyaml", when="+yaml")
    depends_on("metis", when="+metis")
    depends_on("sqlite", when="+sqlite")
    depends_on("cuda@12:", when="+cuda")
    depends_on("nccl", when="+nccl")
    depends_on("cudnn", when="+cudnn")
    depends_on("googletest", type="build", when="+tests")
    depends_on("rapidcheck", type="build", when="+tests")

    conflicts("%gcc@:11", msg="C++20 as GCC 12 has it")
    generator("ninja")

    def cmake_args(self):
        return [
            self.define_from_variant("SAILOR_MPI", "mpi"),
            self.define_from_variant("SAILOR_SLURM", "slurm"),
            self.define_from_variant("SAILOR_YAML", "yaml"),
            self.define_from_variant("SAILOR_METIS", "metis"),
            self.define_from_variant("SAILOR_SQLITE", "sqlite"),
            self.define_from_variant("SAILOR_CUDA", "cuda"),
            self.define("SAILOR_NCCL", self.spec.satisfies("+nccl")),
            self.define("SAILOR_CUDNN", self.spec.satisfies("+cudnn")),
            self.define_from_variant("SAILOR_TESTS", "tests"),
        ]
