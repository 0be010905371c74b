#!/usr/bin/env bash
# The one command of this repository. `scripts/dev.sh help` says what it does.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"

# --- Settings, all from the environment ------------------------------------------------------------------------------

jobs=${TAMIS_JOBS:-$(nproc 2>/dev/null || getconf _NPROCESSORS_ONLN)}
werror=OFF
if [[ ${TAMIS_WERROR:-0} != 0 ]]; then werror=ON; fi

# What a bare Debian 12 lacks. The CMake package of libdnnl-dev looks for OpenCL without depending on it, hence
# ocl-icd-opencl-dev.
build_packages=(cmake ninja-build g++ pkg-config libhwy-dev libtbb-dev libdnnl-dev ocl-icd-opencl-dev
                nlohmann-json3-dev libcli11-dev libfmt-dev libpcre2-dev libgtest-dev)
format_packages=(clang-format-14)
fuzz_packages=(clang libclang-rt-14-dev)
charts_packages=(python3)
# ccache: the wheel is built in its own folder from the same sources, and takes the objects of the release build.
python_packages=(python3-dev python3-venv python3-pip ccache)

# --- Small helpers ---------------------------------------------------------------------------------------------------

if [[ -t 2 ]]; then bold=$'\033[1m' plain=$'\033[0m'; else bold='' plain=''; fi
say() { printf '%s== %s%s\n' "$bold" "$*" "$plain" >&2; }
die() { printf 'dev.sh: %s\n' "$*" >&2; exit 1; }

show_help() {
  cat <<'HELP'
Usage: scripts/dev.sh COMMAND [ARGUMENTS]

  run [ARGS]            Build, then let the small model in models/tiny-v4 write. ARGS that begin with a dash go to
                        `tamis generate`; anything else is a whole command line for tamis.
  test [OP ...] [-- ...] Build and run the tests; with names only those of these folders of tests/ (python: python-test).
                        What follows a dash or -- goes to ctest.
  build [PRESET]        Build a preset of CMakePresets.json (default: release) into build/PRESET.
  format [--check]      Run clang-format over the sources, or only say what it would change.
  sanitize [KIND] [OP ...]
                        Build and run the tests under the address and undefined-behaviour sanitizers (KIND address, the
                        default) or the thread sanitizer (KIND thread: the suites whose names begin with Thread).
  package               Install a static and a shared build into scratch prefixes and build the consumers of
                        tests/package against each.
  fuzz [SECONDS]        Build the fuzz targets and run each for SECONDS (default 60) on a corpus kept in build/fuzz.
  charts [--check]      Draw the charts and the README's figures from docs/measurements, or say whether they are up to date.
  python-test [...]     Build the wheel, install it into a fresh virtual environment in build/ and run tests/python there.
                        Arguments go to pytest. Tests of PyTorch need TAMIS_VENV.
  gpu-test              Build and run the GPU tests: every case on every CUDA algorithm, then the small ones under the tools
                        of compute-sanitizer. With TAMIS_STAGE=FOLDER runs the programs of a stage and builds nothing.
  gpu-stage             Fill .gpu-stage/ with tamis, the GPU tests and the shared libraries they need, for a GPU machine
                        that has none of our packages, and pack it into .gpu-stage/stage.tar.xz.
  python-stage          Build a wheel that brings its shared libraries and pack it with the Python tests into
                        .gpu-stage/python.tar.xz, for a GPU machine: scripts/gpu_python_test.sh runs them there.
  setup                 Install the Debian packages that a build needs. Every command does this by itself.
  clean                 Remove build/ and .gpu-stage/.
  help                  This text.

First steps:
  scripts/dev.sh run
  scripts/dev.sh run --prompt 'The code of quartz is ' --max-new-tokens 20
  scripts/dev.sh run verify --model models/tiny-v4 --golden models/tiny-v4/golden.safetensors
  scripts/dev.sh test topk
  scripts/dev.sh test -R 'Topk.*Nan'

Environment:
  TAMIS_JOBS=N          Parallel jobs (default: all cores).
  TAMIS_WERROR=1        Warnings are errors, as in CI.
  TAMIS_CUDA=off        Build without CUDA kernels, though there is a toolkit (default: auto).
  TAMIS_CUDA_ARCHS=LIST GPU architectures to build for, e.g. '90a;100f' (default: all, for stages 90a).
  TAMIS_STAGE=FOLDER    For gpu-test: the unpacked stage to run.
  TAMIS_LOGS=FOLDER     Where gpu-test keeps what its programs print (default: build/gpu-test).
  PYTHON=PROGRAM        The Python that python-test and python-stage build for (default: python3).
  TAMIS_VENV=FOLDER     For python-test: an environment of yours, with PyTorch for instance, instead of a fresh one.
  TAMIS_NO_SETUP=1      Install nothing; CMake then says what it misses.
HELP
}

