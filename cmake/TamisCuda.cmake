# CUDA is optional: with a toolkit, src/<op>/cuda/*.cu become part of the library; without one, everything else builds.
# Result: TAMIS_HAS_CUDA, and tamis_cuda_options for targets with .cu files.
set(TAMIS_HAS_CUDA OFF)
if(NOT TAMIS_CUDA MATCHES "^(auto|on|off)$")
  message(FATAL_ERROR "TAMIS_CUDA is ${TAMIS_CUDA}, must be auto, on or off")
endif()
set(TAMIS_CUDA_ARCHS "auto" CACHE STRING
    "GPU architectures, e.g. \"80;90a;100f\"; auto: all of 80, 90a, 100f and 120f that the toolkit can build")
# For profilers and sanitizers, which then name lines. Off: programs have half the size.
option(TAMIS_CUDA_LINEINFO "Line numbers in kernels" OFF)

# What each architecture asks of the toolkit. 90a: Hopper. 100f and 120f: whole families, since 12.9.
set(tamis_cuda_needs_80 11.0)
set(tamis_cuda_needs_90a 12.3)
set(tamis_cuda_needs_100a 12.8)
set(tamis_cuda_needs_100f 12.9)
set(tamis_cuda_needs_120 12.8)
set(tamis_cuda_needs_120f 12.9)

if(TAMIS_CUDA STREQUAL "off")
  message(STATUS "CUDA: off")
else()
  find_package(CUDAToolkit 12.3 QUIET)
  if(CUDAToolkit_FOUND AND CUDAToolkit_NVCC_EXECUTABLE)
    set(TAMIS_HAS_CUDA ON)
  elseif(TAMIS_CUDA STREQUAL "on")
    message(FATAL_ERROR "TAMIS_CUDA is on, but no CUDA toolkit of at least 12.3 with nvcc was found")
  else()
    message(NOTICE "CUDA: no toolkit of at least 12.3 found, building for the CPU")
  endif()
endif()

if(TAMIS_HAS_CUDA)
  set(wanted ${TAMIS_CUDA_ARCHS})
  if(wanted STREQUAL "auto")
    set(wanted 80 90a 100f 120f)
  endif()
  set(archs)
  set(codes)
  foreach(arch IN LISTS wanted)
    if(DEFINED tamis_cuda_needs_${arch} AND CUDAToolkit_VERSION VERSION_LESS tamis_cuda_needs_${arch})
      message(NOTICE "CUDA: sm_${arch} left out: it needs toolkit ${tamis_cuda_needs_${arch}}, this is ${CUDAToolkit_VERSION}")
    else()
      list(APPEND archs ${arch})
      list(APPEND codes "-gencode=arch=compute_${arch},code=sm_${arch}")
    endif()
  endforeach()
  if(NOT archs)
    message(FATAL_ERROR "TAMIS_CUDA_ARCHS is ${TAMIS_CUDA_ARCHS}: toolkit ${CUDAToolkit_VERSION} can build none of them")
  endif()
  list(JOIN archs " " TAMIS_CUDA_ARCHS_TEXT)
  message(NOTICE "CUDA: toolkit ${CUDAToolkit_VERSION}, kernels for ${TAMIS_CUDA_ARCHS_TEXT}")

  # CMake 3.25 knows neither architecture families nor the flags of CUDA 13, so codes and standard are given by hand.
  set(CMAKE_CUDA_ARCHITECTURES OFF)
  set(CMAKE_CUDA_COMPILER ${CUDAToolkit_NVCC_EXECUTABLE})
  set(CMAKE_CUDA_RUNTIME_LIBRARY Static)
  enable_language(CUDA)
  if(NOT DEFINED CMAKE_CUDA20_STANDARD_COMPILE_OPTION)
    set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
    set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION -std=c++20)
  endif()
  # The host compiler's own folders must not be given again: -isystem /usr/include hides its math.h.
  list(APPEND CMAKE_CUDA_IMPLICIT_INCLUDE_DIRECTORIES ${CMAKE_CXX_IMPLICIT_INCLUDE_DIRECTORIES})
  if(TAMIS_CCACHE)
    # Of nvcc's objects ccache takes the build folder to be a part, which would hide those of one build from another.
    set(CMAKE_CUDA_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env CCACHE_NOHASHDIR=1 ${TAMIS_CCACHE})
  endif()

  add_library(tamis_cuda_options INTERFACE)
  # --threads: a second architecture is compiled beside the first. Lambdas for device code are templates' arguments only.
  target_compile_options(tamis_cuda_options INTERFACE
    $<$<COMPILE_LANGUAGE:CUDA>:${codes} --threads=2 $<$<BOOL:${TAMIS_CUDA_LINEINFO}>:-lineinfo> --expt-relaxed-constexpr -Xcompiler=-Wall,-Wextra
      -Xcudafe=--display_error_number>)
  if(TAMIS_WERROR)
    target_compile_options(tamis_cuda_options INTERFACE $<$<COMPILE_LANGUAGE:CUDA>:-Werror=all-warnings>)
  endif()
  target_compile_definitions(tamis_cuda_options INTERFACE TAMIS_HAS_CUDA TAMIS_CUDA_ARCHS="${TAMIS_CUDA_ARCHS_TEXT}")
endif()
