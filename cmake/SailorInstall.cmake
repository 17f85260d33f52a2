# What `cmake --install` puts into a prefix besides the programs, and the summary after configuring.

install(DIRECTORY profiles/ DESTINATION ${CMAKE_INSTALL_DATADIR}/sailor/profiles)
install(DIRECTORY slurm/sites/ DESTINATION ${CMAKE_INSTALL_DATADIR}/sailor/sites)
# What the programs wrote about themselves: manual pages, completions (see sailor_reference()).
if(NOT CMAKE_CROSSCOMPILING OR CMAKE_CROSSCOMPILING_EMULATOR)
  install(DIRECTORY "${PROJECT_BINARY_DIR}/share/man/" DESTINATION ${CMAKE_INSTALL_MANDIR}
          COMPONENT documentation OPTIONAL)
  foreach(folder bash-completion zsh fish doc)
    install(DIRECTORY "${PROJECT_BINARY_DIR}/share/${folder}" DESTINATION ${CMAKE_INSTALL_DATADIR}
            COMPONENT documentation OPTIONAL)
  endforeach()
else()
  message(STATUS "Manual pages and completions are not made: programs for ${CMAKE_SYSTEM_PROCESSOR} do not run here")
endif()
install(FILES LICENSE NOTICE README.md CHANGELOG.md CONTRIBUTING.md DESTINATION ${CMAKE_INSTALL_DOCDIR})
install(DIRECTORY docs DESTINATION ${CMAKE_INSTALL_DOCDIR}
        FILES_MATCHING PATTERN "*.md" PATTERN "*.svg" PATTERN "*.toml")

# The module file of the prefix.
configure_file(packaging/modulefile.in "${PROJECT_BINARY_DIR}/share/modulefiles/sailor" @ONLY)
install(FILES "${PROJECT_BINARY_DIR}/share/modulefiles/sailor"
        DESTINATION ${CMAKE_INSTALL_DATADIR}/sailor/modulefiles)
# The private test cluster: sailor-testcluster is a link to the script, which finds its parts beside itself.
install(DIRECTORY slurm/testcluster DESTINATION ${CMAKE_INSTALL_DATADIR}/sailor USE_SOURCE_PERMISSIONS)
file(RELATIVE_PATH testcluster "/${CMAKE_INSTALL_BINDIR}" "/${CMAKE_INSTALL_DATADIR}/sailor/testcluster/testcluster")
file(CREATE_LINK "${testcluster}" "${PROJECT_BINARY_DIR}/share/sailor-testcluster" SYMBOLIC)
install(FILES "${PROJECT_BINARY_DIR}/share/sailor-testcluster" DESTINATION ${CMAKE_INSTALL_BINDIR})

# find_package(sailor): the libraries up to the planner, for programs that call it. tests/docs/consumer uses them.
if(NOT SAILOR_PORTABLE_PARTS_ONLY)
  include(CMakePackageConfigHelpers)
  set(libraries core model cluster plan profile profile_store simulator planner)
  foreach(folder core model cluster plan profile simulator planner)
    install(DIRECTORY src/${folder} DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/sailor COMPONENT development
            FILES_MATCHING PATTERN "*.hpp")
  endforeach()
  list(TRANSFORM libraries PREPEND sailor_)
  set_target_properties(sailor_text PROPERTIES EXPORT_NAME text)
  set_target_properties(sailor_linear_programs PROPERTIES EXPORT_NAME linear_programs)
  install(TARGETS ${libraries} sailor_text sailor_linear_programs EXPORT sailor
          ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT development)
  set(package "${CMAKE_INSTALL_LIBDIR}/cmake/sailor")
  install(EXPORT sailor NAMESPACE sailor:: DESTINATION "${package}" COMPONENT development FILE sailorTargets.cmake)
  configure_package_config_file(cmake/sailorConfig.cmake.in "${PROJECT_BINARY_DIR}/sailorConfig.cmake"
                                INSTALL_DESTINATION "${package}")
  write_basic_package_version_file("${PROJECT_BINARY_DIR}/sailorConfigVersion.cmake" COMPATIBILITY SameMinorVersion)
  install(FILES "${PROJECT_BINARY_DIR}/sailorConfig.cmake" "${PROJECT_BINARY_DIR}/sailorConfigVersion.cmake"
          DESTINATION "${package}" COMPONENT development)
endif()

function(sailor_print_summary)
  message(STATUS "Sailor ${PROJECT_VERSION}, ${CMAKE_BUILD_TYPE}, ${CMAKE_CXX_COMPILER_ID} "
                 "${CMAKE_CXX_COMPILER_VERSION} for ${CMAKE_SYSTEM_PROCESSOR}")
  if(SAILOR_SANITIZE)
    sailor_found("sanitizers" "${SAILOR_SANITIZE}")
  endif()
  if(SAILOR_ASSERTIONS)
    sailor_found("assertions" "on")
  endif()
  message("${sailor_summary}")
endfunction()