# --- Packages --------------------------------------------------------------------------------------------------------

# Runs a command as root: directly, or by sudo. Asks for a password only where somebody can type one.
as_root() {
  if [[ $(id -u) == 0 ]]; then
    "$@"
  elif command -v sudo >/dev/null && { sudo -n true 2>/dev/null || [[ -t 0 ]]; }; then
    sudo "$@"
  else
    die "these packages need root. As root: apt-get install ${missing[*]}
       Or set TAMIS_NO_SETUP=1 if what they hold is installed in another way."
  fi
}

# need PACKAGE ...: installs those that are missing. Takes a moment when there are none.
need() {
  if [[ ${TAMIS_NO_SETUP:-0} != 0 ]]; then return; fi
  if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
    local tool absent=()
    for tool in cmake ninja pkg-config c++; do command -v "$tool" >/dev/null || absent+=("$tool"); done
    if ((${#absent[@]} == 0)); then return; fi  # CMake looks for the libraries itself
    die "no apt-get on this machine, and not found: ${absent[*]}
       Please install what these Debian packages hold, then run this again: $*
       (CMake >= 3.25, Ninja, a C++20 compiler, pkg-config; Highway, oneTBB, oneDNN, nlohmann-json, CLI11, fmt, PCRE2,
       GoogleTest)."
  fi
  local installed package
  missing=()
  installed=$(dpkg-query -W -f='${db:Status-Abbrev}${Package}\n' "$@" 2>/dev/null || true)
  for package in "$@"; do
    grep -qx "ii $package" <<<"$installed" || missing+=("$package")
  done
  if ((${#missing[@]} == 0)); then return; fi
  say "installing ${missing[*]}"
  local apt=(env DEBIAN_FRONTEND=noninteractive apt-get -q -y -o DPkg::Lock::Timeout=300)
  as_root "${apt[@]}" update
  as_root "${apt[@]}" install --no-install-recommends "${missing[@]}"
}

# --- Configuring and building ----------------------------------------------------------------------------------------

# configure NAME CMAKE_ARGUMENTS ...: configures build/NAME, unless that was done with these very arguments. Ninja runs
# CMake again when a CMake file changes; it does not watch the presets, so their checksum is part of the stamp.
configure() {
  local folder=build/$1 stamp
  shift
  stamp="$* $(cksum <CMakePresets.json)"
  if [[ -f $folder/build.ninja && $(cat "$folder/configured-with" 2>/dev/null) == "$stamp" ]]; then return; fi
  say "configuring $folder"
  cmake "$@" --log-level=NOTICE
  printf '%s\n' "$stamp" >"$folder/configured-with"
}

configure_preset() {
  local preset=$1
  shift
  if [[ $preset == release || $preset == dev ]]; then
    # Said in any case: CMake would keep what an earlier call said.
    set -- "$@" "-DTAMIS_CUDA=${TAMIS_CUDA:-auto}" "-DTAMIS_CUDA_ARCHS=${TAMIS_CUDA_ARCHS:-auto}"
  fi
  configure "$preset" --preset "$preset" -DTAMIS_WERROR=$werror "$@"
}

# build_folder NAME [TARGET ...]
build_folder() {
  local build=(cmake --build "build/$1" -j "$jobs")
  say "building build/$1${2:+ (${*:2})}"
  shift
  if (($# > 0)); then build+=(--target "$@"); fi
  "${build[@]}"
}

# Folders of tests/ that hold a test program.
test_folders() {
  local folder
  for folder in tests/*/; do
    if compgen -G "${folder}*_test.c*" >/dev/null; then basename "$folder"; fi
  done
  if [[ -f tests/package/CMakeLists.txt ]]; then echo package; fi
}

# select_tests ARGUMENTS ...: splits names of test folders from what goes to ctest, into `ops` and `ctest_arguments`.
select_tests() {
  local known
  known=$(test_folders | tr '\n' ' ')
  ops=()
  ctest_arguments=()
  while (($# > 0)) && [[ $1 != -* ]]; do
    [[ " $known" == *" $1 "* ]] || die "no tests named '$1'. There are: ${known}python; or a pattern of names: test -R $1"
    ops+=("$1")
    shift
  done
  if [[ ${1:-} == -- ]]; then shift; fi
  ctest_arguments=("$@")
}

# build_and_test NAME: builds the programs of `ops` (all when empty) in build/NAME and runs ctest there.
build_and_test() {
  local folder=$1 op targets=() labels=""
  # The package tests install the whole build, so they need all of it.
  if [[ " ${ops[*]} " != *" package "* ]]; then
    for op in "${ops[@]}"; do targets+=("${op}_test"); done
  fi
  build_folder "$folder" "${targets[@]}"
  if ((${#ops[@]} > 0)); then
    labels=$(IFS='|'; echo "^(${ops[*]})\$")
  fi
  ctest --test-dir "build/$folder" --output-on-failure --no-tests=error -j "$jobs" ${labels:+-L "$labels"} \
    "${ctest_arguments[@]}"
}

# --- Commands --------------------------------------------------------------------------------------------------------

# What a build needs, and what `pip install .` needs.
command_setup() {
  need "${build_packages[@]}" "${python_packages[@]}"
}

command_build() {
  local preset=${1:-release}
  command_setup
  if [[ $preset == fuzz ]]; then need "${fuzz_packages[@]}"; fi
  configure_preset "$preset"
  build_folder "$preset"
  if [[ $preset == release ]]; then ln -sfn build/release/compile_commands.json compile_commands.json; fi
}

command_run() {
  command_setup
  configure_preset release
  build_folder release tamis_cli
  local tamis=build/release/tamis
  if (($# > 0)) && [[ $1 != -* ]]; then
    exec "$tamis" "$@"
  elif (($# > 0)); then
    exec "$tamis" generate --model models/tiny-v4 --stats "$@"
  fi
  # The model was trained on prose with such lines; it has to look the code up in its compressed cache.
  local prompt
  prompt="The code of amber is 482913.
The code of cedar is 170624.
The code of onyx is 905337.

The options are read from the configuration file in the order in which they appear, and the last one wins.

The code of cedar is "
  printf '%s' "$prompt"
  exec "$tamis" generate --model models/tiny-v4 --max-new-tokens 48 --stats --prompt "$prompt"
}

command_test() {
  if [[ ${1:-} == python ]]; then
    shift
    command_python-test "$@"
    return
  fi
  select_tests "$@"
  command_setup
  configure_preset release
  build_and_test release
  if (($# == 0)); then command_python-test; fi
}

# pip_build VENV PIP_ARGUMENTS ...: pip with this repository's settings of the build. The compiler is named as CMake names
# it by itself, and build folders lie as deep as build/release: so the compiler cache serves both.
pip_build() {
  local venv=$1
  shift
  CC=${CC:-cc} CXX=${CXX:-c++} CMAKE_BUILD_PARALLEL_LEVEL=$jobs PIP_DISABLE_PIP_VERSION_CHECK=1 \
    "$venv/bin/python" -m pip --quiet "$@" --config-settings "cmake.define.TAMIS_WERROR=$werror"
}

command_python-test() {
  command_setup
  local venv=${TAMIS_VENV:-build/python-venv}
  if [[ -z ${TAMIS_VENV:-} ]]; then
    rm -rf "$venv"
    "${PYTHON:-python3}" -m venv "$venv"
  fi
  say "building the wheel for $("$venv/bin/python" --version) and installing it into $venv"
  pip_build "$venv" install '.[test]' --config-settings 'build-dir=build/python-{wheel_tag}'
  say "running tests/python"
  "$venv/bin/python" -m pytest tests/python "$@"
}

command_python-stage() {
  local stage=.gpu-stage/python venv=build/python-stage-venv
  command_setup
  "${PYTHON:-python3}" -m venv "$venv"
  rm -rf "$stage" "$stage.tar.xz"
  mkdir -p "$stage"
  pip_build "$venv" wheel . --no-deps -w "$stage" --config-settings 'build-dir=build/python-stage-{wheel_tag}' \
    --config-settings cmake.define.TAMIS_CUDA=on \
    --config-settings "cmake.define.TAMIS_CUDA_ARCHS=${TAMIS_CUDA_ARCHS:-90a}" \
    --config-settings cmake.define.TAMIS_PYTHON_BUNDLE=ON
  cp -r --parents pyproject.toml tests/python bench/python examples models/tiny-v4 scripts/gpu_python_test.sh "$stage"
  git describe --always --dirty --abbrev=12 >"$stage/COMMIT" 2>/dev/null || echo unknown >"$stage/COMMIT"
  find "$stage" -name __pycache__ -prune -exec rm -r {} +
  tar cJf "$stage.tar.xz" -C "$stage" .
  say "$stage.tar.xz: $(du -sh "$stage.tar.xz" | cut -f1), $(cd "$stage" && echo ./*.whl). On the other machine: mkdir DIR;
   tar xJf python.tar.xz -C DIR; DIR/scripts/gpu_python_test.sh LOG_FOLDER"
}

command_format() {
  need "${format_packages[@]}"
  local formatter files
  formatter=$(command -v clang-format-14) || die "clang-format-14 is not installed"
  mapfile -t files < <(source_files)
  if ((${#files[@]} == 0)); then die "found no sources"; fi
  if [[ ${1:-} == --check ]]; then
    "$formatter" --dry-run -Werror "${files[@]}" || die "not formatted: run scripts/dev.sh format"
    say "${#files[@]} files are formatted"
  else
    "$formatter" -i "${files[@]}"
  fi
}

# From git where it can be asked, so that ignored files stay untouched; from the folders in an unpacked archive.
source_files() {
  local patterns=('*.cpp' '*.hpp' '*.c' '*.h' '*.cu' '*.cuh') pattern find_names=()
  if git rev-parse --is-inside-work-tree >/dev/null 2>&1; then
    # A file deleted but not yet committed is still listed.
    git ls-files --cached --others --exclude-standard -- "${patterns[@]}" | while IFS= read -r pattern; do
      if [[ -f $pattern ]]; then printf '%s\n' "$pattern"; fi
    done | sort -u
  else
    for pattern in "${patterns[@]}"; do find_names+=(-o -name "$pattern"); done
    find bench cli include src tests bindings -type f \( "${find_names[@]:1}" \) 2>/dev/null | sort
  fi
}

command_sanitize() {
  local kind=address
  if [[ ${1:-} == address || ${1:-} == thread ]]; then
    kind=$1
    shift
  fi
  select_tests "$@"
  command_setup
  if [[ $kind == address ]]; then
    configure_preset asan
    UBSAN_OPTIONS=print_stacktrace=1 LSAN_OPTIONS=suppressions=$root/tests/lsan.supp:print_suppressions=0 \
      build_and_test asan
    return
  fi
  if ((${#ops[@]} == 0)); then
    # Only programs that hold such suites: the others would be built for nothing.
    mapfile -t ops < <(grep -lE '^(TEST|TEST_F|TEST_P)\(Thread' tests/*/*_test.cpp | cut -d/ -f2 | sort -u)
  fi
  # INSTANTIATE_TEST_SUITE_P puts a prefix and a slash before the suite's name.
  ctest_arguments=(-R '(^|/)Thread' "${ctest_arguments[@]}")
  configure_preset tsan
  # oneDNN's threads come from libgomp, which the sanitizer cannot see into: one thread leaves nothing to misread.
  OMP_NUM_THREADS=1 build_and_test tsan
}

command_package() {
  ops=(package)
  ctest_arguments=()
  command_setup
  configure_preset release
  build_and_test release
  # The engine is not part of the library, and the other tests have run. Flags as in release, whose objects the compiler
  # cache then gives.
  configure shared -S . -B build/shared -G Ninja -DCMAKE_BUILD_TYPE=Release -DBUILD_SHARED_LIBS=ON \
    -DTAMIS_BUILD_ENGINE=OFF -DTAMIS_WERROR=$werror
  build_folder shared tamis
  ctest --test-dir build/shared --output-on-failure --no-tests=error -L '^package$'
}

command_fuzz() {
  local seconds=${1:-60} program name
  [[ -f tests/fuzz/CMakeLists.txt ]] || die "there are no fuzz targets in tests/fuzz"
  command_setup
  need "${fuzz_packages[@]}"
  configure_preset fuzz
  build_folder fuzz tests/fuzz/all
  local programs=(build/fuzz/tests/fuzz/*_fuzz)
  [[ -x ${programs[0]} ]] || die "built no program build/fuzz/tests/fuzz/*_fuzz"
  for program in "${programs[@]}"; do
    name=$(basename "$program" _fuzz)
    local corpora=("build/fuzz/corpus/$name")  # the first one collects what is found
    mkdir -p "${corpora[0]}" build/fuzz/findings
    if [[ -d tests/fuzz/corpus/$name ]]; then corpora+=("tests/fuzz/corpus/$name"); fi
    say "$name for $seconds s"
    "$program" -max_total_time="$seconds" -timeout=20 -rss_limit_mb=4096 -print_final_stats=1 -verbosity=0 \
      -artifact_prefix="build/fuzz/findings/$name-" "${corpora[@]}" ||
      die "$name found something. To see it again: $program build/fuzz/findings/$name-..."
  done
}

# Shared libraries of a program that another machine may lack: all but the C library and the loader, which belong to the
# kernel and the driver there.
libraries_of() {
  ldd "$1" | awk '$2 == "=>" && $3 ~ /^\// { print $3 }' |
    grep -vE '/(libc|libm|libdl|librt|libpthread|libresolv|libutil|ld-linux[^/]*)\.so' || true
}

command_charts() {
  need "${charts_packages[@]}"
  python3 scripts/charts.py "$@"
}

command_gpu-test() {
  local programs=${TAMIS_STAGE:-build/release/tests}
  if [[ -z ${TAMIS_STAGE:-} ]]; then
    command_setup
    configure_preset release
    if ! grep -q 'TAMIS_CUDA_ARCHS' build/release/build.ninja; then
      say "no GPU tests in this build: CMake found no CUDA toolkit of at least 12.3, or TAMIS_CUDA is off"
      exit 77
    fi
    build_folder release topk_cuda_test compressor_cuda_test engine_test
  elif ! compgen -G "$programs/*_cuda_test" >/dev/null; then
    die "TAMIS_STAGE=$programs: no GPU test programs there (unpack stage.tar.xz into it)"
  fi
  exec scripts/gpu_test.sh "$programs" "${TAMIS_LOGS:-build/gpu-test}"
}

command_gpu-stage() {
  local stage=.gpu-stage program
  command_setup
  # RPATH rather than the RUNPATH of today's default: it also holds for what libdnnl.so itself needs. Tests look for
  # models/ under the folder they are started in.
  configure gpu-stage -S . -B build/gpu-stage -G Ninja -DCMAKE_BUILD_TYPE=Release -DCMAKE_BUILD_WITH_INSTALL_RPATH=ON \
    "-DCMAKE_INSTALL_RPATH=\$ORIGIN/lib" "-DCMAKE_EXE_LINKER_FLAGS=-Wl,--disable-new-dtags" \
    -DTAMIS_CUDA=on "-DTAMIS_CUDA_ARCHS=${TAMIS_CUDA_ARCHS:-90a}" -DTAMIS_TEST_ROOT=. -DTAMIS_CUDA_LINEINFO=ON -DTAMIS_WERROR=$werror
  build_folder gpu-stage tamis_cli topk_cuda_test compressor_cuda_test engine_test
  rm -rf "$stage"
  mkdir -p "$stage/lib"
  for program in build/gpu-stage/tamis build/gpu-stage/tests/{topk_cuda,compressor_cuda,engine}_test; do
    install -s "$program" "$stage/"
    libraries_of "$program"
  done | sort -u | while IFS= read -r library; do install -m 644 "$library" "$stage/lib/"; done
  tar cJf "$stage.tar.xz" -C "$stage" .
  mv "$stage.tar.xz" "$stage/stage.tar.xz"
  say "$stage: $(du -sh "$stage" | cut -f1), packed $(du -sh "$stage/stage.tar.xz" | cut -f1). On the other machine, from the
   root of a copy of this tree: mkdir DIR; tar xJf stage.tar.xz -C DIR; TAMIS_STAGE=DIR scripts/dev.sh gpu-test; DIR/tamis ..."
}

command_clean() {
  rm -rf build .gpu-stage compile_commands.json
}

# --- Dispatch --------------------------------------------------------------------------------------------------------

command=${1:-help}
if (($# > 0)); then shift; fi
case $command in
  build | charts | clean | format | fuzz | gpu-stage | gpu-test | package | python-stage | python-test | run | sanitize | setup | test) "command_$command" "$@" ;;
  help | -h | --help) show_help ;;
  *)
    show_help >&2
    die "unknown command '$command'"
    ;;
esac
