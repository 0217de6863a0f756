# Debian packages by CPack: `./run package` configures with the preset "deb", which installs below /usr, and runs cpack.
#   atoll         the programs, manual pages, completion, systemd units, example configurations
#   libatoll0     the library of include/atoll.h, for programs that were built with it
#   libatoll-dev  header, pkg-config and CMake files
#   atoll-cuda    the CUDA back end, if it is built
# dpkg-shlibdeps derives the dependencies, so a package fits the system that built it. Its revision names that system.
set(configs ${CMAKE_INSTALL_DATADIR}/atoll/configs)
install(DIRECTORY ${CMAKE_SOURCE_DIR}/configs/ DESTINATION ${configs} COMPONENT configs EXCLUDE_FROM_ALL
        FILES_MATCHING PATTERN "*.yaml")
file(GLOB units CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/deploy/systemd/*.service)
install(FILES ${units} DESTINATION lib/systemd/system COMPONENT units EXCLUDE_FROM_ALL)

set(CPACK_GENERATOR DEB)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_COMPONENTS_ALL cli coordinator worker configs units library development)
foreach(component IN ITEMS cli coordinator worker configs units)
    string(TOUPPER ${component} upper)
    set(CPACK_COMPONENT_${upper}_GROUP programs)
endforeach()
set(CPACK_COMPONENT_LIBRARY_GROUP library)
set(CPACK_COMPONENT_DEVELOPMENT_GROUP development)
if(ATOLL_CUDA_BUILT)
    list(APPEND CPACK_COMPONENTS_ALL cuda)
    set(CPACK_COMPONENT_CUDA_GROUP cuda)
endif()

# The revision: 1~debian13, 1~ubuntu24.04. An upgrade of the system has the higher one.
set(revision 1~)
if(EXISTS /etc/os-release)
    file(STRINGS /etc/os-release lines REGEX "^(ID|VERSION_ID)=")
    list(SORT lines) # ID comes first
    list(TRANSFORM lines REPLACE "^[A-Z_]+=|\"" "")
    list(JOIN lines "" system)
    string(APPEND revision ${system})
endif()
set(contact "Atoll developers <maintainers@atoll.example>")
if(DEFINED ENV{DEBEMAIL}) # as Debian's tools: who builds the packages answers for them
    set(contact "$ENV{DEBEMAIL}")
    if(DEFINED ENV{DEBFULLNAME})
        set(contact "$ENV{DEBFULLNAME} <$ENV{DEBEMAIL}>")
    endif()
endif()
set(CPACK_PACKAGE_NAME atoll)
set(CPACK_PACKAGE_VERSION ${PROJECT_VERSION})
set(CPACK_PACKAGE_CONTACT "${contact}")
set(CPACK_PACKAGE_DIRECTORY ${CMAKE_BINARY_DIR})
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_PRE_BUILD_SCRIPTS ${CMAKE_CURRENT_LIST_DIR}/finish.cmake)
set(CPACK_ATOLL_SOURCE ${CMAKE_SOURCE_DIR}) # for finish.cmake
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_RELEASE ${revision})
set(CPACK_DEBIAN_PACKAGE_PRIORITY optional)
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_GENERATE_SHLIBS ON)
set(CPACK_DEBIAN_PACKAGE_GENERATE_SHLIBS_POLICY ">=")
set(version "${PROJECT_VERSION}-${revision}")

set(about "Atoll trains one model on machines in different places, over ordinary\nnetworks. Each machine \
trains many steps alone, then sends a compressed\ndelta to a coordinator, which publishes an update.")
set(CPACK_DEBIAN_PROGRAMS_PACKAGE_NAME atoll)
set(CPACK_DEBIAN_PROGRAMS_PACKAGE_SECTION science)
set(CPACK_DEBIAN_PROGRAMS_DESCRIPTION "train one model on machines in different places\n${about}")
set(CPACK_DEBIAN_PROGRAMS_PACKAGE_SUGGESTS atoll-cuda)
set(CPACK_DEBIAN_LIBRARY_PACKAGE_NAME libatoll0)
set(CPACK_DEBIAN_LIBRARY_PACKAGE_SECTION libs)
file(WRITE ${CMAKE_BINARY_DIR}/triggers "activate-noawait ldconfig\n")
set(CPACK_DEBIAN_LIBRARY_PACKAGE_CONTROL_EXTRA ${CMAKE_BINARY_DIR}/triggers)
set(CPACK_DEBIAN_LIBRARY_DESCRIPTION "worker of a training run as a library\n${about}\n.\nThis package has the \
library for programs that were built with libatoll-dev.")
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_NAME libatoll-dev)
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_SECTION libdevel)
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_DEPENDS "libatoll0 (= ${version})")
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_SHLIBDEPS OFF)
set(CPACK_DEBIAN_DEVELOPMENT_DESCRIPTION "worker of a training run as a library, development files\n${about}\n.\n\
This package has the header, and files for pkg-config and CMake.")
if(ATOLL_CUDA_BUILT)
    # The toolkit's libraries may belong to no package; the worker then says in one line which one it cannot load.
    get_filename_component(toolkit ${ATOLL_CUDA_CUBLASLT} DIRECTORY)
    set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS_PRIVATE_DIRS ${toolkit})
    set(CPACK_DEBIAN_CUDA_PACKAGE_NAME atoll-cuda)
    set(CPACK_DEBIAN_CUDA_PACKAGE_SECTION science)
    set(CPACK_DEBIAN_CUDA_PACKAGE_DEPENDS "atoll (= ${version})")
    set(CPACK_DEBIAN_CUDA_DESCRIPTION "train one model on machines in different places, CUDA back end\n${about}\n.\n\
This package lets workers train on NVIDIA GPUs. It needs NVIDIA's driver\nand the cuBLAS of its CUDA version.")
endif()
include(CPack)
