# Finds Highway as the target Highway::hwy: by its header and library, for its own CMake package names paths of one machine.
# It is installed with Seine's package configuration, which needs the same target.
find_path(HWY_INCLUDE_DIR hwy/highway.h)
find_library(HWY_LIBRARY hwy)
mark_as_advanced(HWY_INCLUDE_DIR HWY_LIBRARY)
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(Highway REQUIRED_VARS HWY_LIBRARY HWY_INCLUDE_DIR)
if(Highway_FOUND AND NOT TARGET Highway::hwy)
  add_library(Highway::hwy UNKNOWN IMPORTED)
  set_target_properties(Highway::hwy PROPERTIES IMPORTED_LOCATION ${HWY_LIBRARY} INTERFACE_INCLUDE_DIRECTORIES ${HWY_INCLUDE_DIR})
endif()
