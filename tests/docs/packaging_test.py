"""The recipes of packaging/ against CMake: the Spack package depends on everything that the build looks for and has a
variant for each part that can be left out; the uenv recipe and the Containerfile name options and variants that exist;
the image has the libraries that the programs are linked with."""
import os
import pathlib
import re
import shutil
import subprocess
import sys

ROOT = pathlib.Path(os.environ["SAILOR_SOURCE_DIR"])
BIN = pathlib.Path(os.environ["SAILOR_BIN_DIR"])
problems = []
read = lambda path: (ROOT / path).read_text(encoding="utf-8")  # noqa: E731
without_comments = lambda text: re.sub(r"(^|\s)#.*", "", text)  # noqa: E731

# What CMake looks for, and what Spack calls it. The test fails where CMake looks for something that is not in here.
SPACK = {"fmt": "fmt", "spdlog": "spdlog", "nlohmann_json": "nlohmann-json", "tl-expected": "tl-expected",
         "Boost": "boost", "HDF5": "hdf5", "BLAS": "blas", "ICU": "icu4c", "MPI": "mpi", "CUDAToolkit": "cuda",
         "GTest": "googletest", "rapidcheck": "rapidcheck", "Clp": "clp", "CoinUtils": "coinutils", "slurm": "slurm",
         "xxhash": "xxhash", "yaml": "libyaml", "metis": "metis", "sqlite3": "sqlite", "ZLIB": "zlib-api", "nccl": "nccl", "cudnn": "cudnn", "toml++/toml.h": "tomlplusplus",
         "cblas.h": "openblas"}
PART_OF_SOMETHING = {"Threads", "OpenMP", "benchmark", "Python3"}  # of the compiler, or of tests only

cmake = without_comments(read("cmake/SailorDependencies.cmake") + read("tests/CMakeLists.txt"))
looked_for = set(re.findall(r"find_package\(([\w-]+)", cmake)) - PART_OF_SOMETHING
looked_for |= {name for name in re.findall(r"find_library\(\w+\s+(?:NAMES\s+)?([\w+-]+)", cmake)
               if not name.startswith("lib")}
looked_for |= set(re.findall(r"find_path\(\w+\s+(toml\+\+/toml\.h|cblas\.h)", cmake))
package = read("packaging/spack/packages/sailor/package.py")
dependencies = set(re.findall(r'depends_on\("([\w-]+)', package))
for name in sorted(looked_for):
    if name not in SPACK:
        problems.append(f"CMake looks for {name}, of which this test does not know what Spack calls it")
    elif SPACK[name] not in dependencies:
        problems.append(f"package.py does not depend on {SPACK[name]}, for which CMake looks ({name})")
for name in sorted(dependencies - set(SPACK.values()) - {"c", "cxx", "cmake", "ninja"}):
    problems.append(f"package.py depends on {name}, for which CMake does not look")

# Options.
top = without_comments(read("CMakeLists.txt"))
parts = re.search(r"foreach\(part ([A-Z ]+)\)", top).group(1).split()
options = {f"SAILOR_{part}" for part in parts} | set(re.findall(r"(?:option|set)\((SAILOR_\w+)", top))
variants = set(re.findall(r'variant\("(\w+)"', package))
for part in parts:
    if part.lower() not in variants:
        problems.append(f"package.py has no variant {part.lower()} for SAILOR_{part}")
    if f'"SAILOR_{part}"' not in package:
        problems.append(f"package.py does not set SAILOR_{part}")
container = read("packaging/container/Containerfile")
for text, where in (package, "package.py"), (container, "Containerfile"):
    for option in re.findall(r"\bSAILOR_[A-Z]+\b", without_comments(text)):
        if option not in options:
            problems.append(f"{where} sets {option}, which is no option of CMake")
environments = read("packaging/uenv/environments.yaml")
for variant in re.findall(r"sailor ([+~\w ]+)$", environments, re.M)[0].split():
    if variant[1:] not in variants:
        problems.append(f"environments.yaml asks for {variant}, which is no variant of package.py")
version = re.search(r"project\(sailor VERSION ([\d.]+)", read("CMakeLists.txt")).group(1)
if f'version("{version}")' not in package:
    problems.append(f"package.py has no version {version}")
least = re.search(r"cmake_minimum_required\(VERSION ([\d.]+)\)", read("CMakeLists.txt")).group(1)
if f'"cmake@{least}:"' not in package:
    problems.append(f"package.py does not want CMake {least}")

# Libraries of the image, where this machine has the same distribution.
release = pathlib.Path("/etc/os-release").read_text() if pathlib.Path("/etc/os-release").exists() else ""
if "VERSION_ID=\"12\"" in release and shutil.which("dpkg") and shutil.which("objdump"):
    installed = set(re.findall(r"[a-z0-9][a-z0-9.+-]+", container.split("FROM")[-1]))
    owners = {}  # by library: dpkg -S takes a second
    for program in sorted(BIN.glob("sailor*")):
        needed = set(re.findall(r"NEEDED\s+(\S+)", subprocess.run(["objdump", "-p", program], capture_output=True,
                                                                  text=True, check=True).stdout))
        for name, path in re.findall(r"^\s*(\S+) => (\S+)", subprocess.run(["ldd", program], capture_output=True,
                                                                         text=True, check=True).stdout, re.M):
            if name not in needed:
                continue
            if path not in owners:
                real = os.path.realpath(path)
                found = [subprocess.run(["dpkg", "-S", file], capture_output=True, text=True, check=False).stdout
                         for file in (real, real.removeprefix("/usr"))]
                owners[path] = "".join(found).split(":")[0]
            owner = owners[path]
            if owner and owner not in installed | {"libc6", "libstdc++6", "libgcc-s1"}:
                problems.append(f"the Containerfile does not install {owner}, whose {name} {program.name} needs")
    print(f"{len(owners)} libraries looked at")

for text in problems:
    print("not ok - " + text)
print(f"{len(looked_for)} dependencies, {len(parts)} parts")
sys.exit(1 if problems else 0)
