# What `cmake --install` puts where. Components: dev (libraries, headers, package configuration), server and tools (programs).
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)
set(SEINE_INCLUDE_DIR ${CMAKE_INSTALL_INCLUDEDIR}/seine) # the rooms' names are too common to stand in include/ themselves
set(SEINE_CONFIG_DIR ${CMAKE_INSTALL_LIBDIR}/cmake/seine)

# Public headers. What they include is installed with them, so that no list follows the files' moves.
set(SEINE_PUBLIC_HEADERS index/index.h profile/profile.h)
if(SEINE_SERVICE)
  list(APPEND SEINE_PUBLIC_HEADERS client/client.h client/retained_sets.h client/settings.h client/sharded/sharded_sequence.h)
endif()
install(CODE "set(SEINE_HEADER_ROOTS [[${PROJECT_SOURCE_DIR};${PROJECT_BINARY_DIR}/proto]])
set(SEINE_PUBLIC_HEADERS [[${SEINE_PUBLIC_HEADERS}]])
set(SEINE_INCLUDE_DIR [[${SEINE_INCLUDE_DIR}]])" COMPONENT dev)
install(SCRIPT ${PROJECT_SOURCE_DIR}/cmake/public_headers.cmake COMPONENT dev)

# A set for each component of find_package, so that a user of the index alone needs no gRPC.
set(SEINE_INSTALLED_COMPONENTS index)
if(SEINE_SERVICE)
  list(APPEND SEINE_INSTALLED_COMPONENTS client)
endif()
foreach(component IN LISTS SEINE_INSTALLED_COMPONENTS)
  string(TOUPPER ${component} upper)
  install(TARGETS ${SEINE_${upper}_LIBRARIES} EXPORT seine-${component}
          ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT dev
          INCLUDES DESTINATION ${SEINE_INCLUDE_DIR})
  install(EXPORT seine-${component} FILE seine-${component}.cmake NAMESPACE seine:: DESTINATION ${SEINE_CONFIG_DIR} COMPONENT dev)
endforeach()

set(SEINE_WITH_CUDA OFF)
if(CMAKE_CUDA_COMPILER)
  set(SEINE_WITH_CUDA ON)
endif()
configure_package_config_file(cmake/seine-config.cmake.in ${PROJECT_BINARY_DIR}/seine-config.cmake
                              INSTALL_DESTINATION ${SEINE_CONFIG_DIR} NO_SET_AND_CHECK_MACRO)
write_basic_package_version_file(${PROJECT_BINARY_DIR}/seine-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/seine-config.cmake ${PROJECT_BINARY_DIR}/seine-config-version.cmake cmake/FindHighway.cmake
        DESTINATION ${SEINE_CONFIG_DIR} COMPONENT dev)

if(SEINE_SERVICE)
  install(TARGETS seined RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT server)
  install(TARGETS seine RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT tools)
endif()
if(SEINE_BENCH)
  install(TARGETS seine-bench RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT tools)
endif()

# Instrumented libraries want their sanitizer in every program: there is nothing to install.
if(SEINE_TESTS AND SEINE_SERVICE AND NOT SEINE_SANITIZE)
  include(tests/house/consumer/tests.cmake)
endif()
