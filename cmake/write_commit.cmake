# Writes the commit that is being built into a header, on every build; the file changes only when the commit does.
# Used as: cmake -DSOURCE=<source folder> -DOUTPUT=<header> -P write_commit.cmake
set(commit "unknown")
# An unpacked archive inside somebody's own repository must not take that repository's commit for ours.
execute_process(COMMAND git rev-parse --show-toplevel WORKING_DIRECTORY ${SOURCE}
                OUTPUT_VARIABLE top OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE failed)
if(NOT failed AND NOT top STREQUAL "")
  file(REAL_PATH "${top}" top)
  file(REAL_PATH "${SOURCE}" source)
  if(top STREQUAL source)
    execute_process(COMMAND git describe --always --dirty --abbrev=12 WORKING_DIRECTORY ${SOURCE}
                    OUTPUT_VARIABLE described OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE failed)
    if(NOT failed AND NOT described STREQUAL "")
      set(commit "${described}")
    endif()
  endif()
endif()
file(CONFIGURE OUTPUT "${OUTPUT}" CONTENT "#pragma once\n#define TAMIS_COMMIT \"${commit}\"\n")
