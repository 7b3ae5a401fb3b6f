# Debian packages of what cmake/install.cmake installs: seine-server, seine-tools, libseine-dev. `./dev package` makes them.
find_package(Python3 REQUIRED COMPONENTS Interpreter)
if(NOT SEINE_SERVICE OR NOT SEINE_BENCH)
  message(FATAL_ERROR "SEINE_PACKAGE: packages hold the server and all tools; set SEINE_SERVICE and SEINE_BENCH too")
endif()

# Man pages, completion and the settings file, made anew whenever a program is.
set(manual ${PROJECT_BINARY_DIR}/manual)
set(manual_files ${manual}/seined.yaml ${manual}/man/seined.8.gz)
foreach(program IN ITEMS seine seined seine-bench)
  list(APPEND manual_files ${manual}/bash/${program} ${manual}/zsh/_${program})
endforeach()
foreach(program IN ITEMS seine seine-bench)
  list(APPEND manual_files ${manual}/man/${program}.1.gz)
endforeach()
file(GLOB manual_sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_LIST_DIR}/manual/*.py)
add_custom_command(OUTPUT ${manual_files}
  COMMAND ${Python3_EXECUTABLE} -B ${CMAKE_CURRENT_LIST_DIR}/manual/generate.py ${PROJECT_VERSION} ${manual}
          $<TARGET_FILE:seine> $<TARGET_FILE:seined> $<TARGET_FILE:seine-bench>
  DEPENDS seine seined seine-bench ${manual_sources} VERBATIM
  COMMENT "Man pages, shell completion and settings from the programs' --help")
add_custom_target(seine_manual ALL DEPENDS ${manual_files})
add_custom_target(seine_package_files DEPENDS seine_manual seine_index seine_client)
if(TARGET ggml-seine) # where SEINE_LLAMA_CPP is given
  add_dependencies(seine_package_files ggml-seine ggml-seine-remote)
  install(TARGETS ggml-seine ggml-seine-remote LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}/seine COMPONENT tools)
endif()

set(share ${CMAKE_INSTALL_DATAROOTDIR})
function(install_manual component section)
  foreach(program IN LISTS ARGN)
    install(FILES ${manual}/man/${program}.${section}.gz DESTINATION ${share}/man/man${section} COMPONENT ${component})
    install(FILES ${manual}/bash/${program} DESTINATION ${share}/bash-completion/completions COMPONENT ${component})
    install(FILES ${manual}/zsh/_${program} DESTINATION ${share}/zsh/vendor-completions COMPONENT ${component})
  endforeach()
endfunction()
install_manual(server 8 seined)
install_manual(tools 1 seine seine-bench)
install(CODE "set(SEINE_DEPLOY_DIR [[${CMAKE_CURRENT_LIST_DIR}]])
set(SEINE_MANUAL_DIR [[${manual}]])" COMPONENT server)
install(SCRIPT ${CMAKE_CURRENT_LIST_DIR}/install_service.cmake COMPONENT server)

install(FILES ${CMAKE_CURRENT_LIST_DIR}/prometheus/alerts.yml ${CMAKE_CURRENT_LIST_DIR}/grafana/seine.json
              ${CMAKE_CURRENT_LIST_DIR}/nghttpx/nghttpx.conf ${CMAKE_CURRENT_LIST_DIR}/envoy/envoy.yaml
        DESTINATION ${share}/doc/seine-server/examples COMPONENT server)

find_program(GZIP gzip REQUIRED)
configure_file(${CMAKE_CURRENT_LIST_DIR}/debian/changelog.in ${manual}/changelog @ONLY)
execute_process(COMMAND ${GZIP} -9nkf ${manual}/changelog COMMAND_ERROR_IS_FATAL ANY)
foreach(pair IN ITEMS server:seine-server tools:seine-tools dev:libseine-dev)
  string(REPLACE ":" ";" pair ${pair})
  list(GET pair 0 component)
  list(GET pair 1 package)
  install(FILES ${CMAKE_CURRENT_LIST_DIR}/debian/copyright ${manual}/changelog.gz DESTINATION ${share}/doc/${package}
          COMPONENT ${component})
  string(TOUPPER ${component} upper)
  set(CPACK_DEBIAN_${upper}_PACKAGE_NAME ${package})
endforeach()

# CPack would build every target first; ./dev package has built what is packed.
set(CMAKE_SKIP_INSTALL_ALL_DEPENDENCY ON)
set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME seine)
set(CPACK_PACKAGE_VENDOR "Seine")
set(CPACK_PACKAGE_CONTACT "Seine maintainers <maintainers@example.org>")
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_INSTALL_DEFAULT_DIRECTORY_PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ GROUP_EXECUTE WORLD_READ WORLD_EXECUTE)
set(CPACK_STRIP_FILES ON)
set(CPACK_COMPONENTS_ALL server tools dev)
set(CPACK_COMPONENTS_GROUPING IGNORE)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_COMPRESSION_TYPE xz)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)

set(about "Seine holds the key/value cache of long-context language models and returns,
at every decode step, the few tokens of each head that matter.")
set(CPACK_COMPONENT_SERVER_DESCRIPTION "KV-cache retrieval index: server\n${about}\n\nThis package has the server and its systemd unit.")
set(CPACK_COMPONENT_TOOLS_DESCRIPTION "KV-cache retrieval index: command line and benchmarks\n${about}\n\nThis package has seine, which inspects and steers a server, and seine-bench.")
set(CPACK_COMPONENT_DEV_DESCRIPTION "KV-cache retrieval index: library and C++ client\n${about}\n\nThis package has static libraries, headers and a CMake package.")
set(CPACK_DEBIAN_SERVER_PACKAGE_SECTION net)
set(CPACK_DEBIAN_TOOLS_PACKAGE_SECTION utils)
set(CPACK_DEBIAN_DEV_PACKAGE_SECTION libdevel)
set(CPACK_DEBIAN_SERVER_PACKAGE_DEPENDS adduser)
set(CPACK_DEBIAN_SERVER_PACKAGE_SUGGESTS seine-tools)
# What a static library leaves to its user to link; the last four are what gRPC's own CMake package asks for.
set(CPACK_DEBIAN_DEV_PACKAGE_DEPENDS "libabsl-dev, libhwy-dev, nlohmann-json3-dev, zlib1g-dev, libgrpc++-dev, libprotobuf-dev, protobuf-compiler, protobuf-compiler-grpc, pkg-config")
set(CPACK_DEBIAN_SERVER_PACKAGE_CONTROL_EXTRA ${CMAKE_CURRENT_LIST_DIR}/debian/conffiles ${CMAKE_CURRENT_LIST_DIR}/debian/postinst
    ${CMAKE_CURRENT_LIST_DIR}/debian/prerm ${CMAKE_CURRENT_LIST_DIR}/debian/postrm)
include(CPack)
