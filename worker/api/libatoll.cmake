# libatoll.so: the library of include/atoll.h. `cmake --install` also installs the header, atoll.pc for pkg-config, and
# the CMake package atoll with the target atoll::atoll.
include(CMakePackageConfigHelpers)

# The program has the target name atoll. -Bsymbolic: the library calls its own functions, whatever the program defines.
file(GLOB api_sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_LIST_DIR}/*.c)
add_library(libatoll SHARED ${api_sources})
set_target_properties(libatoll PROPERTIES OUTPUT_NAME atoll EXPORT_NAME atoll SOVERSION 0 VERSION ${PROJECT_VERSION}
                      LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/lib)
target_include_directories(libatoll PUBLIC $<BUILD_INTERFACE:${CMAKE_SOURCE_DIR}/include> $<INSTALL_INTERFACE:include>)
target_link_libraries(libatoll PRIVATE $<BUILD_INTERFACE:atoll_worker>)
target_link_options(libatoll PRIVATE LINKER:--exclude-libs,ALL LINKER:-Bsymbolic LINKER:--gc-sections)
if(ATOLL_SANITIZE OR ATOLL_FUZZ)
    set_target_properties(libatoll PROPERTIES EXCLUDE_FROM_ALL ON)
else()
    target_link_options(libatoll PRIVATE LINKER:--no-undefined)
endif()

set(package ${CMAKE_BINARY_DIR}/package)
file(RELATIVE_PATH to_prefix /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)
file(CONFIGURE OUTPUT ${package}/atoll.pc @ONLY CONTENT [[
prefix=${pcfiledir}/@to_prefix@
Name: atoll
Description: The outer loop of an Atoll worker, for any training program
Version: @PROJECT_VERSION@
Cflags: -I${prefix}/include
Libs: -L${prefix}/@CMAKE_INSTALL_LIBDIR@ -latoll
]])
file(WRITE ${package}/atollConfig.cmake "include(\${CMAKE_CURRENT_LIST_DIR}/atollTargets.cmake)\n")
write_basic_package_version_file(${package}/atollConfigVersion.cmake COMPATIBILITY SameMinorVersion)
if(NOT ATOLL_SANITIZE AND NOT ATOLL_FUZZ)
    install(TARGETS libatoll EXPORT atollTargets LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT library
            NAMELINK_COMPONENT development)
    install(FILES ${CMAKE_SOURCE_DIR}/include/atoll.h DESTINATION include COMPONENT development)
    install(FILES ${package}/atoll.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig COMPONENT development)
    install(EXPORT atollTargets NAMESPACE atoll:: DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/atoll COMPONENT development)
    install(FILES ${package}/atollConfig.cmake ${package}/atollConfigVersion.cmake COMPONENT development
            DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/atoll)
endif()
