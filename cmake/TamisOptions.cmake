# Compiler flags of everything built here, as one interface target.
add_library(tamis_options INTERFACE)

if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "Build type" FORCE)
endif()

# Designated initialisers are there to leave members at their defaults, so the warning about that is off.
set(warnings -Wall -Wextra -Wpedantic -Wshadow -Wno-missing-field-initializers)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  # GCC 12 sees an overlap in "literal" + std::string that is not there (GCC bug 105651, fixed in 13).
  list(APPEND warnings -Wno-restrict)
endif()
if(TAMIS_WERROR)
  list(APPEND warnings -Werror)
endif()
# Contraction into FMA is written out where it is wanted: otherwise the same formula gives other bits per target.
target_compile_options(tamis_options INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:${warnings} -Wnon-virtual-dtor -ffp-contract=off>
  $<$<COMPILE_LANGUAGE:C>:${warnings} -ffp-contract=off>)
# Targets of run-time dispatch: SSE4, AVX2, AVX-512 (and NEON). The others cost compile time and are not faster here.
target_compile_definitions(tamis_options INTERFACE HWY_DISABLED_TARGETS=\(HWY_SSSE3|HWY_AVX3_DL\))

if(TAMIS_SANITIZE)
  target_compile_options(tamis_options INTERFACE -fsanitize=${TAMIS_SANITIZE} -fno-omit-frame-pointer
                         -fno-sanitize-recover=all)
  target_link_options(tamis_options INTERFACE -fsanitize=${TAMIS_SANITIZE})
endif()

find_program(TAMIS_CCACHE ccache)
if(TAMIS_CCACHE)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${TAMIS_CCACHE})
  set(CMAKE_C_COMPILER_LAUNCHER ${TAMIS_CCACHE})
endif()
