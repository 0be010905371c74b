# `cmake --install` lays down headers, library and a package file for find_package(tamis).
include(CMakePackageConfigHelpers)

# While the major version is 0, a minor version may break the ABI, so it is part of the file name.
set_target_properties(tamis PROPERTIES VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR})
# CMake would define tamis_EXPORTS for a shared build. Nothing reads it, and without it both builds share a compiler cache.
set_target_properties(tamis PROPERTIES DEFINE_SYMBOL "")

install(DIRECTORY include/tamis DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING PATTERN "*.h" PATTERN "*.hpp")
install(TARGETS tamis EXPORT tamis-targets)
install(EXPORT tamis-targets NAMESPACE tamis:: DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/tamis)
if(TARGET tamis_cli)
  # Relative, so that an installed tree can be moved as a whole.
  file(RELATIVE_PATH bin_to_lib ${CMAKE_INSTALL_FULL_BINDIR} ${CMAKE_INSTALL_FULL_LIBDIR})
  if(NOT CMAKE_INSTALL_RPATH)
    set_target_properties(tamis_cli PROPERTIES INSTALL_RPATH "$ORIGIN/${bin_to_lib}")
  endif()
  install(TARGETS tamis_cli)
endif()

# A static library needs its own libraries at the consumer's link; a shared one brings them.
get_target_property(tamis_type tamis TYPE)
if(tamis_type STREQUAL "STATIC_LIBRARY")
  set(TAMIS_IS_STATIC ON)
else()
  set(TAMIS_IS_STATIC OFF)
endif()
configure_package_config_file(cmake/tamis-config.cmake.in tamis-config.cmake
                              INSTALL_DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/tamis)
write_basic_package_version_file(tamis-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/tamis-config.cmake ${CMAKE_CURRENT_BINARY_DIR}/tamis-config-version.cmake
        DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/tamis)
