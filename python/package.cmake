# The part "python" of an installation: what the Python package holds beside its modules. scikit-build-core installs it
# into the folder atoll/ of a wheel (python/pyproject.toml). `cmake --install` without --component leaves it out.
add_custom_target(wheel_content)
foreach(name IN ITEMS atoll atoll-coordinator atoll-worker)
    add_dependencies(wheel_content ${name})
    install(TARGETS ${name} RUNTIME DESTINATION bin COMPONENT python EXCLUDE_FROM_ALL)
endforeach()
# One file without the version: a wheel stores no links.
add_dependencies(wheel_content libatoll)
install(FILES $<TARGET_FILE:libatoll> DESTINATION lib RENAME libatoll.so COMPONENT python EXCLUDE_FROM_ALL)
if(SKBUILD)
    install(FILES LICENSE DESTINATION ${SKBUILD_METADATA_DIR}/licenses COMPONENT python EXCLUDE_FROM_ALL)
endif()
