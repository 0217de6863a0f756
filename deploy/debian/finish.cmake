# Adds what Debian asks of every package to the staged files, before cpack packs them: copyright, changelog, compressed
# manual pages.
file(GLOB stages ${CPACK_TEMPORARY_DIRECTORY}/*)
string(TIMESTAMP date "%a, %d %b %Y %H:%M:%S +0000" UTC) # of SOURCE_DATE_EPOCH, if it is set
foreach(stage IN LISTS stages)
    get_filename_component(group ${stage} NAME)
    string(TOUPPER ${group} group)
    set(name ${CPACK_DEBIAN_${group}_PACKAGE_NAME})
    if(NOT name OR NOT IS_DIRECTORY ${stage}/usr)
        continue()
    endif()
    set(documents ${stage}/usr/share/doc/${name})
    configure_file(${CPACK_ATOLL_SOURCE}/LICENSE ${documents}/copyright COPYONLY)
    file(WRITE ${documents}/changelog.Debian
        "atoll (${CPACK_PACKAGE_VERSION}-${CPACK_DEBIAN_PACKAGE_RELEASE}) unstable; urgency=medium\n\n"
        "  * Built by ./run package.\n\n -- ${CPACK_PACKAGE_CONTACT}  ${date}\n")
    configure_file(${CPACK_ATOLL_SOURCE}/CHANGELOG.md ${documents}/changelog COPYONLY)
    if(EXISTS ${stage}/usr/bin/atoll) # `man atoll-status` and `man atoll status` show the page of atoll
        execute_process(COMMAND ${stage}/usr/bin/atoll --help=words OUTPUT_VARIABLE words COMMAND_ERROR_IS_FATAL ANY)
        string(REGEX MATCHALL "(^|\n)[a-z]+\t" verbs "${words}")
        foreach(verb IN LISTS verbs)
            string(STRIP "${verb}" verb)
            file(CREATE_LINK atoll.1.gz ${stage}/usr/share/man/man1/atoll-${verb}.1.gz SYMBOLIC)
        endforeach()
    endif()
    file(GLOB pages ${stage}/usr/share/man/man*/*.[1-9])
    execute_process(COMMAND gzip -9nf ${documents}/changelog.Debian ${documents}/changelog ${pages}
                    COMMAND_ERROR_IS_FATAL ANY)
endforeach()
