# `cmake --install` lays down headers, library and a package file for find_package(tamis).
include(CMakePackageConfigHelpers)

install(DIRECTORY include/tamis DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(TARGETS tamis EXPORT tamis-targets)
install(EXPORT tamis-targets NAMESPACE tamis:: DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/tamis)
if(TARGET tamis_cli)
  install(TARGETS tamis_cli)
endif()
configure_package_config_file(cmake/tamis-config.cmake.in tamis-config.cmake
                              INSTALL_DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/tamis)
write_basic_package_version_file(tamis-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/tamis-config.cmake ${CMAKE_CURRENT_BINARY_DIR}/tamis-config-version.cmake
        DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/tamis)
