# package.consumer: installs the library to a prefix of its own, builds the project here against it, and runs it.
add_test(NAME package.consumer COMMAND ${CMAKE_CURRENT_LIST_DIR}/run.sh ${PROJECT_BINARY_DIR} $<TARGET_FILE:seined>)
set_tests_properties(package.consumer PROPERTIES LABELS package COST 50
  ENVIRONMENT "CMAKE=${CMAKE_COMMAND};CXX=${CMAKE_CXX_COMPILER};CMAKE_GENERATOR=${CMAKE_GENERATOR}")
