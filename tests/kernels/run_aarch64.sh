#!/usr/bin/env bash
# Runs tests of the CPU kernels as an ARM machine would, on any machine with Debian's or Ubuntu's packages:
#
#     apt-get install qemu-user
#     tests/kernels/run_aarch64.sh                              # NEON, 128-bit vectors
#     tests/kernels/run_aarch64.sh sve 64                       # SVE with vectors of 64 bytes, as on A64FX
#     tests/kernels/run_aarch64.sh sve 32 -k water tests/kernels/test_physics.py
#
# Python for arm64 comes from the distribution, numpy, numba and the rest from PyPI's aarch64 wheels; all of it
# lands in ${AARCH64_ROOT:-~/.cache/dpmd-aarch64} and is kept.  Emulation is some 20 times slower than the machine,
# so this is no part of the default tests: ten to thirty minutes; tests/kernels/test_against_deepmd.py, which runs
# when it is named, takes hours.
set -euo pipefail
features=${1:-neon} bytes=${2:-16}
shift $(($# < 2 ? $# : 2))
repository=$(cd "$(dirname "$0")/../.." && pwd)
root=${AARCH64_ROOT:-$HOME/.cache/dpmd-aarch64}
python=python$(python3 -c 'import sys; print("%d.%d" % sys.version_info[:2])')

if [ ! -e "$root/complete" ]; then
  mkdir -p "$root"/{apt/lists/partial,apt/cache/archives/partial,debs/partial,system}
  touch "$root/apt/status" # as if nothing were installed: everything that Python needs is fetched
  apt=(apt-get -q -oAPT::Architecture=arm64 -oAPT::Architectures=arm64 "-oDir::State::Lists=$root/apt/lists"
    "-oDir::State::status=$root/apt/status" "-oDir::Cache=$root/apt/cache" "-oDir::Cache::archives=$root/debs")
  "${apt[@]}" update
  "${apt[@]}" -y --no-install-recommends --download-only install "$python" libstdc++6 libgomp1
  for package in "$root"/debs/*.deb; do dpkg -x "$package" "$root/system"; done
  platforms=()
  for glibc in 17 24 26 27 28; do platforms+=(--platform "manylinux_2_${glibc}_aarch64"); done
  python3 -m pip install --quiet --target "$root/site" --only-binary=:all: --implementation cp \
    --python-version "${python#python}" "${platforms[@]}" --platform manylinux2014_aarch64 \
    numpy numba scipy ase h5py pyyaml protobuf threadpoolctl platformdirs tqdm pytest pytest-timeout hypothesis
  touch "$root/complete"
fi

processor=max
[ "$features" = sve ] && processor="max,sve-default-vector-length=$bytes"
cd "$repository"
export QEMU_LD_PREFIX=$root/system PYTHONPATH=$root/site:$repository PYTHONDONTWRITEBYTECODE=1
export XDG_CACHE_HOME=$root/cache NUMBA_CACHE_DIR=$root/cache/numba-$features$bytes
# the emulator shows the real machine's /proc, from which the instruction set would be read
export NUMBA_CPU_NAME=generic NUMBA_CPU_FEATURES=+neon,+$features DPMD_VECTOR_BYTES=$bytes
[ $# -gt 0 ] || set -- tests/kernels/test_pieces.py tests/kernels/test_physics.py tests/kernels/test_lowrank.py
exec qemu-aarch64 -cpu "$processor" "$root/system/usr/bin/$python" -m pytest -p no:cacheprovider --timeout=3600 "$@"
