# What `cmake --install` puts into a prefix besides the programs, and the summary after configuring.

install(DIRECTORY profiles/ DESTINATION ${CMAKE_INSTALL_DATADIR}/sailor/profiles)
install(DIRECTORY slurm/sites/ DESTINATION ${CMAKE_INSTALL_DATADIR}/sailor/sites)
install(FILES LICENSE NOTICE README.md DESTINATION ${CMAKE_INSTALL_DOCDIR})

function(sailor_print_summary)
  message(STATUS "Sailor ${PROJECT_VERSION}, ${CMAKE_BUILD_TYPE}, ${CMAKE_CXX_COMPILER_ID} "
                 "${CMAKE_CXX_COMPILER_VERSION} for ${CMAKE_SYSTEM_PROCESSOR}")
  if(SAILOR_SANITIZE)
    sailor_found("sanitizers" "${SAILOR_SANITIZE}")
  endif()
  message("${sailor_summary}")
endfunction()
