# cmake -P script: install, move, configure, build, run. The prefix is moved after the install, so that a path of this
# machine baked into the package file shows.
function(step)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE result OUTPUT_VARIABLE output ERROR_VARIABLE output)
  if(NOT result EQUAL 0)
    list(JOIN ARGN " " command)
    message(FATAL_ERROR "${command}\nended with ${result}:\n${output}")
  endif()
endfunction()

file(REMOVE_RECURSE ${WORK_DIR})
step(${CMAKE_COMMAND} --install ${BUILD_DIR} --prefix ${WORK_DIR}/installed)
file(RENAME ${WORK_DIR}/installed ${WORK_DIR}/prefix)
step(${CMAKE_COMMAND} -S ${SOURCE_DIR} -B ${WORK_DIR}/build -G ${GENERATOR} -DCMAKE_BUILD_TYPE=${BUILD_TYPE}
     -DCMAKE_C_COMPILER=${C_COMPILER} -DCMAKE_CXX_COMPILER=${CXX_COMPILER}
     -DCMAKE_C_FLAGS=${FLAGS} -DCMAKE_CXX_FLAGS=${FLAGS}
     -DCMAKE_PREFIX_PATH=${WORK_DIR}/prefix -DEXPECTED_VERSION=${VERSION})
step(${CMAKE_COMMAND} --build ${WORK_DIR}/build)
step(${WORK_DIR}/build/consumer_cpp)
step(${WORK_DIR}/build/consumer_c ${VERSION})

# The command line, where it is part of the build, must find its libraries from the new place, too.
file(GLOB command_line ${WORK_DIR}/prefix/bin/tamis)
if(command_line)
  step(${command_line} --help)
endif()
